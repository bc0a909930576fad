"""State of table copies, of requests for them and of gaps in the stream, as of one read of bronze.

A table copy contains all rows of a table, or the rows of some keys (a partial resync). Its rows are in bronze
with op `R`, at the LSN of the snapshot under which they were read; a copy that was interrupted and resumed
has several snapshots. The rows of one snapshot are followed by every change that it does not contain: those
after its LSN, and commits before it that were not visible yet (`invisible_commits`). With several snapshots,
rows are inserts among the changes: the newest row of a key and the changes after it count. The rows of a
partial resync replace all rows of their keys in silver. Changes that they already contain are applied once
more, with the same result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from uuid import uuid4

from pipeline.bronze.source_moves import SourceMoves
from pipeline.delta.sql import EPOCH, to_microseconds
from pipeline.key_ranges import KeyRange
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

_TYPE_CHANGE = "type change at "
_COMPARISON = "compare with the source after the gap up to "
_REWRITE = "compare with the source after the rewrite or type change before "
_REPAIR = "it differs from the source"
_PUBLICATION = "compare with the source after the publication changed before "
_ENTRY = ", entry "
READING, COMPLETE, ABANDONED, DROPPED, GAP = "reading", "complete", "abandoned", "dropped", "gap"
COMPARED, MOVED = "compared", "moved"
_ADOPTION = "adopt "


@dataclass(frozen=True, slots=True)
class Adoption:
    """A Delta table whose rows are compared with the source; its `ignored` columns are not read."""

    path: str
    version: int
    ignored: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """The reason of a request for this adoption."""
        named = {"path": self.path, "version": self.version, "ignored": list(self.ignored)}
        return _ADOPTION + json.dumps(named, ensure_ascii=False)

    @classmethod
    def of_reason(cls, reason: str) -> Adoption | None:
        """Return the adoption that a reason names, None if the request is for something else."""
        if not reason.startswith(_ADOPTION):
            return None
        named = json.loads(reason.removeprefix(_ADOPTION))
        return cls(named["path"], named["version"], tuple(named["ignored"]))


def adopts_no_protected(name: TableName) -> str:
    """Return the sentence about a table with protected columns, whose values an adoption would read."""
    return (
        f"Table {name} has columns that are left out, hashed or masked, and the Delta table has their "
        "values. Let it be copied: request that with pgdelta resync."
    )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Pages [first_page, end_page) of one leaf, and the file node that they were in."""

    relation_id: int
    filenode: int
    first_page: int
    end_page: int


@dataclass(frozen=True, slots=True)
class SnapshotChunks:
    """What a copy reads under one snapshot.

    `chunks_before` is how many chunks of the table bronze held before, of earlier copies too.
    `running` are the xids of transactions that the snapshot does not see though they began before it.
    """

    lsn: LSN
    running: tuple[int, ...]
    chunks_before: int
    chunks: tuple[Chunk, ...]
    recorded_at: datetime = EPOCH


@dataclass(frozen=True, slots=True)
class CompleteCopy:
    """One complete copy; `lsns` are those of its snapshots, in order.

    `micros` is when the last one was recorded, in microseconds since 1970.
    """

    id: int
    version: int  # the relation version of its rows
    lsns: tuple[LSN, ...]
    row_count: int
    invisible_commits: tuple[LSN, ...] = ()  # commit LSNs; none if there are several snapshots
    key_ranges: tuple[KeyRange, ...] = ()  # of a partial resync
    micros: int = 0

    @property
    def is_whole(self) -> bool:
        """Return whether all rows are of one snapshot, so that no two have the same key."""
        return len(self.lsns) == 1

    @property
    def end_lsn(self) -> LSN:
        """Return the LSN of the last snapshot: bronze must be complete beyond it."""
        return self.lsns[-1]

    @property
    def lsn(self) -> LSN:
        """Return the rows' LSN in the order of changes: before all that a single snapshot does not see."""
        return LSN(min((self.lsns[0], *(lsn - 1 for lsn in self.invisible_commits))))

    def condition(self) -> str:
        """Return SQL that is true for the copy's rows and for the changes that follow them."""
        if self.key_ranges:
            return f"op = 'R' AND copy_id = {self.id} AND commit_lsn = {int(self.end_lsn)}"
        invisible = (
            f" OR commit_lsn IN ({_numbers(self.invisible_commits)})" if self.invisible_commits else ""
        )
        return (
            f"commit_lsn >= {int(self.lsn)} AND CASE WHEN op = 'R' THEN copy_id = {self.id} "
            f"AND commit_lsn IN ({_numbers(self.lsns)}) ELSE commit_lsn > {int(self.lsns[0])}{invisible} END"
        )

    def commit_lsn(self) -> str:
        """Return SQL for the commit LSN by which rows and changes are in order."""
        if not self.invisible_commits:
            return "commit_lsn"
        return f"CASE WHEN op = 'R' THEN {int(self.lsn)} ELSE commit_lsn END"


