"""`_pgdelta/tables`: the path of each silver table, and the source column of each of its columns.

Only one apply at a time writes the registry, and each write replaces it. `Records` combines all that the jobs
record of silver tables: the registry, the events and the misfits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.log_retention import short_log
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.schema import TableSchema
from pipeline.delta.sql import now
from pipeline.delta.table import Lake
from pipeline.delta.txn import TxnId
from pipeline.metadata.events import EventLog
from pipeline.metadata.misfits import MisfitLog
from pipeline.metadata.pauses import PauseTable
from pipeline.metadata.source_comments import CommentTable
from pipeline.metadata.waiting import Waiting
from pipeline.protected_columns import ProtectedColumn, read_protected
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = (
    "ARRAY<STRUCT<name: STRING, silver_name: STRING, attribute_number: INT, physical_name: STRING, "
    "type_oid: BIGINT, type_modifier: INT, is_key: BOOLEAN>>"
)
_PROTECTED = (
    "ARRAY<STRUCT<name: STRING, configured_name: STRING, attribute_number: INT, rule: STRING, "
    "type_oid: BIGINT, type_modifier: INT>>"
)
TABLES = (
    "schema_name STRING, table_name STRING, path STRING, relation_id BIGINT, "
    f"columns {_COLUMNS}, updated_at TIMESTAMP, "
    f"successor STRUCT<relation_id: BIGINT, columns: {_COLUMNS}, app_id: STRING, lsn: BIGINT, "
    f"mode: STRING, protected: {_PROTECTED}>, copy_id BIGINT, metadata_columns ARRAY<STRING>, mode STRING, "
    f"protected {_PROTECTED}"
)


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
    attribute_number: int | None
    physical_name: str
    type_oid: int | None = None
    type_modifier: int | None = None
    is_key: bool | None = None


@dataclass(frozen=True, slots=True)
class Successor:
    """The table that replaces a silver table's columns and rows, and the write that does so."""

    relation_id: int
    columns: tuple[RegisteredColumn, ...]
    txn: TxnId
    lsn: LSN
    mode: str = "mirror"
    protected: tuple[ProtectedColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredTable:
    """A silver table as it is registered.

    `relation_id` is the oid of the source table whose rows it shows, `copy_id` the table copy that it started
    from. `metadata_columns` are the physical names of pgdelta's own columns, in the order of its `mode`.
    `protected` are the columns of the source that are left out, hashed or masked in its rows.
    """

    schema_name: str
    table_name: str
    path: str
    relation_id: int
    columns: tuple[RegisteredColumn, ...]
    successor: Successor | None = None
    copy_id: int | None = None
    metadata_columns: tuple[str, ...] = ()
    mode: str = "mirror"
    protected: tuple[ProtectedColumn, ...] = ()

    @property
    def name(self) -> TableName:
        return TableName(self.schema_name, self.table_name)

    def detached(self, path: str) -> RegisteredTable:
        """Return the table at another path, without a copy from which it could continue."""
        return replace(self, path=path, copy_id=None)


class TableRegistry:
    """Reads and writes `_pgdelta/tables`; safe to use from several threads of one apply."""

    def __init__(self, lake: Lake) -> None:
        self._table = lake.table("_pgdelta", "tables")
        self._lock = threading.Lock()
        self._registered: dict[TableName, RegisteredTable] | None = None  # this apply is the only writer
        self._rows: dict[TableName, pa.Table] = {}  # one row each, as it was written
        self._waiting: Waiting[TableName, RegisteredTable] = Waiting()

    def ensure(self) -> None:
        """Create the table unless it exists."""
        if not self._table.exists():
            self._table.ensure(TABLES, short_log())

    def read(self) -> dict[TableName, RegisteredTable]:
        """Return the registered tables, read from Delta once."""
        with self._lock:
            return dict(self._read())

    def _read(self) -> dict[TableName, RegisteredTable]:
        if self._registered is None:
            read = self._table.rows() if self._table.exists() else _arrow_schema().empty_table()
            rows = read.to_pylist()
            tables = [_registered_table(row) for row in rows]
            self._registered = {table.name: table for table in tables}
            if read.schema == _arrow_schema():
                self._rows = {table.name: read.slice(n, 1) for n, table in enumerate(tables)}
            else:
                times = [row["updated_at"].astimezone(timezone.utc) for row in rows]
                self._rows = {t.name: _row(t, time) for t, time in zip(tables, times, strict=True)}
        return self._registered

    def register(self, *tables: RegisteredTable) -> None:
        """Register tables as they are now; one commit registers all tables that wait for the lock."""
        self._waiting.put({table.name: table for table in tables})
        with self._lock, self._waiting.taken() as waiting:
            if waiting:
                # A folder has one table: another table that is registered for it has no rows there any more.
                paths = {table.path for table in waiting.values()}
                others = {name: table for name, table in self._read().items() if table.path not in paths}
                registered, time = others | waiting, now()
                rows = self._rows | {name: _row(table, time) for name, table in waiting.items()}
                rows = {name: rows[name] for name in registered}
                written = _concatenated(rows.values())
                with crash_step(CrashStep.REGISTER_TABLE):
                    retry_conflicts(lambda: self._table.overwrite_rows(written, TABLES, replaces_schema=True))
                self._registered, self._rows = registered, rows


def _row(table: RegisteredTable, updated_at: datetime) -> pa.Table:
    import pyarrow as pa

    row = asdict(table) | {"updated_at": updated_at}
    if table.successor is not None:
        del row["successor"]["txn"]
        row["successor"]["app_id"] = str(table.successor.txn)
    return pa.Table.from_pylist([row], schema=_arrow_schema())


def _concatenated(rows: Iterable[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(rows).combine_chunks()


@cache
def _arrow_schema() -> pa.Schema:
    return TableSchema.of_ddl(TABLES).arrow


def _registered_table(row: Mapping[str, Any]) -> RegisteredTable:
    successor = row["successor"]
    return RegisteredTable(
        row["schema_name"],
        row["table_name"],
        row["path"],
        row["relation_id"],
        _columns(row["columns"]),
        successor and _successor(successor),
        row["copy_id"],
        tuple(row["metadata_columns"]),
        row.get("mode") or "mirror",
        read_protected(row.get("protected")),
    )


def _successor(row: Mapping[str, Any]) -> Successor:
    txn = TxnId.parse(row["app_id"])
    assert txn is not None, row["app_id"]
    return Successor(
        row["relation_id"],
        _columns(row["columns"]),
        txn,
        LSN(row["lsn"]),
        row.get("mode") or "mirror",
        read_protected(row.get("protected")),
    )


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[RegisteredColumn, ...]:
    return tuple(RegisteredColumn(**row) for row in rows)


class Records:
    """What a lake records of silver tables but manifests; threads of one apply may share it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.tables = TableRegistry(lake)
        self.events = EventLog(lake)
        self.misfits = MisfitLog(lake)
        self.comments = CommentTable(lake)
        self.pauses = PauseTable(lake)

    def ensure(self) -> None:
        """Create the Delta tables unless they exist."""
        self.tables.ensure()
        self.events.ensure()
        self.misfits.ensure()
