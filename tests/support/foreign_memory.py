"""What the processes of other accounts know: their environments, arguments, memory and files."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw")
_CHUNK = 16 << 20


class Searches:
    """Searches for texts in the processes of some users that run during the block.

    The memory of a process is searched some seconds after it was first seen, then each time that it is twice
    as old. `found` has the names of the texts that were found, `searched` the processes that were searched.
    """

    def __init__(
        self, users: Collection[int], texts: dict[str, str], *, interval: float = 1.0, age: float = 8.0
    ) -> None:
        self.found: set[str] = set()
        self.searched: set[int] = set()
        self._users = set(users)
        self._texts = {name: text.encode() for name, text in texts.items()}
        self._interval = interval
        self._age = age
        self._due: dict[int, tuple[float, float]] = {}  # when a process was first seen, and its age to search
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._search, daemon=True)

    def __enter__(self) -> Searches:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def search_folder(self, folder: Path) -> int:
        """Search the files in a folder; return how many there are."""
        files = [path for path in folder.rglob("*") if path.is_file()]
        for path in files:
            self._search_in(path.read_bytes())
        return len(files)

    def _search(self) -> None:
        while not self._ended.wait(self._interval):
            for folder in Path("/proc").glob("[0-9]*"):
                # it may end meanwhile
                with suppress(OSError):
                    if folder.stat().st_uid in self._users:
                        self._search_process(folder)

    def _search_process(self, folder: Path) -> None:
        number = int(folder.name)
        if number not in self._due:
            self._due[number] = (time.monotonic(), self._age)
            self._search_in((folder / "environ").read_bytes())
            self._search_in((folder / "cmdline").read_bytes())
            return
        began, age = self._due[number]
        if time.monotonic() - began > age:
            self._due[number] = (began, 2 * age)
            self.searched.add(number)
            for part in _memory(folder):
                self._search_in(part)

    def _search_in(self, content: bytes) -> None:
        self.found |= {name for name, text in self._texts.items() if text in content}


def _memory(process: Path) -> Iterator[bytes]:
    """Yield the memory that a process can write, in parts that overlap by a kilobyte."""
    with (process / "mem").open("rb", buffering=0) as memory:
        for line in (process / "maps").read_text().splitlines():
            region = _REGION.match(line)
            if region is None:
                continue
            start, end = (int(each, 16) for each in region.groups())
            for begin in range(start, end, _CHUNK):
                with suppress(OSError, OverflowError, ValueError):
                    memory.seek(begin)
                    yield memory.read(min(_CHUNK + 1024, end - begin))
                    time.sleep(0)