def _numbers(lsns: Sequence[LSN]) -> str:
    return ", ".join(str(int(lsn)) for lsn in lsns)


@dataclass(slots=True)
class CopyState:
    """One copy of a table, or of some of its keys, with its snapshots in order."""

    id: int
    name: TableName
    state: str
    relation_id: int | None = None
    membership: int | None = None  # the entry of the publication that it belongs to
    relation_version: int | None = None
    snapshots: list[SnapshotChunks] = field(default_factory=list)
    requests: tuple[str, ...] = ()
    row_count: int = 0
    invisible_commits: tuple[LSN, ...] = ()
    sentence: str | None = None
    dropped_at: LSN = INVALID
    key_ranges: tuple[KeyRange, ...] = ()

    @property
    def chunk_count(self) -> int:
        """Return how many chunks the copy has."""
        last = self.snapshots[-1]
        return last.chunks_before + len(last.chunks) - self.snapshots[0].chunks_before

    @property
    def copy(self) -> CompleteCopy | None:
        """Return the copy that silver may begin with, None if it is not complete."""
        if self.state != COMPLETE or self.relation_version is None:
            return None
        lsns = tuple(snapshot.lsn for snapshot in self.snapshots)
        return CompleteCopy(
            self.id,
            self.relation_version,
            lsns,
            self.row_count,
            self.invisible_commits,
            self.key_ranges,
            to_microseconds(self.snapshots[-1].recorded_at),
        )


