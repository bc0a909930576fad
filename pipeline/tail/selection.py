"""What of a slot's messages is shown: tables that match, and transactions that are committed.

Pure. A beginning waits until something inside its frame is shown, and its end goes with it. Of committed
transactions only, a prepared one waits in memory for what becomes of it; streams are not asked for then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.config.tables import TableRule
from pipeline.protocol.messages import (
    BeginPrepare,
    CommitPrepared,
    Origin,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
)
from pipeline.table_name import TableName
from pipeline.tail.frames import BEGINNINGS, ENDINGS, TailMessage


class Selection:
    """Chooses messages in their order."""

    def __init__(self, globs: Sequence[str] = (), *, committed_only: bool = False) -> None:
        """Show the tables that one of the `schema.table` globs matches, all where there is none."""
        self._rules = [TableRule(glob) for glob in globs]
        self._committed_only = committed_only
        self._waiting: list[TailMessage] = []  # a beginning of which nothing is shown yet
        self._shown: set[int] = set()  # xids of streams and prepared transactions
        self._hidden: set[int] = set()
        self._prepared: dict[int, list[TailMessage]] = {}

    def select(self, seen: TailMessage) -> Iterator[TailMessage]:
        """Yield what is to be shown now that this message has come."""
        for chosen in self._choose_table(seen) if self._rules else (seen,):
            if self._committed_only:
                yield from self._choose_committed(chosen)
            else:
                yield chosen

    def _choose_table(self, seen: TailMessage) -> Iterator[TailMessage]:
        message = seen.message
        if isinstance(message, BEGINNINGS):
            self._waiting = [seen]
        elif isinstance(message, Origin):
            if self._waiting:
                self._waiting.append(seen)
            else:
                yield seen
        elif isinstance(message, ENDINGS):
            is_shown = not self._waiting and seen.frame is not None
            self._waiting = []
            if isinstance(message, Prepare):
                (self._shown if is_shown else self._hidden).add(message.xid)
            if is_shown:
                yield seen
        elif isinstance(message, StreamCommit | StreamAbort | StreamPrepare):
            if message.xid in self._shown:
                yield seen
            elif isinstance(message, StreamPrepare):
                self._hidden.add(message.xid)
        elif isinstance(message, CommitPrepared | RollbackPrepared):
            # Of one that was prepared before, nobody knows what it holds.
            if message.xid not in self._hidden:
                yield seen
            self._hidden.discard(message.xid)
        elif any(
            rule.matches(TableName(r.namespace or "pg_catalog", r.name))
            for rule in self._rules
            for r in seen.relations
        ):
            yield from self._waiting
            self._waiting = []
            if seen.frame is not None and seen.frame.lsn is None:
                self._shown.add(seen.frame.xid)
            yield seen

    def _choose_committed(self, seen: TailMessage) -> Iterator[TailMessage]:
        message, frame = seen.message, seen.frame
        if isinstance(message, BeginPrepare):
            self._prepared[message.xid] = [seen]
        elif frame is not None and frame.xid in self._prepared:
            self._prepared[frame.xid].append(seen)
        elif isinstance(message, CommitPrepared):
            yield from self._prepared.pop(message.xid, ())
            yield seen
        elif isinstance(message, RollbackPrepared):
            self._prepared.pop(message.xid, None)
        elif not isinstance(message, Prepare):
            yield seen
