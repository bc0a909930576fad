"""`_pgdelta/tables`: the path of each silver table, and the source column of each of its columns.

Only one apply at a time writes the registry, and each write replaces it. `Records` combines all that the jobs
record of silver tables: the registry, the events and the misfits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import compress
from types import MappingProxyType

import pyarrow as pa

from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.log_retention import short_log
from pipeline.delta.record_table import TableRecord, ddl_of, record_of, row_of
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.schema import TableSchema
from pipeline.delta.sql import EPOCH, now
from pipeline.delta.table import Lake
from pipeline.delta.txn import TxnId
from pipeline.metadata.events import EventLog
from pipeline.metadata.misfits import MisfitLog
from pipeline.metadata.pauses import PauseTable
from pipeline.metadata.reconciliations import Compared, ComparedAt, Reconciliations
from pipeline.metadata.silver_paths import at_current_path
from pipeline.metadata.source_comments import CommentTable
from pipeline.metadata.waiting import Waiting
from pipeline.protected_columns import ProtectedColumn
from pipeline.protocol.lsn import LSN
from pipeline.protocol.pg_types import Int4
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class RegisteredColumn:
    """A column that a silver table has or ever had.

    `name` is the source's, as of the relation version whose rows silver shows. `physical_name` is the name in
    data files, which Delta never changes; it is empty in a `Successor` that is not written yet. The type is
    the source's, None if the source does not have the column any more. `is_key` is whether rows are found by
    it; of tables that an earlier version registered it is not known, and no column has it.
    """

    name: str
    silver_name: str
    attribute_number: Int4 | None
    physical_name: str
    type_oid: int | None = None
    type_modifier: Int4 | None = None
    is_key: bool | None = None


@dataclass(frozen=True, slots=True)
class Successor:
    """The table that replaces a silver table's columns and rows, and the write that does so."""

    relation_id: int
    columns: tuple[RegisteredColumn, ...]
    app_id: TxnId
    lsn: LSN
    mode: str = "mirror"
    protected: tuple[ProtectedColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredTable(TableRecord):
    """A silver table as it is registered.

    `relation_id` is the oid of the source table whose rows it shows, `copy_id` the table copy that it started
    from. `metadata_columns` are the physical names of pgdelta's own columns, in the order of its `mode`.
    `protected` are the columns of the source that are left out, hashed or masked in its rows.
    """

    path: str
    relation_id: int
    columns: tuple[RegisteredColumn, ...]
    updated_at: datetime = field(default=EPOCH, compare=False, kw_only=True)
    successor: Successor | None = None
    copy_id: int | None = None
    metadata_columns: tuple[str, ...] = ()
    mode: str = "mirror"
    protected: tuple[ProtectedColumn, ...] = ()

    def detached(self, path: str) -> RegisteredTable:
        """Return the table at another path, without a copy from which it could continue."""
        return replace(self, path=path, copy_id=None)


TABLES = ddl_of(RegisteredTable)


class TableRegistry:
    """Reads and writes `_pgdelta/tables`; safe to use from several threads of one apply."""

    def __init__(self, lake: Lake) -> None:
        self._root = lake.root
        self._table = lake.table("_pgdelta", "tables")
        self._lock = threading.Lock()
        self._registered: Mapping[TableName, RegisteredTable] | None = None  # this apply is the only writer
        self._rows = _arrow_schema().empty_table()  # of the registered tables, in their order, as written
        self._waiting: Waiting[TableName, RegisteredTable] = Waiting()

    def ensure(self) -> None:
        """Create the table unless it exists."""
        if not self._table.exists():
            self._table.ensure(TABLES, short_log())

    def read(self) -> Mapping[TableName, RegisteredTable]:
        """Return the registered tables, read from Delta once; what is registered later is in the next one."""
        with self._lock:
            return self._read()

    def _read(self) -> Mapping[TableName, RegisteredTable]:
        if self._registered is None:
            read = self._table.rows() if self._table.exists() else _arrow_schema().empty_table()
            rows = (at_current_path(row, self._root) for row in read.to_pylist())
            tables = [record_of(RegisteredTable, row) for row in rows]
            self._registered = MappingProxyType({table.name: table for table in tables})
            is_current = read.schema == _arrow_schema() and read.num_rows == len(self._registered)
            self._rows = read if is_current else _rows(self._registered.values())
        return self._registered

    def register(self, *tables: RegisteredTable) -> None:
        """Register tables as they are now; one commit registers all tables that wait for the lock."""
        self._waiting.put({table.name: table for table in tables})
        with self._lock, self._waiting.taken() as waiting:
            if waiting:
                # A folder has one table: another table that is registered for it has no rows there any more.
                paths, time = {table.path for table in waiting.values()}, now()
                known = self._read()
                stay = [name not in waiting and table.path not in paths for name, table in known.items()]
                registered = dict(compress(known.items(), stay)) | waiting
                new = _rows(replace(table, updated_at=time) for table in waiting.values())
                rows = pa.concat_tables([self._rows.filter(pa.array(stay, pa.bool_())), new]).combine_chunks()
                with crash_step(CrashStep.REGISTER_TABLE):
                    retry_conflicts(lambda: self._table.overwrite_rows(rows, TABLES, replaces_schema=True))
                self._registered, self._rows = MappingProxyType(registered), rows


def _rows(tables: Iterable[RegisteredTable]) -> pa.Table:
    return pa.Table.from_pylist([row_of(table) for table in tables], schema=_arrow_schema())


@cache
def _arrow_schema() -> pa.Schema:
    return TableSchema.of_ddl(TABLES).arrow


class Records:
    """What a lake records of silver tables but manifests; threads of one apply may share it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.tables = TableRegistry(lake)
        self.events = EventLog(lake)
        self.misfits = MisfitLog(lake)
        self.comments = CommentTable(lake)
        self.pauses = PauseTable(lake)
        self.reconciliations = Reconciliations(lake)

    def compared(self, *, looks: bool = True) -> dict[TableName, Compared]:
        """Return what comparisons with the source found of each table; without `looks`, as read last."""
        relations = {name: table.relation_id for name, table in self.tables.read().items()}
        return self.reconciliations.compared(relations, looks=looks)

    def equal(self, *, looks: bool = True) -> dict[TableName, ComparedAt]:
        """Return the newest comparison of each table that found it equal to its source."""
        found = self.compared(looks=looks)
        return {name: each.equal for name, each in found.items() if each.equal is not None}

    def ensure(self) -> None:
        """Create the Delta tables unless they exist."""
        self.tables.ensure()
        self.events.ensure()
        self.misfits.ensure()


def verified_through(lake: Lake) -> dict[TableName, LSN]:
    """Return the newest LSN at which each table was found equal to its source."""
    return {name: found.lsn for name, found in Records(lake).equal().items()}
