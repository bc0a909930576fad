"""What became of the copies of tables, as the rows of `bronze/copies` tell: begun, complete, given up, gone.

Rows are read in the order in which they were recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pipeline.bronze.copied_rows import CompleteCopy
from pipeline.key_ranges import KeyRange
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

READING, COMPLETE, ABANDONED, DROPPED, GAP = "reading", "complete", "abandoned", "gone", "gap"


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages [first_page, end_page) of one leaf, and the file node that they were in."""

    relation_id: int
    filenode: int
    first_page: int
    end_page: int


@dataclass(frozen=True, slots=True)
class SnapshotRanges:
    """What a copy reads under one snapshot; `ranges_before` were read under earlier ones."""

    lsn: LSN
    running: tuple[int, ...]
    ranges_before: int
    ranges: tuple[PageRange, ...]

    @property
    def range_count(self) -> int:
        """Return how many ranges there are up to this snapshot's last."""
        return self.ranges_before + len(self.ranges)


@dataclass(slots=True)
class CopyState:
    """One copy of a table, or of some of its keys: `readings` in order; what is complete is a `copy`."""

    id: int
    name: TableName
    state: str
    relation_id: int | None = None
    membership: int | None = None  # the entry of the publication that it belongs to
    relation_version: int | None = None
    snapshots: list[SnapshotRanges] = field(default_factory=list)
    requests: tuple[str, ...] = ()
    row_count: int = 0
    invisible_commits: tuple[LSN, ...] = ()
    sentence: str | None = None
    dropped_at: LSN = INVALID
    key_ranges: tuple[KeyRange, ...] = ()

    @property
    def copy(self) -> CompleteCopy | None:
        """Return the copy that silver may begin with, None where it is not complete."""
        if self.state != COMPLETE or self.relation_version is None:
            return None
        lsns = tuple(reading.lsn for reading in self.snapshots)
        return CompleteCopy(
            self.id, self.relation_version, lsns, self.row_count, self.invisible_commits, self.key_ranges
        )


@dataclass(frozen=True, slots=True)
class Gap:
    """What the stream lacks: everything that was committed behind `start` and up to `end`."""

    start: LSN
    end: LSN
    sentence: str

    def is_before(self, lsn: LSN) -> bool:
        """Say whether a snapshot at an LSN has all that lies in the gap."""
        return lsn + 1 >= self.end

    @property
    def sentence_of_tables(self) -> str:
        """Say what becomes of a table that lacks what lies in it."""
        return (
            f"the stream has a gap from {self.start} to {self.end}: the table stays as of {self.start} until "
            "it is copied anew, which was asked for"
        )


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """Somebody's, or a policy's, wish to have a table copied anew, or the rows of some of its keys."""

    id: str
    name: TableName
    reason: str
    key_ranges: tuple[KeyRange, ...] = ()

    @classmethod
    def of(cls, name: TableName, reason: str, key_ranges: Sequence[KeyRange] = ()) -> "CopyRequest":
        """Return a new request."""
        return cls(uuid4().hex, name, reason, tuple(key_ranges))


def key_range_rows(ranges: Sequence[KeyRange]) -> list[dict[str, list[str]]] | None:
    """Return ranges as a row has them."""
    return [{"first": list(each.first), "last": list(each.last)} for each in ranges] or None


def key_ranges_of(row: Any) -> tuple[KeyRange, ...]:
    found = getattr(row, "key_ranges", None)  # a lake of an older release has none
    return tuple(KeyRange(tuple(each.first), tuple(each.last)) for each in found or ())


def states_of(rows: Sequence[Any]) -> dict[TableName, list[CopyState]]:
    found: dict[TableName, dict[int, CopyState]] = {}
    for row in rows:
        name = TableName(row.schema_name, row.table_name)
        state = found.setdefault(name, {}).setdefault(row.copy_id, CopyState(row.copy_id, name, row.state))
        state.state = row.state
        state.requests = tuple(row.requests or state.requests)
        state.sentence = row.sentence
        if row.state == READING:
            state.relation_id, state.membership = row.relation_id, row.membership
            state.relation_version = row.relation_version
            ranges = tuple(PageRange(r.relation_id, r.filenode, r.first_page, r.end_page) for r in row.ranges)
            reading = SnapshotRanges(LSN(row.lsn), tuple(row.running), row.ranges_before, ranges)
            state.snapshots.append(reading)
            state.key_ranges = key_ranges_of(row)
        elif row.state == DROPPED:
            state.dropped_at = LSN(row.lsn)
        elif row.state == COMPLETE:
            state.row_count = row.row_count
            state.invisible_commits = tuple(LSN(lsn) for lsn in row.late)
    return {name: [states[i] for i in sorted(states)] for name, states in found.items()}