@dataclass(frozen=True, slots=True)
class Gap:
    """What the stream lacks: everything that was committed in (start, end].

    After a fork the source is another server, or an earlier state of it that went on: its transactions may
    have the xids of other ones before.
    """

    start: LSN
    end: LSN
    sentence: str
    is_fork: bool = False

    def is_before(self, lsn: LSN) -> bool:
        """Return whether a snapshot at an LSN has all that lies in the gap."""
        return lsn + 1 >= self.end

    @property
    def table_sentence(self) -> str:
        """Return the sentence about a table that lacks the changes of the gap."""
        return (
            f"The stream has a gap from {self.start} to {self.end}. The table keeps its state from before it "
            "until the resync that was requested is complete."
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table has no gap up to `gap_end` any more: it was compared with the source as of a snapshot.

    After a rewrite of the table, another text of its values, or a change of the publication, `gap_end` is the
    LSN before which that was. The keys that differed were copied under the same snapshot. `relation_id` and
    `membership` are those of the table there. With `gap_end` 0 nothing was compared: the table has another
    entry in the publication, and no change was missed.
    """

    gap_end: LSN
    lsn: LSN  # of the snapshot
    relation_id: int
    membership: int
    requests: tuple[str, ...] = ()
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A person's or a policy's request for a copy of a table, or of the rows of some of its keys."""

    id: str
    name: TableName
    reason: str
    key_ranges: tuple[KeyRange, ...] = ()

    @classmethod
    def of(cls, name: TableName, reason: str, key_ranges: Sequence[KeyRange] = ()) -> CopyRequest:
        """Return a new request."""
        return cls(uuid4().hex, name, reason, tuple(key_ranges))

    @classmethod
    def after_type_change(cls, name: TableName, lsn: LSN) -> CopyRequest:
        """Return a new request for a table that silver shows up to a type change, which it cannot follow."""
        return cls.of(name, f"{_TYPE_CHANGE}{lsn}")

    @classmethod
    def after_gap(cls, name: TableName, gap_end: LSN) -> CopyRequest:
        """Return a new request to compare a table after a gap and copy what differs."""
        return cls.of(name, f"{_COMPARISON}{gap_end}")

    @classmethod
    def after_rewrite(cls, name: TableName, lsn: LSN) -> CopyRequest:
        """Return a new request to compare a table that was rewritten before an LSN, and copy what differs."""
        return cls.of(name, f"{_REWRITE}{lsn}")

    @classmethod
    def after_publication(cls, name: TableName, lsn: LSN, entry: int = 0) -> CopyRequest:
        """Return a new request to compare a table that may not have been published for a time before an LSN.

        `entry` is its entry in the publication since, if that changed.
        """
        return cls.of(name, f"{_PUBLICATION}{lsn}{_ENTRY}{entry}")

    @classmethod
    def repair(cls, name: TableName, key_ranges: Sequence[KeyRange]) -> CopyRequest:
        """Return a new request for the keys that a comparison found to differ, or for all without keys."""
        return cls.of(name, _REPAIR, key_ranges)

    @property
    def repairs(self) -> bool:
        """Whether the request is for all rows that a comparison found to differ."""
        return self.reason == _REPAIR

    @property
    def compares(self) -> bool:
        """Whether the table is compared first, so that only what differs is copied."""
        return self.closes_gap or self.rewrite is not None

    @property
    def entry(self) -> int | None:
        """The entry in the publication whose change the request follows, None if it is for something else."""
        if not self.reason.startswith(_PUBLICATION):
            return None
        return int(self.reason.rpartition(_ENTRY)[2])

    @property
    def closes_gap(self) -> bool:
        """Whether the table is compared after a gap."""
        return self.reason.startswith(_COMPARISON)

    @property
    def rewrite(self) -> LSN | None:
        """The LSN before which rows changed without a message in a table that is to be compared, or None.

        The table was rewritten, or it was not published for a time.
        """
        text = self.reason.partition(_ENTRY)[0]
        for prefix in (_REWRITE, _PUBLICATION):
            if text.startswith(prefix):
                return LSN.parse(text.removeprefix(prefix))
        return None

    @property
    def adoption(self) -> Adoption | None:
        """The Delta table that is to be adopted, None if the request is for something else."""
        return Adoption.of_reason(self.reason)

    @property
    def type_change(self) -> LSN | None:
        """The LSN of the type change that the request is for, None if it is for something else."""
        if not self.reason.startswith(_TYPE_CHANGE):
            return None
        return LSN.parse(self.reason.removeprefix(_TYPE_CHANGE))


def rewritten_before(requests: Sequence[CopyRequest]) -> LSN | None:
    """Return the last LSN of `rewrite` of all requests, None if some request is for something else."""
    lsns = [request.rewrite for request in requests if request.rewrite is not None]
    return max(lsns) if lsns and len(lsns) == len(requests) else None


@dataclass(frozen=True)
class CopyHistory:
    """The copies of every table, and of keys of it, oldest first; gaps and requests in order.

    `version` is that of `bronze/copies`, -1 if there is none. Requests are all that ever were.
    """

    states: Mapping[TableName, Sequence[CopyState]] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    requests: tuple[CopyRequest, ...] = ()
    version: int = -1
    comparisons: Mapping[TableName, Sequence[Comparison]] = field(default_factory=dict)
    moves: SourceMoves = field(default_factory=SourceMoves)

    def last_gap(self, before: LSN) -> Gap | None:
        """Return the last gap that begins before an LSN, None if there is none."""
        return next((gap for gap in reversed(self.gaps) if gap.start < before), None)

    def xids_since(self, lsn: LSN) -> LSN:
        """Return the LSN from which on, up to that of a snapshot, an xid is that of one transaction."""
        forks = [*(gap.end for gap in self.gaps if gap.is_fork), *(table.lsn for table in self.moves.tables)]
        return max((end for end in forks if end <= lsn + 1), default=INVALID)

    def open_gap(self, name: TableName, copy: CompleteCopy | None, before: LSN | None = None) -> Gap | None:
        """Return the last gap that a table's copy does not cover and no comparison closed, None if none.

        Before an LSN, a gap that begins there or later does not count, nor does a later comparison.
        """
        newest = self.gaps[-1] if self.gaps else None
        gap = newest if before is None else self.last_gap(before)
        if gap is None or (copy is not None and gap.is_before(copy.lsns[0])):
            return None
        return None if self.is_compared(name, gap, before) else gap

    def is_compared(self, name: TableName, gap: Gap, before: LSN | None = None) -> bool:
        """Return whether a comparison closed a gap of a table; before an LSN, one of a snapshot before it."""
        return any(
            each.gap_end >= gap.end and (before is None or each.lsn < before)
            for each in self.comparisons.get(name, ())
        )

    def is_moved(self, name: TableName, relation_id: int) -> bool:
        """Return whether the last gap is a move of the source, to a server where a table has this oid."""
        return any(
            (table.name, table.relation_id, table.lsn) == (name, relation_id, self.gaps[-1].end)
            for table in self.moves.tables
            if self.gaps
        )

    def membership(self, name: TableName) -> tuple[int | None, int | None]:
        """Return the oid and the entry in the publication that a table had when it was copied or compared."""
        last, comparisons = self.last(name), self.comparisons.get(name, ())
        copy = last.copy if last else None
        if comparisons and (copy is None or copy.end_lsn < comparisons[-1].lsn):
            return comparisons[-1].relation_id, comparisons[-1].membership
        return (last.relation_id, last.membership) if last else (None, None)

    def last(self, name: TableName) -> CopyState | None:
        """Return the newest copy of all rows of a table, in whatever state."""
        states = [state for state in self.states.get(name, ()) if not state.key_ranges]
        return states[-1] if states else None

    def unfinished(self, name: TableName) -> list[CopyState]:
        """Return the copies of a table, or of keys of it, that have begun and not ended."""
        return [state for state in self.states.get(name, ()) if state.state == READING]

    def is_dropped(self, name: TableName) -> bool:
        """Return whether a table was not published any more when it was last to be copied."""
        last = self.last(name)
        return last is not None and last.state == DROPPED

    def returning(self, newest: Mapping[TableName, CompleteCopy], end_lsn: LSN) -> set[TableName]:
        """Return the tables that were dropped before an LSN, are back, and have no newer copy in `newest`."""
        found = set()
        for name, states in self.states.items():
            whole = [state for state in states if not state.key_ranges]
            dropped = [s.id for s in whole if s.state == DROPPED and s.dropped_at <= end_lsn]
            is_back = bool(dropped) and whole[-1].state != DROPPED
            if is_back and (name not in newest or newest[name].id < dropped[-1]):
                found.add(name)
        return found

    def is_complete(self, name: TableName, relation_id: int, membership: int) -> bool:
        """Return whether a table as it is published now has a copy, and was published ever since."""
        last = self.last(name)
        return (
            last is not None
            and last.state == COMPLETE
            and self.open_gap(name, last.copy) is None
            and self.membership(name) == (relation_id, membership)
        )

    def republished_since(self, name: TableName, relation_id: int, membership: int) -> LSN | None:
        """Return the LSN of a table's last copy if the publication has another entry for it since."""
        last = self.last(name)
        oid, entry = self.membership(name)
        if last is None or last.state != COMPLETE or oid != relation_id:
            return None
        return last.snapshots[0].lsn if entry != membership else None

    def newest(self, before: LSN | None = None) -> dict[TableName, CompleteCopy]:
        """Return the newest complete copy of each table; before an LSN, those that silver may show there.

        Such a copy was read before that LSN, and after the last gap before it unless a comparison closed it.
        """
        return {
            name: copy
            for name, states in self.states.items()
            for state in states
            if (copy := state.copy)
            and not copy.key_ranges
            and (before is None or copy.end_lsn < before)
            and (before is None or self.open_gap(name, copy, before) is None)
        }

    def is_older(self, name: TableName, lsn: LSN) -> bool:
        """Return whether a table that is still published was copied or compared before an LSN, or never."""
        return not self.is_dropped(name) and self._whole(name) < lsn

    def _whole(self, name: TableName) -> LSN:
        """Return the LSN of the snapshot at which all rows were last copied or compared."""
        copies = (state.copy for state in self.states.get(name, ()) if not state.key_ranges)
        lsns = [copy.lsns[0] for copy in copies if copy]
        compared = (each.lsn for each in self.comparisons.get(name, ()) if each.gap_end)
        return max([*lsns[-1:], *compared], default=INVALID)

    def settled(self, name: TableName) -> LSN:
        """Return the LSN up to which no change of a table was lost: of a copy, a comparison or a repair."""
        repairs = {request.id for request in self.requests if request.name == name and request.repairs}
        copies = (
            s.copy for s in self.states.get(name, ()) if s.key_ranges and repairs.intersection(s.requests)
        )
        return max([self._whole(name), *(copy.lsns[0] for copy in copies if copy)])

    def whole_copies(self, name: TableName, last: CompleteCopy) -> list[CompleteCopy]:
        """Return the complete copies of all rows of a table, in order, up to one of them."""
        found = (state.copy for state in self.states.get(name, ()) if not state.key_ranges)
        copies = [copy for copy in found if copy and (copy.end_lsn, copy.id) <= (last.end_lsn, last.id)]
        return sorted(copies, key=lambda copy: (copy.end_lsn, copy.id))

    def partial_copies(self, name: TableName, after: CompleteCopy | None) -> list[CompleteCopy]:
        """Return the complete copies of keys of a table, in order, that came after a copy of all its rows."""
        found = (state.copy for state in self.states.get(name, ()) if state.key_ranges)
        return [copy for copy in found if copy and (after is None or copy.id > after.id)]

    def next_id(self) -> int:
        """Return an id above those of all copies."""
        ids = [state.id for states in self.states.values() for state in states]
        return max([time.time_ns() // 1000, *(i + 1 for i in ids)])

    @cached_property
    def open_requests(self) -> Mapping[TableName, Sequence[CopyRequest]]:
        """The requests that no copy has answered, by being complete or finding the table dropped."""
        answered = {
            request
            for states in self.states.values()
            for state in states
            if state.state in (COMPLETE, DROPPED)
            for request in state.requests
        }
        answered |= {id_ for found in self.comparisons.values() for each in found for id_ in each.requests}
        found: dict[TableName, list[CopyRequest]] = {}
        for request in self.requests:
            if request.id not in answered:
                found.setdefault(request.name, []).append(request)
        return found
