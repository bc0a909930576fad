"""Under which names the session at hand sends tables, and the wish for another session where one is old.

Up to PostgreSQL 15 a session that has described a table goes on under the name it had when its schema is
renamed: no Relation message comes. A session that begins beyond the renaming describes it under its new name.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from pipeline.bronze.relation_versions import RelationVersion
from pipeline.postgres.published_tables import Membership
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

MOST_SESSIONS = 5  # for one table that has one name in the stream and another in the catalog
_WAIT = 0.2


class StreamedNames:
    """Written by the thread that reads the stream, read by the one that copies."""

    def __init__(self) -> None:
        self._names: dict[int, TableName] = {}
        self._asked: Counter[tuple[int, TableName, TableName]] = Counter()
        self._beyond: LSN | None = None
        self._moved = threading.Condition()

    def describe(self, version: RelationVersion) -> None:
        """Note what a Relation message calls a table."""
        self._names[version.relation.oid] = TableName(version.schema_name, version.table_name)

    def forget(self) -> None:
        """Forget the names: another session begins, which describes every table anew."""
        self._names.clear()

    def renamed(self, published: Mapping[TableName, Membership]) -> dict[TableName, TableName]:
        """Return the published tables that the session sends under another name, with that name."""
        names = self._names.copy()
        return {
            name: names[now.relation_id]
            for name, now in published.items()
            if names.get(now.relation_id, name) != name
        }

    def may_request_session(self, relation_id: int, name: TableName, streamed: TableName) -> bool:
        """Say whether another session may help a table, and count it: a few times at the most."""
        self._asked[relation_id, name, streamed] += 1
        return self._asked[relation_id, name, streamed] <= MOST_SESSIONS

    def is_due(self, position: LSN) -> bool:
        """Say whether a session was asked for that begins where bronze is."""
        return self._beyond is not None and self._beyond <= position

    def renewed(self) -> None:
        """Note that another session has begun."""
        self.forget()
        with self._moved:
            self._beyond = None
            self._moved.notify_all()

    def request_session(self, beyond: LSN, stop: threading.Event) -> bool:
        """Ask for a session that begins at an LSN or beyond, wait for it, say whether it has begun."""
        with self._moved:
            self._beyond = beyond
            while self._beyond is not None and not stop.is_set():
                self._moved.wait(_WAIT)
            return self._beyond is None
