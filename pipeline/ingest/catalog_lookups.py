"""What the catalog says of relations and types, asked once the transaction that brought them can be seen.

The server sends a transaction before other sessions see what it did: in pieces while it is open, else from
the moment that its commit record is on disk, which is before its end becomes visible, and with a synchronous
standby may be long before. What the catalog says until then is the state from before the transaction.
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
Answer = TypeVar("Answer")
VISIBLE_SECONDS = 3.0
"""How long a transaction is waited for. What it waits for itself may be this very session's progress."""
_PAUSE = 0.02
_TYPE_LOOKS = 10
_TYPE_PAUSE = 0.2  # seconds


class CatalogLookups:
    """Asks the catalog over a session that is opened again where it was lost."""

    def __init__(self, connection: Connection, conninfo: str, opens: Callable[[str], Connection]) -> None:
        self._connection = connection
        self._conninfo = conninfo
        self._open = opens
        self._has_own_session = False
        self._is_held_up = False  # a transaction was waited for in vain

    @property
    def server_version(self) -> int:
        """Return the version of the server."""
        return self._connection.info.server_version

    def close(self) -> None:
        """End the session, where it is another than the one that was given."""
        if self._has_own_session:
            self._connection.close()

    def relation(self, relation: Relation) -> CatalogRelation | None:
        """Return what is seen now; a look-up that fails is recorded as unknown, and capture goes on."""
        try:
            return self._query(read_relation, relation)
        except SlotBusyError:  # another ingest began when the session was lost
            raise
        except SourceError:
            return None

    def relation_after(
        self, relation: Relation, xid: int, *, waits: bool
    ) -> tuple[CatalogRelation | None, bool]:
        """Return what is seen once the transaction can be, and whether it can; `waits` for it, for a time.

        While one is waited for in vain, others are not: a standby that is away holds up each of them.
        """
        deadline = time.monotonic() + (VISIBLE_SECONDS if waits and not self._is_held_up else 0)
        try:
            while not (is_seen := self._query(is_visible, xid)) and time.monotonic() < deadline:
                time.sleep(_PAUSE)
            if is_seen or waits:
                self._is_held_up = not is_seen
            return self._query(read_relation, relation), is_seen
        except SlotBusyError:
            raise
        except SourceError:
            return None, True

    def type(self, oid: int) -> CatalogType | None:
        """Ask the catalog for a type whose values came in binary format; None when it stays away.

        A transaction that made the type is sent a moment before the server lets others see it.
        """
        for _ in range(_TYPE_LOOKS):
            facts = self._query(read_type, oid)
            if facts is not None:
                return facts
            time.sleep(_TYPE_PAUSE)
        return None

    def _query(self, question: Callable[[Connection, Key], Answer], asked: Key) -> Answer:
        """Ask the catalog, once more in a new session where the one at hand was lost."""
        try:
            return question(self._connection, asked)
        except SourceError:
            self._connection.close()
            self._connection = self._open(self._conninfo)
            self._has_own_session = True
            return question(self._connection, asked)
