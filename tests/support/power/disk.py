"""A file system that keeps nothing which was not forced: what is surely on disk after each recorded event.

The data of a file is durable as of the start of the last fsync of the file. A name (a file or folder made,
renamed or linked) is durable once the folder that has it was forced, and reachable once all folders above it
are. What is taken away counts as gone at once. The folder that is recorded is durable itself.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

FLUSHES = ("flush", "advance")


class Event(NamedTuple):
    """One line of the recorder; `first` and `second` are an offset and a length, a size, or an LSN."""

    kind: str
    thread: int = 1
    inode: int = 0
    first: int = 0
    second: int = 0
    path: str = ""
    other: str = ""


def read_events(log: Path) -> Iterator[Event]:
    """Give the events of a recording."""
    with log.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            kind, thread, inode, first, second, path, other = line.rstrip("\n").split("\t")
            yield Event(kind, int(thread), int(inode), int(first), int(second), path, other)


@dataclass(slots=True, eq=False)
class File:
    """The data behind one inode."""

    inode: int
    size: int = 0
    changed_at: int = -1
    forced_to: int = 0  # changes before this event are durable

    @property
    def is_forced(self) -> bool:
        """Say whether all that was written is durable."""
        return self.changed_at < self.forced_to


@dataclass(slots=True, eq=False)
class Name:
    """An entry of a folder; without a file it is a folder itself."""

    file: File | None
    made_at: int
    is_forced: bool = False


@dataclass(slots=True)
class Disk:
    """The folder that is recorded, and all below it."""

    root: str
    now: int = -1  # the index of the newest event
    folders: dict[str, dict[str, Name]] = field(default_factory=dict)
    forces: int = 0
    _files: dict[int, File] = field(default_factory=dict)
    _begun: dict[int, int] = field(default_factory=dict)  # by thread: when its fsync began

    def __post_init__(self) -> None:
        self.folders[self.root] = {}

    def apply(self, event: Event) -> None:
        """Go on by one event."""
        self.now += 1
        match event.kind:
            case "open":
                self._open(event)
            case "write":
                file = self._file(event.inode)
                file.size = max(file.size, event.first + event.second)
                file.changed_at = self.now
            case "truncate":
                file = self._file(event.inode)
                file.size, file.changed_at = event.first, self.now
            case "begin":
                self._begun[event.thread] = self.now
            case "force":
                self._force(event.path, event.inode, self._begun.pop(event.thread))
            case "mkdir":
                self._put(event.path, None)
                self.folders.setdefault(event.path, {})
            case "link":
                self._put(event.other, self._file(event.inode))
            case "rename":
                self._rename(event)
            case "remove":
                self._take(event.path)
            case _ if event.kind not in FLUSHES:
                raise ValueError(f"the recorder wrote {event}")

    def find(self, path: str) -> Name | None:
        """Return what has a path now, whether durable or not."""
        folder, _, name = path.rpartition("/")
        return self.folders.get(folder, {}).get(name)

    def keeps(self, path: str, size: int) -> bool:
        """Say whether a file is surely there, by this path, with all bytes of so many."""
        return self.has_bytes(path, size) and self.keeps_name(path)

    def keeps_name(self, path: str, below: str = "") -> bool:
        """Return whether a path surely exists: its name and those of all folders above it are durable.

        `below` is a folder that is assumed to exist.
        """
        while path not in (self.root, below):
            found = self.find(path)
            if found is None or not found.is_forced:
                return False
            path = path.rpartition("/")[0]
        return True

    def has_bytes(self, path: str, size: int) -> bool:
        """Say whether the data behind a path, durable or not itself, is whole and durable."""
        found = self.find(path)
        file = found.file if found else None
        return file is not None and file.is_forced and file.size == size

    def sizes(self) -> dict[str, int]:
        """Return the size of every file as it is without a failure, by its path below the root."""
        return {
            f"{folder}/{name}"[len(self.root) + 1 :]: entry.file.size
            for folder, names in self.folders.items()
            for name, entry in names.items()
            if entry.file is not None
        }

    def _file(self, inode: int) -> File:
        return self._files.setdefault(inode, File(inode))

    def _open(self, event: Event) -> None:
        found = self.find(event.path)
        if found is None or found.file is None or found.file.inode != event.inode:
            # a file of its own, also where the inode was another's before
            file = self._files[event.inode] = File(event.inode)
            self._put(event.path, file)
        elif event.first and found.file.size:
            found.file.size, found.file.changed_at = 0, self.now

    def _put(self, path: str, file: File | None) -> None:
        folder, _, name = path.rpartition("/")
        if path != self.root and folder in self.folders:
            self.folders[folder][name] = Name(file, self.now)

    def _take(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self.folders.get(folder, {}).pop(name, None)
        for below in _below(self.folders, path):
            del self.folders[below]

    def _rename(self, event: Event) -> None:
        moved = {path: self.folders[path] for path in _below(self.folders, event.path)}
        found = self.find(event.path)
        self._take(event.path)
        self._take(event.other)
        if event.other:
            self._put(event.other, found.file if found else self._file(event.inode))
            for path, names in moved.items():
                self.folders[event.other + path[len(event.path) :]] = names

    def _force(self, path: str, inode: int, since: int) -> None:
        self.forces += 1
        if path in self.folders:
            for name in self.folders[path].values():
                name.is_forced = name.is_forced or name.made_at < since
        else:
            file = self._file(inode)
            file.forced_to = max(file.forced_to, since)


def _below(folders: Iterable[str], path: str) -> list[str]:
    return [each for each in folders if each == path or PurePosixPath(each).is_relative_to(path)]
