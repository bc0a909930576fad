"""The state that the thread that captures the stream and the one that copies tables share.

Capture sets how far bronze is complete and under which names its session sends tables. A copy sets how far
capture must read before it may end, and requests another session of the stream if a name is old: up to
PostgreSQL 15 a session that has described a table continues to use that name when its schema is renamed, and
sends no Relation message. A session that begins later describes it under its new name.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from pipeline.bronze.relations import RelationVersion
from pipeline.postgres.publication import Membership
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

MAX_SESSIONS = 5  # for one table that has one name in the stream and another in the catalog
_WAIT = 0.2  # seconds


class CaptureState:
    """Shared by the two threads of one run of ingest."""

    def __init__(self) -> None:
        self.captured_offset = INVALID
        self.required_lsn = INVALID
        """The LSN up to which capture must read, so that what was copied is complete."""
        self.stop_copies = threading.Event()
        self.interrupt: Callable[[], None] = lambda: None
        """Ends capture's wait for the server, so that it reads this state; capture sets it."""
        self._changed = threading.Condition()
        self._names: dict[int, TableName] = {}  # by oid
        self._session_requests: Counter[tuple[int, TableName, TableName]] = Counter()
        self._session_lsn: LSN | None = None  # the earliest LSN at which a requested session may begin

    # by the thread that captures

    def set_captured_offset(self, lsn: LSN) -> None:
        """Set the LSN up to which bronze is complete."""
        with self._changed:
            self.captured_offset = lsn
            self._changed.notify_all()

    def describe(self, version: RelationVersion) -> None:
        """Set the name under which the session sends a table."""
        self._names[version.relation.oid] = TableName(version.schema_name, version.table_name)

    def forget_names(self) -> None:
        """Forget the names: another session describes every table again."""
        self._names.clear()

    def is_session_due(self, offset: LSN) -> bool:
        """Return whether a session is requested that may begin at an offset."""
        return self._session_lsn is not None and self._session_lsn <= offset

    def start_session(self) -> None:
        """Set that another session has begun."""
        self.forget_names()
        with self._changed:
            self._session_lsn = None
            self._changed.notify_all()

    def stop(self) -> None:
        """End all waits of the thread that copies, permanently."""
        self.stop_copies.set()
        with self._changed:
            self._changed.notify_all()

    # by the thread that copies

    def require(self, lsn: LSN) -> None:
        """Require capture to read up to an LSN before the run ends."""
        if lsn > self.required_lsn:
            self.required_lsn = lsn
            self.interrupt()

    def wait_past(self, lsn: LSN) -> bool:
        """Wait until bronze is complete past an LSN; return whether it is."""
        with self._changed:
            while self.captured_offset <= lsn and not self.stop_copies.is_set():
                self._changed.wait(_WAIT)
        return self.captured_offset > lsn

    def renamed(self, published: Mapping[TableName, Membership]) -> dict[TableName, TableName]:
        """Return the published tables that the session sends under another name, with that name."""
        names = self._names.copy()
        return {
            name: names[now.relation_id]
            for name, now in published.items()
            if names.get(now.relation_id, name) != name
        }

    def may_request_session(self, relation_id: int, name: TableName, streamed: TableName) -> bool:
        """Count that a session is to be requested for a table; return whether that is worth it still."""
        self._session_requests[relation_id, name, streamed] += 1
        return self._session_requests[relation_id, name, streamed] <= MAX_SESSIONS

    def request_session(self, start_lsn: LSN) -> bool:
        """Request a session that begins at an LSN or later, and wait for it; return whether it has begun."""
        with self._changed:
            self._session_lsn = start_lsn
            self.interrupt()
            while self._session_lsn is not None and not self.stop_copies.is_set():
                self._changed.wait(_WAIT)
            return self._session_lsn is None
