"""What became of silver, in Delta tables under `{root}/_pgdelta`: its tables, misfits and events."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.table import Lake, local_frame
from pipeline.delta.timestamps import now
from pipeline.delta.txn import TxnId
from pipeline.metadata.events import EVENTS, ONLY_A_COPY_HELPS, Event
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

_COLUMNS = (
    "ARRAY<STRUCT<name: STRING, silver_name: STRING, attribute_number: INT, physical_name: STRING, "
    "type_oid: BIGINT, type_modifier: INT>>"
)
TABLES = (
    "schema_name STRING, table_name STRING, path STRING, relation_id BIGINT, "
    f"columns {_COLUMNS}, updated_at TIMESTAMP, "
    f"successor STRUCT<relation_id: BIGINT, columns: {_COLUMNS}, app_id: STRING, lsn: BIGINT>, "
    "copy_id BIGINT, own_columns ARRAY<STRING>"
)
MISFITS = (
    "schema_name STRING, table_name STRING, column_name STRING, key STRING, raw_text STRING, lsn BIGINT, "
    "policy STRING"
)
MISFIT_COLUMNS = tuple(column.split()[0] for column in MISFITS.split(", "))


@dataclass(frozen=True, slots=True)
class RegisteredColumn:
    """A column that a silver table ever had; its name is that of the version whose rows silver holds.

    Its physical name is what data files call it: Delta never changes that. Its type is that of the source,
    None where the source does not have the column any more.
    """

    name: str
    silver_name: str
    attribute_number: int | None
    physical_name: str
    type_oid: int | None = None
    type_modifier: int | None = None


@dataclass(frozen=True, slots=True)
class Successor:
    """Another source table under the same name, and the write that puts its rows in the old one's place."""

    relation_id: int
    columns: tuple[RegisteredColumn, ...]
    txn: TxnId
    lsn: LSN

    def as_row(self) -> dict[str, object]:
        """Return it as `_pgdelta/tables` has it."""
        columns = [asdict(column) for column in self.columns]
        return {"relation_id": self.relation_id, "columns": columns, "app_id": str(self.txn), "lsn": self.lsn}


@dataclass(frozen=True, slots=True)
class RegisteredTable:
    """A silver table as `_pgdelta/tables` has it; `copy_id` is the copy that its rows began with.

    `own_columns` is what data files call our own columns; empty where there are none, or in an older lake.
    """

    schema_name: str
    table_name: str
    path: str
    relation_id: int
    columns: tuple[RegisteredColumn, ...]
    successor: Successor | None = None
    copy_id: int | None = None
    metadata_columns: tuple[str, ...] = ()

    def moved(self, path: str) -> "RegisteredTable":
        """Return the same at another path, as a table that is followed no more."""
        return replace(self, path=path, copy_id=None)


