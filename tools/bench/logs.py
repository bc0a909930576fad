"""Follow Delta logs of a local lake while other processes write them: offsets, row counts, and when."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.delta.txn import TxnId
from tools.bench.latency import Seen

POLL_SECONDS = 0.01
PATIENCE = 900.0  # seconds


class TableLog:
    """The log of one table, read commit by commit; `seen` has each offset with the time it was found at."""

    def __init__(self, folder: Path) -> None:
        self.seen: list[Seen] = []
        self._log = folder / "_delta_log"
        self._version = 0
        self._files: dict[str, int] = {}

    @property
    def offset(self) -> int:
        """The newest offset, 0 without one."""
        return self.seen[-1].offset if self.seen else 0

    @property
    def rows(self) -> int:
        """The row count of the newest version that was read."""
        return sum(self._files.values())

    def refresh(self) -> None:
        """Read the commits since the last call."""
        while True:
            try:
                text = (self._log / f"{self._version:020d}.json").read_text(encoding="utf-8")
            except FileNotFoundError:
                return
            self._read([json.loads(line) for line in text.splitlines() if line.strip()], time.monotonic())
            self._version += 1

    def _read(self, actions: list[dict[str, Any]], now: float) -> None:
        # a file whose deletion vector changed is removed and added in one commit, in any order
        for removed in (action["remove"] for action in actions if "remove" in action):
            self._files.pop(removed["path"], None)
        for added in (action["add"] for action in actions if "add" in action):
            deleted = (added.get("deletionVector") or {}).get("cardinality", 0)
            self._files[added["path"]] = json.loads(added.get("stats") or "{}").get("numRecords", 0) - deleted
        for recorded in (action["txn"] for action in actions if "txn" in action):
            txn = TxnId.parse(recorded["appId"])
            if txn is not None and txn.advances and recorded["version"] > self.offset:
                self.seen.append(Seen(recorded["version"], now))


class Logs:
    """The logs of bronze and of some silver tables, by name, read all the time by a thread."""

    def __init__(self, root: Path, tables: list[str], schema: str = "public") -> None:
        self.bronze = TableLog(root / "bronze" / "changes")
        self.silver = {table: TableLog(root / "silver" / schema / table) for table in tables}
        self._lock = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[Logs]:
        """Read until the block ends."""
        stop = threading.Event()

        def read() -> None:
            while not stop.wait(POLL_SECONDS):
                self.refresh()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def refresh(self) -> None:
        """Read what is new in every log."""
        with self._lock:
            for log in (self.bronze, *self.silver.values()):
                log.refresh()

    def wait(self, lsn: int, is_alive: Callable[[], None], *, patience: float = PATIENCE) -> float:
        """Wait until every silver table went beyond an LSN; return when the last one did (monotonic).

        `is_alive` raises if the jobs ended, and RuntimeError is raised once `patience` has passed.
        """
        deadline = time.monotonic() + patience
        while True:
            self.refresh()
            if all(log.offset > lsn for log in self.silver.values()):
                return max(
                    next(each.at for each in log.seen if each.offset > lsn) for log in self.silver.values()
                )
            is_alive()
            if time.monotonic() > deadline:
                behind = sorted(name for name, log in self.silver.items() if log.offset <= lsn)
                raise RuntimeError(f"silver did not show the changes: {', '.join(behind[:5])}")
            time.sleep(POLL_SECONDS)

    def check_rows(self, expected: Mapping[str, int]) -> None:
        """Raise RuntimeError unless the silver tables have so many rows."""
        self.refresh()
        found = {name: log.rows for name, log in self.silver.items()}
        differ = [name for name, rows in expected.items() if found.get(name) != rows]
        if differ:
            name = differ[0]
            raise RuntimeError(f"silver {name} has {found.get(name)} rows, its source {expected[name]}")
