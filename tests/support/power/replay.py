"""Replay a recording: at which cuts PostgreSQL was sent an LSN that bronze would not have on disk.

A cut is what is left after any event. Bronze's LSN there is that of its newest commit with nothing
missing: all entries of its log up to it, the files that they name, the relation versions that these name,
and the entries of `prepared` that were there before it. The first adversary keeps what was forced and nothing
else. The second keeps the name of a commit, but nothing that was not forced before the commit got it: a
commit that is visible then, without all of its bytes, is torn.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from tests.support.power.disk import FLUSHES, Disk, Event

_WRITES = ("write", "truncate")


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a table: the path and size of its log entry, and of the files that it adds.

    `lsn` is the position that it records. `relations` are the relation versions that its rows name, or that a
    commit to `bronze/relations` holds.
    """

    path: str
    size: int
    files: Mapping[str, int] = field(default_factory=dict)
    lsn: int | None = None
    relations: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Logs:
    """The tables of bronze that its position depends on, each with all its versions."""

    changes: tuple[Entry, ...]
    relations: tuple[Entry, ...] = ()
    prepared: tuple[Entry, ...] = ()


class Ahead(NamedTuple):
    """A cut at which the slot is ahead of bronze."""

    event: int
    flushed: int
    position: int


@dataclass(slots=True)
class Verdict:
    """What a replay found."""

    cuts: int = 0
    flushes: int = 0
    forces: int = 0
    position: int = 0
    ahead: list[Ahead] = field(default_factory=list)
    torn: set[str] = field(default_factory=set)  # paths of log entries

    def __str__(self) -> str:
        return (
            f"{self.cuts} cuts, {self.forces} fsyncs, {self.flushes} reports to the slot: "
            f"{len(self.ahead)} cuts ahead, {len(self.torn)} commits torn"
        )


class _Table:
    """How many versions of a table, from its first on, are surely there."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self.kept = 0

    def advance(self, disk: Disk) -> None:
        while self.kept < len(self.entries) and _is_kept(disk, self.entries[self.kept]):
            self.kept += 1


def _is_kept(disk: Disk, entry: Entry) -> bool:
    return disk.keeps(entry.path, entry.size) and all(disk.keeps(*file) for file in entry.files.items())


def _is_torn(disk: Disk, entry: Entry) -> bool:
    """Return whether an entry and its table may exist while a part of the entry does not."""
    table = str(PurePosixPath(entry.path).parent.parent)
    files = all(disk.has_bytes(*file) and disk.keeps_name(file[0], table) for file in entry.files.items())
    return disk.find(entry.path) is not None and not (files and disk.has_bytes(entry.path, entry.size))


class Replay:
    """The state of a replay: give it the events one by one."""

    def __init__(self, root: str, logs: Logs) -> None:
        self.disk = Disk(root)
        self.verdict = Verdict()
        self._changes = _Table(logs.changes)
        self._relations = _Table(logs.relations)
        self._prepared = _Table(logs.prepared)
        self._unseen = {entry.path: entry for log in _each(logs) for entry in log}
        self._prepared_before: dict[str, int] = {}  # by entry of changes: how many of `prepared` were there
        paths = {path for log in _each(logs) for entry in log for path in (entry.path, *entry.files)}
        self._needed = paths.union(str(above) for path in paths for above in PurePosixPath(path).parents)
        self._inodes: set[int] = set()  # of what is needed
        self._flushed = 0

    def apply(self, event: Event) -> None:
        """Go on by one event, and judge the cut behind it."""
        self.disk.apply(event)
        verdict = self.verdict
        if event.kind in FLUSHES:
            verdict.flushes += 1
            self._flushed = max(self._flushed, event.first)
        self._see(event)
        is_loss = self._may_lose(event)
        if is_loss:
            for table in (self._changes, self._relations, self._prepared):
                table.kept = 0
        if is_loss or event.kind == "force":
            verdict.position = self._position()
        verdict.cuts += 1
        verdict.forces = self.disk.forces
        if self._flushed > verdict.position:
            verdict.ahead.append(Ahead(self.disk.now, self._flushed, verdict.position))

    def _may_lose(self, event: Event) -> bool:
        if event.kind in ("begin", "force", "mkdir", *FLUSHES):
            return False
        is_named = event.path in self._needed or event.other in self._needed
        if is_named:
            self._inodes.add(event.inode)
        return is_named or (event.kind in _WRITES and event.inode in self._inodes)

    def _see(self, event: Event) -> None:
        """Note what an entry that becomes visible comes after, and whether all of it is there."""
        entry = self._unseen.pop(event.other or event.path, None) if event.kind != "remove" else None
        if entry is None:
            return
        if _is_torn(self.disk, entry):
            self.verdict.torn.add(entry.path)
        visible = sum(self.disk.find(each.path) is not None for each in self._prepared.entries)
        self._prepared_before[entry.path] = visible

    def _position(self) -> int:
        for table in (self._changes, self._relations, self._prepared):
            table.advance(self.disk)
        described = {v for entry in self._relations.entries[: self._relations.kept] for v in entry.relations}
        position = 0
        for entry in self._changes.entries[: self._changes.kept]:
            before = self._prepared_before.get(entry.path, 0)
            if not entry.relations <= described or before > self._prepared.kept:
                break
            position = position if entry.lsn is None else entry.lsn
        return position


def _each(logs: Logs) -> tuple[tuple[Entry, ...], ...]:
    return logs.changes, logs.relations, logs.prepared


def replay(events: Iterable[Event], root: str, logs: Logs) -> Replay:
    """Judge every cut of a recording."""
    state = Replay(root, logs)
    for event in events:
        state.apply(event)
    return state
