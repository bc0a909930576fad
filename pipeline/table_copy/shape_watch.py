"""Record the name, columns and identity of tables that were altered and have had no change since.

The stream describes a table only with a change, and the catalog has what it looks like now. A version that is
read from the catalog is recorded at an LSN at which it is proved: all transactions that altered the table had
ended before, and none was altering it. So every change of an earlier version commits before that LSN, and
every change of a later one after it. Bronze is not complete up to the LSN before the version is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline.bronze.protection import ColumnProtection
from pipeline.bronze.relations import RelationVersion
from pipeline.bronze.schema import storable
from pipeline.bronze.source_relations import SourceRelation
from pipeline.bronze.writer import BronzeWriter
from pipeline.config.config import Config
from pipeline.postgres.altered_tables import AlteredTable, list_locked, read_altered
from pipeline.postgres.attributes import read_horizon
from pipeline.postgres.connection import Connection, read_flush_lsn
from pipeline.postgres.open_transactions import write_wal_past_now
from pipeline.postgres.publication import Membership
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_copy.capture_state import CaptureState
from pipeline.table_copy.protected_tables import describe_version
from pipeline.table_name import TableName


class ShapeWatch:
    """Finds altered tables by one query, and describes only these, for one run of ingest."""

    def __init__(
        self,
        config: Config,
        writer: BronzeWriter,
        state: CaptureState,
        protection: ColumnProtection,
        *,
        is_continuous: bool,
    ) -> None:
        self._config = config
        self._publication = config.source.publication
        self._writer = writer
        self._state = state
        self._protection = protection
        self._is_continuous = is_continuous
        self._unread: tuple[LSN, dict[int, AlteredTable]] | None = None  # of tables that bronze does not know
        self._required = INVALID
        self._handled: dict[int, AlteredTable] = {}  # a transaction that is open keeps them new

    def poll(self, connection: Connection, published: Mapping[TableName, Membership]) -> None:
        """Record the versions of the tables that were altered since the last poll, maybe of an earlier run.

        A table that another session is altering is left to the next poll.
        """
        horizon, since = read_horizon(connection), self._writer.watched_xid or 0
        if horizon.xid < since:  # of a server that was restored to an earlier state
            since = 0
        rule_for = self._config.rule_for
        names = {now.relation_id: name for name, now in published.items() if rule_for(name) is not None}
        found = read_altered(connection, self._publication, since)
        altered = {oid: table for oid, table in found.items() if oid in names}
        new = {oid: table for oid, table in altered.items() if self._handled.get(oid) != table}
        done = self._record(connection, names, new, since) if new else set()
        self._handled = {
            oid: table for oid, table in altered.items() if oid in done or self._handled.get(oid) == table
        }
        if len(self._handled) == len(altered):
            self._writer.watched_xid = horizon.xid
        self._state.require(self._required)  # so that a commit records it

    def _record(
        self,
        connection: Connection,
        names: Mapping[int, TableName],
        altered: Mapping[int, AlteredTable],
        since: int,
    ) -> set[int]:
        """Record the versions of altered tables; return the tables that need no other look."""
        known = self._known(names)
        unknown = {oid: table for oid, table in altered.items() if oid not in known}
        if unknown and self._config.source.copy == "never":
            # Changes that are not captured yet may have an earlier version.
            unknown = self._without_changes(connection, unknown)
            known = self._known(names)
        # What bronze does not know is described by its copy or its first change; and a table whose name,
        # columns and key were left alone is as it was.
        unchanged = {
            oid
            for oid, version in known.items()
            if oid in altered
            and not altered[oid].xids
            and altered[oid].replica_identity == version.replica_identity
        }
        done = (unknown.keys() - known.keys()) | unchanged
        locked = list_locked(connection, altered)
        described: dict[int, RelationVersion] = {}
        for oid in (altered.keys() & known.keys()) - done - locked:
            version = describe_version(connection, self._publication, self._protection, names[oid], INVALID)
            if version is not None and version.relation.oid == oid:
                described[oid] = version
        if not described:
            return done
        with self._writer.keep_offset():
            lsn = write_wal_past_now(connection, self._state.stop_copies.is_set)
            # In this order: what a transaction altered is visible once it has no lock.
            locked = list_locked(connection, described)
            now = read_altered(connection, self._publication, since)
            proved = {oid for oid in described.keys() - locked if now.get(oid) == altered[oid]}
            versions = [replace(described[oid], lsn=lsn, at_rest=True) for oid in sorted(proved)]
            if versions:
                self._writer.record_relations(versions)
        if versions:
            self._require_past(connection, lsn)
        return done | proved

    def _require_past(self, connection: Connection, lsn: LSN) -> None:
        """Let a commit follow what is recorded: a primary has more WAL now, a standby may wait for it."""
        self._required = max(self._required, min(LSN(lsn + 1), read_flush_lsn(connection)))

    def _without_changes(
        self, connection: Connection, unknown: Mapping[int, AlteredTable]
    ) -> dict[int, AlteredTable]:
        """Return the tables that bronze does not know once all is captured that was committed before.

        A run that goes on does not wait for that, and returns them at a later poll.
        """
        state = self._state
        if self._unread is None:
            self._unread = write_wal_past_now(connection, state.stop_copies.is_set), dict(unknown)
            state.require(self._unread[0])
        lsn, tables = self._unread
        if self._is_continuous and state.captured_offset < lsn:
            return {}
        if not state.wait_past(LSN(lsn - 1)):
            return {}
        self._unread = None
        self._require_past(connection, lsn)
        return {oid: table for oid, table in unknown.items() if tables.get(oid) == table}

    def _known(self, names: Mapping[int, TableName]) -> dict[int, SourceRelation]:
        """Return the newest version of each table that bronze knows under its name."""
        bronze = self._writer.bronze
        moves = bronze.copies.read().moves
        lake_ids = {(TableName(*map(storable, name)), moves.lake_id(oid)): oid for oid, name in names.items()}
        found: dict[int, SourceRelation] = {}
        for relation in sorted(bronze.source_relations().values(), key=lambda each: each.lsn):
            if (oid := lake_ids.get((relation.name, relation.oid))) is not None:
                found[oid] = relation
        return found
