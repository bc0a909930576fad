"""The source's side of a comparison, read as soon as there is a snapshot.

A TRUNCATE, or an ALTER TABLE that rewrites a table, removes what the snapshot saw of it. Applying changes to
silver up to the snapshot takes long, so the sums of all tables' rows are read before that, and the source
is read again only if ranges differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from pipeline.bronze.copies import Copies
from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.fingerprint import Fingerprint
from pipeline.metadata.registry import RegisteredColumn, RegisteredTable
from pipeline.postgres.catalog import CatalogRelation
from pipeline.postgres.snapshot.export import SourceSnapshot
from pipeline.postgres.snapshot.hashed_rows import (
    HashedColumns,
    HashedTable,
    RowHash,
    SourceRows,
    ValueCount,
)
from pipeline.protected_columns import ProtectedColumn
from pipeline.protocol.messages import Relation
from pipeline.silver.compare.comparable_columns import (
    ComparableColumns,
    Fields,
    key_columns,
    plan_comparison,
    source_columns,
)
from pipeline.silver.compare.compared_rows import fields_of
from pipeline.silver.compare.differing_rows import FIRST_DIGITS
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class SourceRead:
    """One table: its shape in the snapshot, and the sums of its rows in that form, by ranges of `digits`."""

    name: TableName
    relation: Relation
    catalog: CatalogRelation
    shape: HashedColumns
    digits: int
    sums: Mapping[str, Fingerprint]
    misfits: Mapping[str, int]
    protected: tuple[ProtectedColumn, ...]


class SourceReads:
    """Reads tables as one snapshot shows them, in threads of its own.

    `is_ascii` if the database has no encoding of its texts. `digits` are those of the ranges whose sums are
    read first. With none, several tables are read at a time, or with a `budget` one and at most so many bytes
    of tables a second.
    """

    def __init__(
        self,
        config: Config,
        lake: Lake,
        snapshot: SourceSnapshot,
        *,
        is_ascii: bool,
        digits: int = FIRST_DIGITS,
        budget: int | None = None,
    ) -> None:
        self._config = config
        self._lake = lake
        self._snapshot = snapshot
        self._is_ascii = is_ascii
        self._digits = digits
        self._budget = budget
        self._moves = Copies(lake).read().moves
        sessions = 1 if digits or budget else config.source.copying.connections
        self._pool = ThreadPoolExecutor(sessions, thread_name_prefix="source")
        self._reading: dict[TableName, Future[SourceRead]] = {}

    def __enter__(self) -> SourceReads:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def start(self, tables: Mapping[TableName, RegisteredTable]) -> None:
        """Start reading tables, in this order, in the form that silver's have now."""
        for name, registered in tables.items():
            self._reading[name] = self._pool.submit(self._read, name, registered)

    def read(self, name: TableName) -> SourceRead:
        """Wait for a table, once; raise RowsMoved, SnapshotLost or SourceError if it cannot be read."""
        return self._reading.pop(name).result()

    def side(self, read: SourceRead, shape: HashedColumns) -> SourceSide:
        """Return the source's side of a comparison in a shape."""
        return SourceSide(read, shape, lambda: self._open(read.name))

    def count_values(self, name: TableName, shape: HashedColumns) -> Mapping[str, ValueCount]:
        """Return the number of values and misfits of a table's columns in a shape, by a scan of its own."""
        with self._open(name) as source:
            return SourceRows(source, shape).count_values()

    def plan(
        self,
        read: SourceRead,
        registered: Sequence[RegisteredColumn],
        fields: Fields,
        partition_by: Collection[str],
    ) -> ComparableColumns:
        """Return how a table is compared with silver's columns; partition columns may be among them."""
        return self._plan(
            read.name, read.relation, read.catalog, registered, fields, partition_by, read.protected
        )

    def _read(self, name: TableName, registered: RegisteredTable) -> SourceRead:
        version = self._lake.table_at(registered.path).snapshot()
        fields, partition_by = fields_of(version), version.partition_columns
        with self._open(name) as source:
            relation, catalog = self._moves.translate_now(source.table.relation, source.read_catalog())
            protected = registered.protected
            columns = registered.columns
            shape = self._plan(name, relation, catalog, columns, fields, partition_by, protected).shape
            rows = SourceRows(source, shape, self._budget)
            sums = rows.sums(self._digits) if shape.columns else {}
            return SourceRead(name, relation, catalog, shape, self._digits, sums, rows.misfits, protected)

    def _plan(
        self,
        name: TableName,
        relation: Relation,
        catalog: CatalogRelation,
        registered: Sequence[RegisteredColumn],
        fields: Fields,
        partition_by: Collection[str],
        protected: Sequence[ProtectedColumn],
    ) -> ComparableColumns:
        rule = self._config.rule_for(name)
        assert rule is not None
        return plan_comparison(
            source_columns(relation, catalog),
            key_columns(relation),
            registered,
            fields,
            rule,
            is_ascii=self._is_ascii,
            protected=protected,
            partition_by=partition_by,
        )

    def _open(self, name: TableName) -> HashedTable:
        source = self._config.source
        return HashedTable(source.snapshot_conninfo, self._snapshot, source.publication, name)


class SourceSide:
    """One table of the source: the sums that were read before, and the table itself for the rest."""

    def __init__(
        self, before: SourceRead, shape: HashedColumns, open_table: Callable[[], HashedTable]
    ) -> None:
        self.misfits: Mapping[str, int] = before.misfits
        self._before = before
        self._shape = shape
        self._open_table = open_table

    def sums(self, digits: int, within: Sequence[str] | None = None) -> Mapping[str, Fingerprint]:
        """Return the sums of each range of so many digits, of all rows or of those within some ranges."""
        if within is None and digits == self._before.digits and self._shape == self._before.shape:
            return self._before.sums
        with self._open_table() as source:
            rows = SourceRows(source, self._shape)
            sums = rows.sums(digits, within)
            if within is None:
                self.misfits = rows.misfits
            return sums

    def rows(self, within: Sequence[str]) -> Sequence[RowHash]:
        """Return the rows of some ranges."""
        with self._open_table() as source:
            return SourceRows(source, self._shape).rows(within)
