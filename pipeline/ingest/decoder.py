"""Decode the messages of the server into rows of the spool, with relation versions from the catalog.

Committed transactions that bronze already has are skipped. A relation is read from the catalog each time the
server describes it. The server sends a transaction before other sessions can see it: in segments while it is
open, or as soon as its commit record is on disk (with a synchronous standby, possibly long before it is
visible). Until then the catalog shows the state before the transaction. A relation that a stream describes is
therefore read again at the commit, and recorded only if the stream commits. After any other transaction, the
server describes the relation again in the next one. The rules of protected columns wait for the end of a
stream, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from pipeline.bronze.protection import ColumnProtection
from pipeline.bronze.relations import RelationVersion, pending_version, relation_version
from pipeline.bronze.spool import Spool
from pipeline.errors import SlotBusyError, SourceError
from pipeline.postgres.attributes import TableAttributes, read_attributes
from pipeline.postgres.binary_format import has_cents, read_type
from pipeline.postgres.catalog import CatalogRelation, is_visible, read_relation
from pipeline.postgres.connection import Connection, connect
from pipeline.protocol import events
from pipeline.protocol.binary.converters import CatalogType, Types
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import Relation
from pipeline.protocol.plain_transactions import find_runs, type_bytes
from pipeline.protocol.transactions import Assembler
from pipeline.table_copy.capture_state import CaptureState

Key = TypeVar("Key")
Found = TypeVar("Found")
VISIBLE_SECONDS = 3.0
"""How long to wait for a transaction, which may itself wait for the progress of this very run."""
_PAUSE = 0.02  # seconds
_TYPE_READS = 10
_TYPE_PAUSE = 0.2


class Decoder:
    """Decodes the messages of one run, in the order of the server."""

    def __init__(
        self,
        spool: Spool,
        connection: Connection,
        conninfo: str,
        state: CaptureState | None = None,
        protection: ColumnProtection | None = None,
        *,
        connect: Callable[[str], Connection] = connect,
    ) -> None:
        """Read relations over `connection`; if it is lost, `connect` opens another."""
        self._spool = spool
        self._state = state or CaptureState()
        self._protection = protection
        self._catalog = CatalogLookups(connection, conninfo, connect)
        version = connection.info.server_version
        self._types = Types(version, self._catalog.read_type, has_cents=has_cents(connection))
        self._assembler = Assembler()
        self._session = 0
        self._is_skipping = False
        self._began_lsn = INVALID  # of the transaction in progress
        self._began: events.Began | events.BeganPrepare | None = None

    def close(self) -> None:
        """Close the session that reads relations, unless the caller opened it."""
        self._catalog.close()

    @property
    def is_between_transactions(self) -> bool:
        """Return whether no transaction is in progress; streams may be open."""
        return not self._assembler.in_transaction

    def end_session(self) -> None:
        """Treat the next messages as those of another session of the server, whatever its number."""
        self._session = 0

    def complete_lsn(self, received_lsn: LSN) -> LSN:
        """Return the LSN up to which all committed transactions are decoded, given what was received."""
        return min(received_lsn, self._began_lsn) if self._assembler.in_transaction else received_lsn

    def decode(self, messages: Sequence[bytes], session: int) -> None:
        """Decode messages of a session of the server; each session begins from nothing."""
        if session != self._session:
            # Every relation is described and every open transaction streamed again.
            self._session = session
            self._state.forget_names()
            self._assembler = Assembler()
            self._spool.streams.discard()
        kinds, position = type_bytes(messages), 0
        for start, end in find_runs(kinds):
            self._decode_each(messages[position:start])
            run, position = messages[start:end], end
            plain = self._assembler.receive_plain(run, kinds[start:end], self._spool.offset)
            if plain is None:
                self._decode_each(run)
            else:
                self._spool.add_transactions(plain)
        self._decode_each(messages[position:])

    def _decode_each(self, messages: Sequence[bytes]) -> None:
        receive = self._assembler.receive
        add_change, add_streamed = self._spool.add_change, self._spool.streams.add_change
        for message in messages:
            event = receive(message)
            if event.__class__ is events.Change:
                if not self._is_skipping:
                    add_change(event)
            elif event.__class__ is events.StreamedChange:
                add_streamed(event)
            elif event is not None:
                self._handle(event)

    def _handle(self, event: events.Event) -> None:
        spool = self._spool
        match event:
            case events.Began():
                self._begin(event, event.commit_lsn)
            case events.Committed():
                if not self._is_skipping:
                    spool.commit(event)
                self._is_skipping = False
            case events.Described():
                self._describe(event)
            case events.Truncation() if not self._is_skipping:
                spool.add_truncation(event)
            case events.Emitted() if event.in_transaction:
                if not self._is_skipping:
                    spool.add_message(event)
            case events.Emitted():
                if event.message.lsn > spool.offset:
                    spool.add_message(event)
            case events.StreamStarted():
                spool.streams.start(event)
            case events.StreamAborted():
                spool.streams.abort(event)
            case events.StreamedTruncation():
                spool.streams.add_truncation(event)
            case events.StreamedEmitted():
                spool.streams.add_message(event)
            case events.StreamCommitted():
                described = self._settled(event)
                if event.commit_lsn < spool.offset:
                    # Its rows are in bronze already; the server does not describe its relations again.
                    spool.skip_stream(event, described)
                else:
                    spool.commit_stream(event, described)
                self._set_names(described)
            case events.BeganPrepare():
                # The server may send it long after: one that was prepared before the slot became two-phase is
                # sent at its COMMIT PREPARED. One that is stored already is not stored again.
                self._begin(event, event.prepare_lsn, may_skip=False)
            case events.Prepared():
                spool.prepare(event)
            case events.StreamPrepared():
                described = self._settled(event)
                self._set_names(described)
                spool.prepare_stream(event, described)
            case events.CommittedPrepared() | events.RolledBackPrepared():
                spool.end_prepared(event)

    def _begin(self, began: events.Began | events.BeganPrepare, lsn: LSN, *, may_skip: bool = True) -> None:
        # The record of a commit starts before its end, and bronze's offset is at the end of one.
        self._is_skipping = may_skip and lsn < self._spool.offset
        self._began, self._began_lsn = began, lsn
        self._spool.begin(began)

    def _describe(self, described: events.Described) -> None:
        relation, xid = described.relation, described.xid
        if xid is None:
            assert self._began is not None
            waits = isinstance(self._began, events.Began) and not self._is_skipping
            found, _ = self._catalog.read_relation_after(relation, self._began.xid, waits=waits)
            version = self._version(relation, found, self._began.xid, self._began_lsn)
        elif self._protection is not None and self._protection.concerns(relation):
            version = pending_version(relation, self._began_lsn, self._types)
        else:
            found = self._catalog.read_relation(relation, xid)
            version = relation_version(relation, found, self._began_lsn, self._types)
        self._spool.describe(version, xid)
        if xid is None:
            self._set_names([version])

    def _version(
        self, relation: Relation, found: CatalogRelation | None, xid: int, lsn: LSN
    ) -> RelationVersion:
        """Return the version of a relation that a transaction described, which commits at an LSN."""
        protection = None
        if self._protection is not None and self._protection.concerns(relation):
            table = self._catalog.read_attributes(relation.oid, xid)
            protection = self._protection.protect_sent(relation, found, table, lsn)
        return relation_version(relation, found, lsn, self._types, protection)

    def _set_names(self, versions: Sequence[RelationVersion]) -> None:
        for version in versions:
            self._state.describe(version)

    def _settled(self, ended: events.StreamCommitted | events.StreamPrepared) -> list[RelationVersion]:
        """Read the relations that a stream described once more after its commit; return their versions.

        The catalog has the last description of a relation from now on. For an earlier one, the catalog showed
        the state before the transaction while it was open; this state is used if the columns are the same. If
        the last one has the same names and types but other columns, one column has replaced another under its
        name, and it is unknown from which row on. What a prepared transaction did is not in the catalog yet.
        """
        is_committed = isinstance(ended, events.StreamCommitted)
        lsn = ended.commit_lsn if isinstance(ended, events.StreamCommitted) else ended.prepare_lsn
        described = self._spool.streams.described(ended.xid)
        last = {version.relation.oid: number for number, version in enumerate(described)}
        looked_up: dict[Relation, tuple[CatalogRelation | None, bool]] = {}
        settled: list[RelationVersion] = []
        for number, version in enumerate(described):
            relation = version.sent
            if not (is_committed or version.is_pending):
                settled.append(version)
                continue
            if relation not in looked_up:
                looked_up[relation] = self._catalog.read_relation_after(
                    relation, ended.xid, waits=is_committed
                )
            found, is_visible = looked_up[relation]
            newer = self._with_catalog(version, found) if is_visible else version
            if version.is_pending:
                settled.append(self._version(relation, found, ended.xid, lsn))
            elif version.catalog is None or last[relation.oid] == number:
                settled.append(newer)
            elif (
                newer.catalog is None or newer.catalog.attribute_numbers == version.catalog.attribute_numbers
            ):
                settled.append(version)
            else:
                settled.append(relation_version(relation, None, version.lsn, self._types))
        return settled

    def _with_catalog(self, version: RelationVersion, found: CatalogRelation | None) -> RelationVersion:
        """Return the version with what was read from the catalog later, if anything."""
        if found is None:
            return version
        newer = relation_version(version.sent, found, version.lsn, self._types)
        return version if newer.id == version.id else newer


class CatalogLookups:
    """Reads the catalog over a session that is opened again if it is lost."""

    def __init__(self, connection: Connection, conninfo: str, connect: Callable[[str], Connection]) -> None:
        self._connection = connection
        self._conninfo = conninfo
        self._connect = connect
        self._has_own_session = False
        self._waited_in_vain = False  # for the last transaction

    def close(self) -> None:
        """Close the session, unless the caller opened it."""
        if self._has_own_session:
            self._connection.close()

    def read_relation(self, relation: Relation, xid: int) -> CatalogRelation | None:
        """Return a relation as it is visible now to rows of a transaction; None if the query fails."""
        try:
            return self._query(_read_of_transaction, (relation, xid))
        except SlotBusyError:  # another ingest began when the session was lost
            raise
        except SourceError:
            return None

    def read_relation_after(
        self, relation: Relation, xid: int, *, waits: bool
    ) -> tuple[CatalogRelation | None, bool]:
        """Return a relation and whether its transaction is visible; with `waits`, wait some time until it is.

        After a wait that fails, there are no others until a transaction is visible at once, because a missing
        standby delays each of them.
        """
        deadline = time.monotonic() + (VISIBLE_SECONDS if waits and not self._waited_in_vain else 0)
        try:
            while not (is_visible_now := self._query(is_visible, xid)) and time.monotonic() < deadline:
                time.sleep(_PAUSE)
            if is_visible_now or waits:
                self._waited_in_vain = not is_visible_now
            return self._query(_read_of_transaction, (relation, xid)), is_visible_now
        except SlotBusyError:
            raise
        except SourceError:
            return None, True

    def read_attributes(self, oid: int, xid: int) -> TableAttributes | None:
        """Return the attributes of a table for a transaction; raise SourceError if they cannot be read."""
        return self._query(lambda connection, key: read_attributes(connection, *key), (oid, xid))

    def read_type(self, oid: int) -> CatalogType | None:
        """Return a type whose values arrived in binary format; None if the catalog does not have it.

        A transaction that made the type is sent a moment before other sessions can see it.
        """
        for _ in range(_TYPE_READS):
            found = self._query(read_type, oid)
            if found is not None:
                return found
            time.sleep(_TYPE_PAUSE)
        return None

    def _query(self, read: Callable[[Connection, Key], Found], key: Key) -> Found:
        """Read the catalog; read it again in a new session if the present one was lost."""
        try:
            return read(self._connection, key)
        except SourceError:
            self._connection.close()
            self._connection = self._connect(self._conninfo)
            self._has_own_session = True
            return read(self._connection, key)


def _read_of_transaction(connection: Connection, sent: tuple[Relation, int]) -> CatalogRelation | None:
    return read_relation(connection, *sent)
