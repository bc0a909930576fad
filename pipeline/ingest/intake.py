"""Messages of the server in, what they mean into the spool: the reading half of an ingest run.

Committed transactions that bronze holds already are left out; relations are looked up in the catalog each
time they are described, and those of a stream are recorded only when it ends well.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from pipeline.bronze.spool import Spool
from pipeline.bronze.versions import RelationVersion, relation_version
from pipeline.errors import SlotBusyError, SourceError
from pipeline.ingest.streamed_names import StreamedNames
from pipeline.postgres.catalog import RelationFacts, look_up
from pipeline.postgres.connection import Connection, connect
from pipeline.postgres.types import look_up_type
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import POSTGRES_EPOCH, Relation
from pipeline.protocol.transactions import (
    Assembler,
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
from pipeline.protocol.values.types import TypeFacts, Types

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
_TYPE_LOOKS = 10
_TYPE_PAUSE = 0.2  # seconds


class Intake:
    """Takes the messages of one run, in the order of the server."""

    def __init__(
        self,
        spool: Spool,
        connection: Connection,
        conninfo: str,
        known: set[int],
        position: LSN,
        *,
        opens: Callable[[str], Connection] = connect,
    ) -> None:
        """Leave out what was committed before `position`; `known` are the relation versions on record.

        `opens` gives a session in the place of one that was lost.
        """
        self.names = StreamedNames()
        self.position = position
        self._spool = spool
        self._connection = connection
        self._conninfo = conninfo
        self._open = opens
        self._known = known
        self._new_versions: list[RelationVersion] = []
        self._types = Types(connection.info.server_version, self._look_up_type)
        self._has_own_session = False
        self._assembler = Assembler()
        self._session = 0
        self._is_skipping = False
        self._began_lsn = INVALID  # of the transaction under way
        self._commit_time: int | None = None  # of the newest transaction that was taken whole

    def close(self) -> None:
        """End the session that asks the catalog, where it is another than the one that was given."""
        if self._has_own_session:
            self._connection.close()

    @property
    def commit_time(self) -> datetime | None:
        """Return when the newest transaction was committed that was taken whole, None before there is one."""
        if self._commit_time is None:
            return None
        try:
            return POSTGRES_EPOCH + timedelta(microseconds=self._commit_time)
        except OverflowError:  # Python's calendar is shorter than the protocol's
            return None

    def take_versions(self) -> list[RelationVersion]:
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

    def whole_through(self, sent_through: LSN) -> LSN:
        """Return how far everything committed has been taken, where the server has sent so much."""
        return min(sent_through, self._began_lsn) if self._assembler.in_transaction else sent_through

    def take(self, messages: Sequence[bytes], session: int) -> None:
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
                self._take_other(event)

    def _take_other(self, event: Event) -> None:
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
                if event.message.lsn > self.position:
                    spool.add_message(event)
            case StreamStarted():
                spool.streams.start(event)
            case StreamAborted():
                spool.streams.abort(event)
            case StreamedTruncation():
                spool.streams.add_truncation(event)
            case StreamedEmitted():
                spool.streams.add_message(event)
            case StreamCommitted() if event.commit_lsn < self.position:
                # Its rows are in bronze already; the server does not describe its relations again.
                self._record(spool.skip_stream(event), event.commit_lsn)
            case StreamCommitted():
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
        self._is_skipping = may_skip and lsn < self.position
        self._began_lsn = lsn
        self._spool.begin(began)

    def _describe(self, described: Described) -> None:
        relation = described.relation
        version = relation_version(relation, self._look_up(relation), self._began_lsn, self._types)
        self._spool.describe(version, described.xid)
        if described.xid is None:
            self._record([version], self._began_lsn)

    def _record(self, versions: Iterable[RelationVersion], lsn: LSN) -> None:
        """See that versions are recorded before the changes that name them; `lsn` is where they took hold."""
        for version in versions:
            self.names.describe(version)
            if version.id not in self._known:
                self._known.add(version.id)
                self._new_versions.append(replace(version, lsn=lsn))

    def _look_up(self, relation: Relation) -> RelationFacts | None:
        """Ask the catalog; a look-up that fails is recorded as unknown, and capture goes on."""
        try:
            return self._ask(look_up, relation)
        except SlotBusyError:  # another ingest began when the session was lost
            raise
        except SourceError:
            return None

    def _look_up_type(self, oid: int) -> TypeFacts | None:
        """Ask the catalog for a type whose values came in binary format; None when it stays away.

        A transaction that made the type is sent a moment before the server lets others see it.
        """
        for _ in range(_TYPE_LOOKS):
            facts = self._ask(look_up_type, oid)
            if facts is not None:
                return facts
            time.sleep(_TYPE_PAUSE)
        return None

    def _ask(self, question: Callable[[Connection, Asked], Answer], asked: Asked) -> Answer:
        """Ask the catalog, once more in a new session where the one at hand was lost."""
        try:
            return question(self._connection, asked)
        except SourceError:
            self._connection.close()
            self._connection = self._open(self._conninfo)
            self._has_own_session = True
            return question(self._connection, asked)
