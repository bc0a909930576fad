"""Detect what the stream does not carry, by the source's catalog: partitions that come and go, and settings.

Each poll compares the catalog with the state that was recorded last, maybe by an earlier run, and records an
event `resync` for each table whose rows may differ since. Events are recorded before the state, so that a run
that dies in between finds the change again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from pipeline.bronze.changes_scan import ChangesScan
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.table import LakeTable
from pipeline.metadata.catalog import CatalogState, CatalogTable, Partition, Root
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records
from pipeline.postgres.connection import Connection
from pipeline.postgres.partitions import PartitionCatalog, kept_rows, list_with_pages, read_partitions
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.capture_state import CaptureState
from pipeline.table_copy.catalog_changes import (
    compare_roots,
    is_publication_changed,
    leaves_below,
    without_filenodes,
)
from pipeline.table_copy.invisible_commits import was_running
from pipeline.table_name import TableName

REFRESH_SECONDS = 3600.0  # until a state that did not change is recorded again
_MOST_SENTENCES = 5
_FIRST_WITH_FRESH_ENTRIES = 150000
_EFFECT = "No message carries this, so silver may lack rows, or keep rows that the source does not have."


class CatalogWatch:
    """Compares the catalog with its recorded state, for one run of ingest."""

    def __init__(self, config: Config, bronze: Bronze, state: CaptureState) -> None:
        self._config = config
        self._bronze = bronze
        self._state = state
        self._records = Records(bronze.lake)
        self._table = CatalogTable(bronze.lake)
        self._last: CatalogState | None = None
        self._recorded_at: float | None = None  # monotonic; None: not by this run

    def poll(self, connection: Connection, published: Collection[TableName]) -> None:
        """Record an event for each published table that changed without a message, and the state."""
        publication = self._config.source.publication
        catalog = read_partitions(connection, publication)
        if catalog is None:
            return
        now = self._state_of(catalog)
        before = self._last or self._table.read()
        recorded = now
        if before is not None:
            recorded, is_smaller = self._compare(connection, before, now, published)
            if is_smaller and connection.info.server_version < _FIRST_WITH_FRESH_ENTRIES:
                # The session sends a partition under its root after it was detached.
                self._state.require(now.lsn)
                self._state.request_session(now.lsn)
        if recorded != before or (now.roots and self._is_refresh_due):
            self._table.replace(recorded, publication)
            self._recorded_at = time.monotonic()
        self._last = recorded

    @property
    def _is_refresh_due(self) -> bool:
        return self._recorded_at is None or time.monotonic() - self._recorded_at >= REFRESH_SECONDS

    def _state_of(self, catalog: PartitionCatalog) -> CatalogState:
        names = {each.relation_id: each.name for each in catalog.members if each.parent_id is None}
        partitions: dict[int, dict[int, Partition]] = {}
        for each in catalog.members:
            if each.parent_id is not None:
                partitions.setdefault(each.root_id, {})[each.relation_id] = Partition(
                    each.name,
                    each.parent_id,
                    each.attached_by or 0,
                    each.filenode,
                    bool(each.is_born),
                    each.row_xmin,
                )
        roots = {
            root_id: Root(name, partitions.get(root_id, {}))
            for root_id, name in names.items()
            if self._config.rule_for(name) is not None
        }
        return CatalogState(
            catalog.publication_id, catalog.publication_xmin, roots, catalog.lsn, catalog.oldest_xid
        )

    def _compare(
        self,
        connection: Connection,
        before: CatalogState,
        now: CatalogState,
        published: Collection[TableName],
    ) -> tuple[CatalogState, bool]:
        """Record the events; return the state to record, and whether a root lost a partition."""
        events: list[Event] = []
        if is_publication_changed(before, now):
            sentence = (
                f"The settings or the owner of the publication {self._config.source.publication} were"
                f" changed, maybe for a time: operations that it left out meanwhile are missing. {_EFFECT}"
            )
            names = sorted(name for name in published if self._config.rule_for(name) is not None)
            events += [Event(*name, now.lsn, "resync", sentence) for name in names]
        roots = dict(now.roots)
        is_smaller = False
        for root_id, root in now.roots.items():
            old = before.roots.get(root_id)
            if old is None:
                continue
            sentences, undecided = self._sentences(connection, before, now, old, root)
            if sentences:
                events.append(Event(*root.name, now.lsn, "resync", f"{_join(sentences)} {_EFFECT}"))
            roots[root_id] = without_filenodes(root, old, undecided)
            is_smaller = is_smaller or bool(old.partitions.keys() - root.partitions.keys())
        if events:
            self._records.ensure()
            self._records.events.record(events)
        return replace(now, roots=roots), is_smaller

    def _sentences(
        self, connection: Connection, before: CatalogState, now: CatalogState, old: Root, root: Root
    ) -> tuple[list[str], set[int]]:
        """Return what changed the rows of a root, and the partitions about which nothing is known yet."""
        changes = compare_roots(old, root)
        sentences = list(changes.sentences)
        leaves = {oid: list(leaves_below(root, oid)) for oid in changes.joined}
        filled = list_with_pages(connection, {leaf for each in leaves.values() for leaf in each})
        sentences += [
            f"Partition {root.partitions[oid].name} was attached and may have had rows."
            for oid in changes.joined
            if not filled.isdisjoint(leaves[oid])
        ]
        undecided: set[int] = set()
        unproven: list[int] = []
        for oid in changes.suspects:
            kept = kept_rows(connection, root.partitions[oid].name, before.oldest_xid)
            if kept is None:
                undecided.add(oid)
            elif not kept:
                unproven.append(oid)
        if unproven:
            self._state.require(now.lsn)
            if not self._state.wait_past(LSN(now.lsn - 1)):
                return sentences, undecided | set(unproven)
            xids = {root.partitions[oid].row_xmin for oid in unproven}
            truncated = find_truncates(self._bronze.changes, root.name, xids, before.lsn)
            sentences += [
                f"Partition {root.partitions[oid].name} was truncated, or rewritten: no earlier row is left."
                for oid in unproven
                if root.partitions[oid].row_xmin not in truncated
            ]
        return sentences, undecided


def find_truncates(changes: LakeTable, name: TableName, xids: Collection[int], lsn: LSN) -> set[int]:
    """Return those of the transactions that truncated a table and committed about an LSN or later."""
    condition = f"op = 'T' AND {was_running(sorted(xids), lsn)}"
    path = changes.local_path
    rows: Iterable[tuple[str, str, int]]
    if path is None:
        found = changes.frame().where(condition).select("schema_name", "table_name", "xid")
        rows = [tuple(row) for row in found.distinct().collect()]
    else:
        scan = ChangesScan(path, changes.snapshot(), ops=("T",), name=name, xids=frozenset(xids))
        if scan.is_empty():
            return set()
        columns = ("schema_name", "table_name", "xid", "op", "commit_lsn")
        rows = scan.query(
            f"SELECT DISTINCT schema_name, table_name, xid FROM changes WHERE {condition}",
            columns,
        )
    return {xid for schema, table, xid in rows if TableName(schema, table) == name}


def _join(sentences: list[str]) -> str:
    more = len(sentences) - _MOST_SENTENCES
    return " ".join(sentences[:_MOST_SENTENCES]) + (
        f" The same of {more} more partitions." if more > 0 else ""
    )
