"""Select the messages to show: those of matching tables, or of committed transactions only.

No I/O. The beginning of a frame is held back until a message inside it is shown, and its end is shown with
it. With committed transactions only, a prepared transaction is kept in memory until it is committed or rolled
back; streaming is off then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.protocol.messages import (
    BeginPrepare,
    CommitPrepared,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
)
from pipeline.table_name import TableGlob, TableName
from pipeline.tail.frames import BEGINNINGS, ENDINGS, TailMessage


class Selection:
    """Select messages in their order."""

    def __init__(self, globs: Sequence[str] = (), *, committed_only: bool = False) -> None:
        """Show the tables that one of the `schema.table` globs matches; no glob matches all."""
        self._globs = [TableGlob(glob) for glob in globs]
        self._committed_only = committed_only
        self._held_back: list[TailMessage] = []  # the beginning of a frame, and its origin
        # xids of streams and prepared transactions
        self._shown_xids: set[int] = set()
        self._hidden_xids: set[int] = set()
        self._prepared: dict[int, list[TailMessage]] = {}

    def select(self, tail_message: TailMessage) -> Iterator[TailMessage]:
        """Yield the messages that are to be shown now, after this one was received."""
        for selected in self._select_table(tail_message) if self._globs else (tail_message,):
            if self._committed_only:
                yield from self._select_committed(selected)
            else:
                yield selected

    def _select_table(self, tail_message: TailMessage) -> Iterator[TailMessage]:
        message = tail_message.message
        if isinstance(message, BEGINNINGS):
            self._held_back = [tail_message]
        elif isinstance(message, Origin):
            if self._held_back:
                self._held_back.append(tail_message)
            else:
                yield tail_message
        elif isinstance(message, ENDINGS):
            is_shown = not self._held_back and tail_message.frame is not None
            self._held_back = []
            if isinstance(message, Prepare):
                (self._shown_xids if is_shown else self._hidden_xids).add(message.xid)
            if is_shown:
                yield tail_message
        elif isinstance(message, StreamCommit | StreamAbort | StreamPrepare):
            if message.xid in self._shown_xids:
                yield tail_message
            elif isinstance(message, StreamPrepare):
                self._hidden_xids.add(message.xid)
        elif isinstance(message, CommitPrepared | RollbackPrepared):
            # The tables of one that was prepared in an earlier session are unknown.
            if message.xid not in self._hidden_xids:
                yield tail_message
            self._hidden_xids.discard(message.xid)
        elif any(self._matches(relation) for relation in tail_message.relations):
            yield from self._held_back
            self._held_back = []
            if tail_message.frame is not None and tail_message.frame.lsn is None:
                self._shown_xids.add(tail_message.frame.xid)
            yield tail_message

    def _matches(self, relation: Relation) -> bool:
        name = TableName(relation.namespace or "pg_catalog", relation.name)
        return any(glob.matches(name) for glob in self._globs)

    def _select_committed(self, tail_message: TailMessage) -> Iterator[TailMessage]:
        message, frame = tail_message.message, tail_message.frame
        if isinstance(message, BeginPrepare):
            self._prepared[message.xid] = [tail_message]
        elif frame is not None and frame.xid in self._prepared:
            self._prepared[frame.xid].append(tail_message)
        elif isinstance(message, CommitPrepared):
            yield from self._prepared.pop(message.xid, ())
            yield tail_message
        elif isinstance(message, RollbackPrepared):
            self._prepared.pop(message.xid, None)
        elif not isinstance(message, Prepare):
            yield tail_message
