"""Look-ups of relations and types in the catalog, once other sessions can see the transaction that made them.

The server sends a transaction before other sessions see what it did: in pieces while it is open, else from
the moment that its commit record is on disk, which is before it becomes visible, and with a synchronous
standby may be long before. Until then the catalog has the state from before the transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pipeline.errors import SlotBusyError, SourceError
from pipeline.postgres.binary_format import read_type
from pipeline.postgres.catalog import CatalogRelation, is_visible, read_relation
from pipeline.postgres.connection import Connection
from pipeline.protocol.binary.converters import CatalogType
from pipeline.protocol.messages import Relation

Key = TypeVar("Key")
Found = TypeVar("Found")
VISIBLE_SECONDS = 3.0
"""How long to wait for a transaction, which may itself wait for the progress of this very run."""
_PAUSE = 0.02  # seconds
_TYPE_READS = 10
_TYPE_PAUSE = 0.2


class CatalogLookups:
    """Reads the catalog over a session that is opened again if it is lost."""

    def __init__(self, connection: Connection, conninfo: str, connect: Callable[[str], Connection]) -> None:
        self._connection = connection
        self._conninfo = conninfo
        self._connect = connect
        self._has_own_session = False
        self._waited_in_vain = False  # for the last transaction

    def close(self) -> None:
        """End the session, unless it is the one that was given."""
        if self._has_own_session:
            self._connection.close()

    def read_relation(self, relation: Relation) -> CatalogRelation | None:
        """Return a relation as it is visible now; None if the look-up fails, and capture goes on."""
        try:
            return self._query(read_relation, relation)
        except SlotBusyError:  # another ingest began when the session was lost
            raise
        except SourceError:
            return None

    def read_relation_after(
        self, relation: Relation, xid: int, *, waits: bool
    ) -> tuple[CatalogRelation | None, bool]:
        """Return a relation and whether its transaction is visible; `waits` for a time until it is.

        After one wait in vain there are no others until a transaction is visible at once: a standby that is
        away holds up each of them.
        """
        deadline = time.monotonic() + (VISIBLE_SECONDS if waits and not self._waited_in_vain else 0)
        try:
            while not (is_visible_now := self._query(is_visible, xid)) and time.monotonic() < deadline:
                time.sleep(_PAUSE)
            if is_visible_now or waits:
                self._waited_in_vain = not is_visible_now
            return self._query(read_relation, relation), is_visible_now
        except SlotBusyError:
            raise
        except SourceError:
            return None, True

    def read_type(self, oid: int) -> CatalogType | None:
        """Return a type whose values came in binary format; None if the catalog does not have it.

        A transaction that made the type is sent a moment before other sessions can see it.
        """
        for _ in range(_TYPE_READS):
            found = self._query(read_type, oid)
            if found is not None:
                return found
            time.sleep(_TYPE_PAUSE)
        return None

    def _query(self, read: Callable[[Connection, Key], Found], key: Key) -> Found:
        """Read the catalog, once more in a new session if the one at hand was lost."""
        try:
            return read(self._connection, key)
        except SourceError:
            self._connection.close()
            self._connection = self._connect(self._conninfo)
            self._has_own_session = True
            return read(self._connection, key)