class Records:
    """Reads and writes the pipeline's own tables; safe to use from the threads of an apply."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._lock = threading.Lock()
        self._registered: dict[TableName, dict[str, Any]] | None = None  # rows: we are the only writer
        self._waiting: dict[TableName, dict[str, Any]] = {}
        self._waiting_lock = threading.Lock()
        self._resyncs: dict[TableName, LSN] = {}
        self._is_first = True
        self._told: set[Event] = set()  # that this process has recorded, or found recorded
        self._tables = lake.table("_pgdelta", "tables")
        self.misfits = lake.table("_pgdelta", "misfits")
        self._events = lake.table("_pgdelta", "events")

    def ensure(self) -> None:
        """Create the tables unless they are there."""
        if not self._tables.exists():
            self._tables.ensure(TABLES)
        self.misfits.ensure_for_appends(MISFITS)
        self._events.ensure_for_appends(EVENTS)

    def registered(self) -> dict[TableName, RegisteredTable]:
        """Return every silver table by (schema, table)."""
        with self._lock:
            rows = self._rows()
            return {name: _registered(row) for name, row in rows.items()}

    def _rows(self) -> dict[TableName, dict[str, Any]]:
        if self._registered is None:
            found = self._tables.frame().collect() if self._tables.exists() else []
            rows = [row.asDict(recursive=True) for row in found]
            self._registered = {TableName(row["schema_name"], row["table_name"]): row for row in rows}
        return self._registered

    def register(self, table: RegisteredTable) -> None:
        """Record a silver table as it is now; tables that come at once are recorded by one commit."""
        name = TableName(table.schema_name, table.table_name)
        row = {
            "schema_name": table.schema_name,
            "table_name": table.table_name,
            "path": table.path,
            "relation_id": table.relation_id,
            "columns": [asdict(column) for column in table.columns],
            "updated_at": now(),
            "successor": table.successor.as_row() if table.successor else None,
            "copy_id": table.copy_id,
            "own_columns": list(table.metadata_columns),
        }
        with self._waiting_lock:
            self._waiting[name] = row
        with self._lock:
            with self._waiting_lock:
                waiting, self._waiting = self._waiting, {}
            if waiting:
                # A folder is one table's: who was there before has nothing there any more.
                taken = {row["path"] for row in waiting.values()}
                before = {n: row for n, row in self._rows().items() if row["path"] not in taken}
                rows = before | waiting
                frame = local_frame(self.lake.spark, list(rows.values()), TABLES)
                try:
                    with crash_step(CrashStep.REGISTER_TABLE):
                        retry_conflicts(lambda: self._tables.overwrite(frame, None, replaces_schema=True))
                except BaseException:
                    # Those who wait for the lock have to see that theirs is not recorded.
                    with self._waiting_lock:
                        self._waiting = waiting | self._waiting
                    raise
                self._registered = rows

    def record_events(self, events: Sequence[Event]) -> None:
        """Append events that are not there yet."""
        if not events:
            return
        for event in events:
            if event.kind in ONLY_A_COPY_HELPS:
                name = TableName(event.schema_name, event.table_name)
                self._resyncs[name] = max(event.lsn, self._resyncs.get(name, INVALID))
        identity = ["schema_name", "table_name", "lsn", "kind", "sentence"]
        with self._lock:
            new = [event for event in events if event not in self._told]
            if not new:
                return
            rows = [asdict(event) | {"recorded_at": now()} for event in new]
            frame = local_frame(self.lake.spark, rows, EVENTS)

            def append() -> None:
                unrecorded = frame.join(self._events.frame(), identity, "left_anti")
                self._events.append_small(unrecorded.select(frame.columns))

            retry_conflicts(append)  # ingest writes them too
            self._told.update(new)

    def resyncs(self) -> dict[TableName, LSN]:
        """Return the tables of which events said that only a copy helps, each with the newest one's LSN.

        The first time these are all that are recorded: the run before may have ended before it asked for
        copies. Each is told until it is forgotten.
        """
        with self._lock:
            if self._is_first and self._events.exists():
                frame = self._events.frame().where(F.col("kind").isin(*ONLY_A_COPY_HELPS))
                for schema, table, lsn in (
                    frame.groupBy("schema_name", "table_name").agg(F.max("lsn")).collect()
                ):
                    name = TableName(schema, table)
                    self._resyncs[name] = max(LSN(lsn), self._resyncs.get(name, INVALID))
            self._is_first = False
            return dict(self._resyncs)

    def forget_resyncs(self, told: Mapping[TableName, LSN]) -> None:
        """Tell of these no more, unless another event came since."""
        with self._lock:
            for name, lsn in told.items():
                if self._resyncs.get(name) == lsn:
                    del self._resyncs[name]

    def record_misfits(self, frame: DataFrame) -> None:
        """Append those that are not recorded yet: a repeated batch does not repeat them."""
        first, last = F.min("lsn").alias("first"), F.max("lsn").alias("last")
        span = frame.agg(first, last).head()
        if span is None or span["first"] is None:
            return
        equal = (F.col(f"n.{name}").eqNullSafe(F.col(f"o.{name}")) for name in MISFIT_COLUMNS)
        with self._lock:
            recorded = self.misfits.frame().where(F.col("lsn").between(span["first"], span["last"]))
            new = frame.select(*MISFIT_COLUMNS).alias("n")
            new = new.join(recorded.alias("o"), reduce(Column.__and__, equal), "left_anti")
            self.misfits.append_small(new)

    def misfit_counts(self) -> dict[TableName, dict[str, int]]:
        """Return how many misfits are recorded, by table and column."""
        counts: dict[TableName, dict[str, int]] = {}
        if self.misfits.exists():
            rows = self.misfits.frame().groupBy("schema_name", "table_name", "column_name").count().collect()
            for schema, table, column, count in rows:
                counts.setdefault(TableName(schema, table), {})[column] = count
        return counts

    def last_events(self) -> dict[TableName, Event]:
        """Return the newest event of each table."""
        if not self._events.exists():
            return {}
        newest = "max_by(struct(lsn, kind, sentence), struct(recorded_at, lsn)) AS event"
        rows = self._events.frame().groupBy("schema_name", "table_name").agg(F.expr(newest)).collect()
        return {
            TableName(schema, table): Event(schema, table, LSN(event.lsn), event.kind, event.sentence)
            for schema, table, event in rows
        }


def _registered(row: Mapping[str, Any]) -> RegisteredTable:
    found = row.get("successor")
    successor = found and Successor(
        found["relation_id"], _columns(found["columns"]), _txn(found["app_id"]), LSN(found["lsn"])
    )
    return RegisteredTable(
        row["schema_name"],
        row["table_name"],
        row["path"],
        row["relation_id"],
        _columns(row["columns"]),
        successor,
        row.get("copy_id"),
        tuple(row.get("own_columns") or ()),
    )


def _txn(text: str) -> TxnId:
    txn = TxnId.parse(text)
    assert txn is not None, text
    return txn


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[RegisteredColumn, ...]:
    return tuple(
        RegisteredColumn(
            row["name"],
            row["silver_name"],
            row["attribute_number"],
            row.get("physical_name") or row["silver_name"],  # a lake of before there were renames
            row.get("type_oid"),
            row.get("type_modifier"),
        )
        for row in rows
    )
