"""Messages of the server in, what they mean into the spool: the reading half of an ingest run.

Committed transactions that bronze holds already are left out; relations are looked up in the catalog each
time they are described, and those of a stream are recorded only when it ends well. What was looked up before
its transaction could be seen by others is looked up again at the commit of a stream; of any other transaction
the server describes the relation again in the one that follows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pipeline.bronze.relation_versions import RelationVersion, relation_version
from pipeline.bronze.spool import Spool
from pipeline.ingest.catalog_lookups import CatalogLookups
from pipeline.postgres.catalog import CatalogRelation
from pipeline.postgres.connection import Connection, connect
from pipeline.protocol.binary.converters import Types
from pipeline.protocol.events import (
    Began,
    BeganPrepare,
    Change,
    Committed,
    CommittedPrepared,
    Described,
    Emitted,
    Event,
    Prepared,
    RolledBackPrepared,
    StreamAborted,
    StreamCommitted,
    StreamedChange,
    StreamedEmitted,
    StreamedTruncation,
    StreamPrepared,
    StreamStarted,
    Truncation,
)
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import POSTGRES_EPOCH, Relation
from pipeline.protocol.transactions import Assembler
from pipeline.table_copy.streamed_names import StreamedNames


class Decoder:
    """Takes the messages of one run, in the order of the server."""

    def __init__(
        self,
        spool: Spool,
        connection: Connection,
        conninfo: str,
        relation_version_ids: set[int],
        offset: LSN,
        *,
        opens: Callable[[str], Connection] = connect,
    ) -> None:
        """Leave out what was committed before `position`; `known` are the relation versions on record.

        `opens` gives a session in the place of one that was lost.
        """
        self.names = StreamedNames()
        self.offset = offset
        self._spool = spool
        self._catalog = CatalogLookups(connection, conninfo, opens)
        self._relation_version_ids = relation_version_ids
        self._new_versions: list[RelationVersion] = []
        self._types = Types(connection.info.server_version, self._catalog.type)
        # Versions in force that were looked up too early, by oid, each with the transaction that is awaited.
        self._assembler = Assembler()
        self._session = 0
        self._is_skipping = False
        self._began_lsn = INVALID  # of the transaction under way
        self._began: Began | BeganPrepare | None = None
        self._commit_time: int | None = None  # of the newest transaction that was taken whole

    def close(self) -> None:
        """End the session that asks the catalog, where it is another than the one that was given."""
        self._catalog.close()

    @property
    def commit_time(self) -> datetime | None:
        """Return when the newest transaction was committed that was taken whole, None before there is one."""
        if self._commit_time is None:
            return None
        try:
            return POSTGRES_EPOCH + timedelta(microseconds=self._commit_time)
        except OverflowError:  # Python's calendar is shorter than the protocol's
            return None

    def pop_versions(self) -> list[RelationVersion]:
        """Hand over the relation versions to record before anything that was taken since."""
        versions, self._new_versions = self._new_versions, []
        return versions

    @property
    def is_between_transactions(self) -> bool:
        """Say whether nothing that was taken waits for the end of its transaction, but for streams."""
        return not self._assembler.in_transaction

    def end_session(self) -> None:
        """Take what comes next as that of another session of the server, whatever its number."""
        self._session = 0

    def complete_lsn(self, received_lsn: LSN) -> LSN:
        """Return how far everything committed has been taken, where the server has sent so much."""
        return min(received_lsn, self._began_lsn) if self._assembler.in_transaction else received_lsn

    def decode(self, messages: Sequence[bytes], session: int) -> None:
        """Take messages of a session of the server, which begins anew in each."""
        if session != self._session:
            # Every relation is described and every open transaction streamed again.
            self._session = session
            self.names.forget()
            self._assembler = Assembler()
            self._spool.streams.discard()
        receive = self._assembler.receive
        add_change, add_streamed = self._spool.add_change, self._spool.streams.add_change
        for message in messages:
            event = receive(message)
            if event.__class__ is Change:
                if not self._is_skipping:
                    add_change(event)
            elif event.__class__ is StreamedChange:
                add_streamed(event)
            elif event is not None:
                self._handle(event)

    def _handle(self, event: Event) -> None:
        spool = self._spool
        match event:
            case Began():
                self._begin(event, event.commit_lsn)
            case Committed():
                if not self._is_skipping:
                    spool.commit(event)
                    self._commit_time = event.commit_time
                self._is_skipping = False
            case Described():
                self._describe(event)
            case Truncation() if not self._is_skipping:
                spool.add_truncation(event)
            case Emitted() if event.in_transaction:
                if not self._is_skipping:
                    spool.add_message(event)
            case Emitted():
                if event.message.lsn > self.offset:
                    spool.add_message(event)
            case StreamStarted():
                spool.streams.start(event)
            case StreamAborted():
                spool.streams.abort(event)
            case StreamedTruncation():
                spool.streams.add_truncation(event)
            case StreamedEmitted():
                spool.streams.add_message(event)
            case StreamCommitted() if event.commit_lsn < self.offset:
                # Its rows are in bronze already; the server does not describe its relations again.
                self._settle(event)
                self._record(spool.skip_stream(event), event.commit_lsn)
            case StreamCommitted():
                self._settle(event)
                self._record(spool.commit_stream(event), event.commit_lsn)
                self._commit_time = event.commit_time
            case BeganPrepare():
                # It may come again long after: what was prepared before the slot became two-phase comes with
                # its COMMIT PREPARED. One that is parked already is not parked again.
                self._begin(event, event.prepare_lsn, may_skip=False)
            case Prepared():
                spool.prepare(event)
            case StreamPrepared():
                self._record(spool.prepare_stream(event), event.prepare_lsn)
            case CommittedPrepared() | RolledBackPrepared():
                spool.decide(event)
                if isinstance(event, CommittedPrepared):
                    self._commit_time = event.commit_time

    def _begin(self, began: Began | BeganPrepare, lsn: LSN, *, may_skip: bool = True) -> None:
        # The record of a commit starts before its end, and bronze's position is at the end of one.
        self._is_skipping = may_skip and lsn < self.offset
        self._began, self._began_lsn = began, lsn
        self._spool.begin(began)

    def _describe(self, described: Described) -> None:
        relation = described.relation
        if described.xid is not None:
            facts = self._catalog.relation(relation)
            version = relation_version(relation, facts, self._began_lsn, self._types)
            self._spool.describe(version, described.xid)
            return
        assert self._began is not None
        waits = isinstance(self._began, Began) and not self._is_skipping
        facts, _ = self._catalog.relation_after(relation, self._began.xid, waits=waits)
        version = relation_version(relation, facts, self._began_lsn, self._types)
        self._spool.describe(version)
        self._record([version], self._began_lsn)

    def _settle(self, committed: StreamCommitted) -> None:
        """Look up again what a stream described, now that it is committed, each time for all of its rows.

        What it described last is as the catalog has it from here on. What came before that is what was seen
        while the transaction was open, which is the state from before it, where that was the same shape. If
        both are the same shape and yet other columns, one has taken the place of another under its name, and
        before which row is not known.
        """
        described = self._spool.streams.described(committed.xid)
        last = {version.relation.oid: place for place, version in enumerate(described)}
        looked_up: dict[Relation, tuple[CatalogRelation | None, bool]] = {}
        settled: list[RelationVersion] = []
        for place, version in enumerate(described):
            relation = version.relation
            if relation not in looked_up:
                looked_up[relation] = self._catalog.relation_after(relation, committed.xid, waits=True)
            facts, is_seen = looked_up[relation]
            late = self._with_facts(version, facts) if is_seen else version
            if version.catalog is None or last[relation.oid] == place:
                settled.append(late)
            elif late.catalog is None or late.catalog.attribute_numbers == version.catalog.attribute_numbers:
                settled.append(version)
            else:
                settled.append(relation_version(relation, None, version.lsn, self._types))
        self._spool.settle_stream(committed.xid, settled)

    def _with_facts(self, version: RelationVersion, facts: CatalogRelation | None) -> RelationVersion:
        """Return the version with what was found late, where anything was."""
        if facts is None:
            return version
        found = relation_version(version.relation, facts, version.lsn, self._types)
        return version if found.id == version.id else found

    def _record(self, versions: Iterable[RelationVersion], lsn: LSN) -> None:
        """See that versions are recorded before the changes that name them; `lsn` is where they took hold."""
        for version in versions:
            self.names.describe(version)
            if version.id not in self._relation_version_ids:
                self._relation_version_ids.add(version.id)
                self._new_versions.append(replace(version, lsn=lsn))
