"""What is recorded of table copies, gaps of the stream and requests, as of one read."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.bronze.copy_states import (
    COMPLETE,
    DROPPED,
    READING,
    CompleteCopy,
    CopyRequest,
    CopyState,
    Gap,
)
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class CopyHistory:
    """The copies of every table, and of keys of it, oldest first; gaps and requests in order.

    `version` is that of `bronze/copies`, -1 if there is none. Requests are all that ever were.
    """

    states: Mapping[TableName, Sequence[CopyState]] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    requests: tuple[CopyRequest, ...] = ()
    version: int = -1

    def last_gap(self, before: LSN) -> Gap | None:
        """Return the last gap that begins before an LSN, None if there is none."""
        return next((gap for gap in reversed(self.gaps) if gap.start < before), None)

    def is_past_gaps(self, copy: CompleteCopy | None) -> bool:
        """Return whether the stream is whole from a copy on; without one, from its beginning on."""
        gaps = self.gaps
        return not gaps or (copy is not None and gaps[-1].is_before(copy.lsns[0]))

    def last(self, name: TableName) -> CopyState | None:
        """Return the newest copy of a whole table, whatever became of it."""
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
            and self.is_past_gaps(last.copy)
            and (last.relation_id, last.membership) == (relation_id, membership)
        )

    def republished_since(self, name: TableName, relation_id: int, membership: int) -> LSN | None:
        """Return the LSN of a table's last copy if the publication has another entry for it since."""
        last = self.last(name)
        if last is None or last.state != COMPLETE or last.relation_id != relation_id:
            return None
        return last.snapshots[0].lsn if last.membership != membership else None

    def newest(self, before: LSN | None = None) -> dict[TableName, CompleteCopy]:
        """Return the newest complete copy of each table; before an LSN, those that silver may show there.

        Such a copy was read before that LSN, and after the last gap before it.
        """
        gap = None if before is None else self.last_gap(before)
        return {
            name: copy
            for name, states in self.states.items()
            for state in states
            if (copy := state.copy)
            and not copy.key_ranges
            and (before is None or copy.end_lsn < before)
            and (gap is None or gap.is_before(copy.lsns[0]))
        }

    def is_older(self, name: TableName, lsn: LSN) -> bool:
        """Return whether a table that is still published was copied before an LSN, or never."""
        copy = self.newest().get(name)
        return not self.is_dropped(name) and (copy is None or copy.lsns[0] < lsn)

    def partial_copies(self, name: TableName, after: CompleteCopy | None) -> list[CompleteCopy]:
        """Return the complete copies of keys of a table, in order, that came after a copy of all its rows."""
        found = (state.copy for state in self.states.get(name, ()) if state.key_ranges)
        return [copy for copy in found if copy and (after is None or copy.id > after.id)]

    def next_id(self) -> int:
        """Return an id above those of all copies."""
        ids = [state.id for states in self.states.values() for state in states]
        return max([time.time_ns() // 1000, *(i + 1 for i in ids)])

    def open_requests(self) -> dict[TableName, list[CopyRequest]]:
        """Return the requests that no copy has answered, by being complete or finding the table dropped."""
        answered = {
            request
            for states in self.states.values()
            for state in states
            if state.state in (COMPLETE, DROPPED)
            for request in state.requests
        }
        found: dict[TableName, list[CopyRequest]] = {}
        for request in self.requests:
            if request.id not in answered:
                found.setdefault(request.name, []).append(request)
        return found
