"""Detect what the stream does not carry, by the source's catalog: rewrites, types, partitions,
settings.

Each poll compares the catalog with the state that was recorded last, maybe by an earlier run, and records an
event for each table whose rows may differ since; a table that was rewritten is settled as `silver.rewrites`
says. Events and requests are recorded before the state, so that a run that dies in between finds the change
again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import timedelta

from pipeline.bronze.copy_states import CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.bronze.protection import ColumnProtection
from pipeline.config.config import Config
from pipeline.delta.sql import EPOCH
from pipeline.delta.sql import now as utc_now
from pipeline.metadata.catalog import CatalogState, CatalogTable, Root, SourcePartition, SourceType, TableFile
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records
from pipeline.postgres.connection import Connection
from pipeline.postgres.publication_edits import PublicationEdits
from pipeline.postgres.watched_tables import WatchedTables, read_watched_tables
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import Relation
from pipeline.table_copy.altered_types import find_altered
from pipeline.table_copy.capture_state import CaptureState
from pipeline.table_copy.catalog_changes import is_publication_changed, without_bounds, without_filenodes
from pipeline.table_copy.partition_changes import PartitionChanges
from pipeline.table_copy.protected_tables import describe_version
from pipeline.table_copy.rewrites import Rewrites
from pipeline.table_name import TableName

REFRESH = timedelta(hours=1)  # until a state that did not change is recorded again
_FIRST_WITH_FRESH_ENTRIES = 150000


def record_publication(bronze: Bronze, seen: WatchedTables, publication: str) -> None:
    """Record a publication as it was before the end of a gap, which has what it left out until then."""
    table = CatalogTable(bronze.lake)
    if (before := table.read()) is not None:
        now = replace(before, publication_id=seen.publication_id, publication_xmin=seen.publication_xmin)
        table.replace(now, publication)


def is_created_again(bronze: Bronze, connection: Connection, publication: str) -> bool:
    """Return whether a publication is not the one that was recorded under its name."""
    query = "SELECT oid::bigint FROM pg_catalog.pg_publication WHERE pubname = %s"
    recorded, found = CatalogTable(bronze.lake).read(), connection.execute(query, (publication,)).fetchone()
    known = recorded.publication_id if recorded is not None else 0
    return bool(known and found) and found != (known,)


def record_fork(bronze: Bronze, seen: WatchedTables | None, publication: str, end: LSN) -> None:
    """Record the publication of another server, or of an earlier state of it, as it was before a gap's end.

    Oids and xids from before say nothing about its tables and partitions.
    """
    ids = (seen.publication_id, seen.publication_xmin) if seen is not None else (0, 0)
    CatalogTable(bronze.lake).replace(CatalogState(*ids, {}, end, 0), publication)


class CatalogWatch:
    """Compares the catalog with its recorded state, for one run of ingest."""

    def __init__(
        self,
        config: Config,
        bronze: Bronze,
        state: CaptureState,
        edits: PublicationEdits,
        writers_end: Callable[[Connection, Collection[TableName], int], LSN | None],
        protection: ColumnProtection,
    ) -> None:
        """`writers_end` returns an LSN after the transactions that wrote to tables at an edit, None before.

        The edit is that which gave the publication an xmin.
        """
        self._edits = edits
        self._writers_end = writers_end
        self._protection = protection
        self._config = config
        self._bronze = bronze
        self._state = state
        self._records = Records(bronze.lake)
        self._table = CatalogTable(bronze.lake)
        self._rewrites = Rewrites(config, bronze, state)
        self._partitions = PartitionChanges(config, bronze, state, self._rewrites)
        self._last: CatalogState | None = None

    def poll(self, connection: Connection, published: Collection[TableName]) -> None:
        """Record what settles each published table that changed without a message, and the state."""
        publication = self._config.source.publication
        catalog = read_watched_tables(connection, publication)
        if catalog is None:
            return
        now, before = self._state_of(catalog), self._last or self._table.read()
        if self._protection.is_configured:
            hidden = self._protected_columns(connection, now.roots)
            now = without_bounds(now, hidden)
            before = without_bounds(before, hidden) if before is not None else None
        recorded = now
        if before is not None:
            recorded, is_smaller = self._compare(
                connection, before, now, published, is_whole=catalog.is_whole
            )
            if is_smaller and connection.info.server_version < _FIRST_WITH_FRESH_ENTRIES:
                # The session sends a partition under its root after it was detached.
                self._state.require(now.lsn)
                self._state.request_session(now.lsn)
        recorded_at = before.recorded_at if before else EPOCH
        if recorded != before or (now.tables and utc_now() - recorded_at >= REFRESH):
            self._table.replace(recorded, publication)
            recorded_at = utc_now()
        self._last = replace(recorded, recorded_at=recorded_at)

    def _protected_columns(
        self, connection: Connection, roots: Mapping[int, Root]
    ) -> dict[int, Collection[str] | None]:
        """Return the names of the columns with rules, of roots that have some; None if not known now."""
        found: dict[int, Collection[str] | None] = {}
        for oid, root in roots.items():
            if self._protection.concerns(Relation(oid, *root.name, "d", ())):
                publication = self._config.source.publication
                version = describe_version(connection, publication, self._protection, root.name, INVALID)
                columns = version.protection.columns if version and version.protection else None
                found[oid] = None if columns is None else {c.name for c in columns if c.name is not None}
        return found

    def _state_of(self, catalog: WatchedTables) -> CatalogState:
        followed = {
            each.relation_id: each
            for each in catalog.members
            if each.parent_id is None and self._config.rule_for(each.name) is not None
        }
        partitions: dict[int, dict[int, SourcePartition]] = {}
        for each in catalog.members:
            if each.parent_id is not None:
                partitions.setdefault(each.root_id, {})[each.relation_id] = SourcePartition(
                    each.name,
                    each.parent_id,
                    each.attached_by or 0,
                    each.filenode,
                    bool(each.is_born),
                    each.row_xmin,
                    bool(each.is_alone),
                    each.ranges,
                )
        roots = {
            root_id: Root(each.name, partitions.get(root_id, {}))
            for root_id, each in followed.items()
            if each.is_partitioned
        }
        tables = {
            oid: TableFile(each.name, each.filenode, frozenset(each.generated), row_xmin=each.row_xmin)
            for oid, each in followed.items()
        }
        types = {
            oid: SourceType(each.name, each.parts, each.tables, each.is_enum, each.altered_by)
            for oid, each in catalog.types.items()
            if each.tables & followed.keys()
        }
        return CatalogState(
            catalog.publication_id,
            catalog.publication_xmin,
            roots,
            catalog.lsn,
            catalog.oldest_xid,
            tables,
            types=types,
            next_xid=catalog.next_xid,
        )

    def _compare(
        self,
        connection: Connection,
        before: CatalogState,
        now: CatalogState,
        published: Collection[TableName],
        *,
        is_whole: bool,
    ) -> tuple[CatalogState, bool]:
        """Record events and requests; return the state to record, and whether a root lost a partition."""
        events: list[Event] = []
        requests: list[CopyRequest] = []
        if is_publication_changed(before, now) and not self._is_harmless(before, now):
            names = [name for name in published if self._config.rule_for(name) is not None]
            lsn = self._writers_end(connection, names, now.publication_xmin)
            if lsn is None:  # what they wrote before the edit may not be in the stream
                now = replace(
                    now, publication_id=before.publication_id, publication_xmin=before.publication_xmin
                )
            else:
                events, requests = self._rewrites.settle_publication(names, lsn, is_whole=is_whole)
        rewritten, unknown = self._rewrites.find(connection, before, now)
        roots = dict(now.roots)
        is_smaller = False
        for root_id, root in now.roots.items():
            old = before.roots.get(root_id)
            if old is None:
                continue
            found = self._partitions.settle(connection, old, root, before, now)
            events += found.events
            requests += found.requests
            if found.rewritten:
                rewritten[root.name] = found.rewritten
            roots[root_id] = without_filenodes(root, old, found.undecided)
            unknown |= found.undecided
            is_smaller = is_smaller or bool(old.partitions.keys() - root.partitions.keys())
        texts = find_altered(connection, self._config, self._state, before, now)
        changed = texts.sentences | rewritten
        settled, more = self._rewrites.settle(changed, texts.lsn, is_whole=is_whole)
        if events := [*events, *settled]:
            self._records.ensure()
            self._records.events.record(events)
        self._bronze.copies.request([*requests, *more])
        tables = {
            oid: replace(
                before.tables[oid] if oid in unknown else each, writers_xid=texts.writers.get(oid, 0)
            )
            for oid, each in now.tables.items()
        }
        recorded = replace(now, roots=roots, tables=tables)
        if unknown:  # which rows are older than that is asked again
            recorded = replace(recorded, oldest_xid=before.oldest_xid, lsn=before.lsn)
        return recorded, is_smaller

    def policy(self, name: TableName) -> str:
        """Return what `silver.rewrites` says of a table all of whose operations are published."""
        return self._rewrites.policy(name, is_whole=True)

    def _is_harmless(self, before: CatalogState, now: CatalogState) -> bool:
        """Return whether it is proved that the publication left out nothing when it was changed."""
        is_same = before.publication_id == now.publication_id
        return is_same and self._edits.is_harmless(before.publication_xmin, now.publication_xmin)
