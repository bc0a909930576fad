"""The judge: a silver table must hold, row for row and duplicates counted, what SELECT returns at the source.

Both sides are read as comparable values, the source in one snapshot; silver's types are held against the
contract's table of types as well. What differs is named: columns, types, and the first rows of each side that
the other lacks. Bronze is judged alone, by the numbers its transactions carry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.delta.store.store import is_store
from pipeline.table_name import TableName
from tests.support.comparable import delta_rs
from tests.support.comparable.arrow import comparable_rows
from tests.support.comparable.mapped import MappedTable
from tests.support.comparable.silver import frame_rows, silver_path, silver_type
from tests.support.comparable.source import (
    Connection,
    Rows,
    SourceColumn,
    Value,
    snapshot,
    source_columns,
    source_rows,
)
from tests.support.spark_sessions import shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

METADATA = {"_commit_lsn": "bigint", "_commit_time": "timestamp"}
SHOWN = 5

# What bronze holds twice or in part: a message outside a transaction may have the LSN of a commit.
_BRONZE_FAULTS = """
    SELECT * FROM (
        SELECT commit_lsn, op IN ('M', 'R') AS is_apart, count(*) AS changes,
               count(DISTINCT ordinal) AS ordinals, min(ordinal) AS lowest, max(ordinal) AS highest,
               count(DISTINCT end_lsn) AS ends, count(DISTINCT xid) AS xids
        FROM rows
        GROUP BY commit_lsn, op IN ('M', 'R'), op = 'R', CASE WHEN op = 'M' THEN transactional END
    ) numbers
    WHERE changes <> ordinals OR ends <> 1 OR xids > 1
       OR NOT is_apart AND (lowest <> 0 OR highest <> changes - 1)
    ORDER BY commit_lsn LIMIT 5"""


@dataclass(frozen=True, slots=True)
class Found:
    """A silver table: the types of its columns as Spark names them, and what reads rows over some of them."""

    types: dict[str, str]
    rows: Callable[[Sequence[str]], Rows]


def assert_silver_equals_source(
    conn: Connection,
    spark: SparkSession | None,
    root: str,
    tables: Iterable[TableName],
    *,
    targets: Mapping[TableName, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    metadata_columns: bool = True,
    ignore_left_columns: bool = False,
    by_spark: bool = False,
) -> None:
    """Assert that every silver table equals its source in one snapshot; else name the first rows that differ.

    `targets` are configured silver paths. `overrides` are Spark types by column name, for columns with a
    configured type. With `ignore_left_columns` silver may keep columns that the source has dropped. A column
    that silver lacks is forgiven while it is NULL in every row of the source: no change has announced it yet.
    A source without rows may have no silver table. Other readers than pgdelta's read silver: with `by_spark`
    Spark, else whichever can do so without a JVM.
    """
    faults: list[str] = []
    with snapshot(conn):
        for schema, table in tables:
            target = (targets or {}).get(TableName(schema, table))
            columns = source_columns(conn, schema, table)
            source = source_rows(conn, schema, table, columns)
            faults += [
                f"{schema}.{table}: {fault}"
                for fault in table_faults(
                    spark, root, schema, table, columns, source, target, dict(overrides or {}),
                    metadata_columns, ignore_left_columns, by_spark=by_spark,
                )
            ]  # fmt: skip
    assert not faults, "silver differs from the source\n" + "\n".join(faults)


def table_faults(
    spark: SparkSession | None,
    root: str,
    schema: str,
    table: str,
    columns: list[SourceColumn],
    source: Rows,
    target: str | None,
    overrides: dict[str, str],
    metadata_columns: bool,
    ignore_left_columns: bool,
    *,
    by_spark: bool = False,
) -> Iterator[str]:
    path = silver_path(root, schema, table, target)
    silver = found_table(spark, path, by_spark=by_spark)
    if silver is None:
        if source:
            yield f"{source.total()} rows at the source and no silver table at {path}"
        return
    found = silver.types
    metadata = METADATA if metadata_columns else {}
    wanted = {column.name: overrides.get(column.name, silver_type(column)) for column in columns}
    shared = [column.name for column in columns if column.name in found]
    for position, column in enumerate(columns):
        if column.name not in found and any(row[position] is not None for row in source):
            yield f"silver lacks column {column.name}, which has values at the source"
    for name, type_ in (wanted | metadata).items():
        if name in found and found[name] != type_:
            yield f"column {name} is {found[name]}, should be {type_}"
    for name in metadata:
        if name not in found:
            yield f"silver lacks {name}"
    extra = [name for name in found if name not in wanted and name not in metadata]
    if extra and not ignore_left_columns:
        yield f"silver has columns that the source has not: {', '.join(extra)}"
    ours = [name for name in metadata if name in found]
    whole = silver.rows([*shared, *ours])
    for position, name in enumerate(ours, len(shared)):
        if any(row[position] is None for row in whole):
            yield f"{name} is NULL in some rows"
    positions = [position for position, column in enumerate(columns) if column.name in found]
    yield from row_faults(shared, projected(source, positions), projected(whole, range(len(shared))))


def found_table(spark: SparkSession | None, path: str, *, by_spark: bool) -> Found | None:
    """Return a table, or None if there is none; Spark reads it with `by_spark`, or if nothing else can."""
    if not by_spark:
        if (read := delta_rs.open_table(path)) is not None:
            return Found(delta_rs.column_types(read), partial(delta_rs.table_rows, read))
        if (mapped := MappedTable.open(path)) is not None:
            types = {each["name"]: delta_rs.type_name(each["type"]) for each in mapped.fields}
            return Found(types, lambda names: comparable_rows(mapped.read().select(list(names))))
    if not is_store(path) and not Path(path, "_delta_log").exists():
        return None
    from delta.tables import DeltaTable

    spark = spark or shared_session()
    if not DeltaTable.isDeltaTable(spark, path):
        return None
    frame = spark.read.format("delta").load(path)
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    return Found(types, partial(frame_rows, frame))


def projected(rows: Rows, positions: Sequence[int]) -> Rows:
    """Return the multiset over some positions only."""
    left: Rows = Counter()
    for row, count in rows.items():
        left[tuple(row[position] for position in positions)] += count
    return left


def row_faults(names: Sequence[str], source: Rows, silver: Rows) -> Iterator[str]:
    """Yield a line for each side's rows that the other lacks, the first few in full but for long values."""
    for rows, verdict in ((source - silver, "missing from silver"), (silver - source, "too many in silver")):
        if rows:
            yield f"{rows.total()} rows {verdict} (source {source.total()}, silver {silver.total()})"
        for row, count in sorted(rows.items(), key=repr)[:SHOWN]:
            values = ", ".join(f"{name}={shortened(value)}" for name, value in zip(names, row, strict=True))
            yield f"  {count} × {values}"


def shortened(value: Value) -> str:
    text = "NULL" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:40]}…{text[-8:]} ({len(text)} characters)"


def bronze_has_no_duplicates(spark: SparkSession | None, root: str, *, by_spark: bool = False) -> None:
    """Assert that bronze holds every transaction once and whole, as far as bronze alone can show.

    Row changes of one commit are numbered 0 to n-1 without gap or repeat and agree on xid and end LSN;
    logical messages are numbered apart, each once, and so are copied rows; a copy that was cut off
    has only those of some ranges.
    """
    faults = _bronze_faults(spark, f"{root}/bronze/changes", by_spark=by_spark)
    assert not faults, "bronze holds transactions twice or in part\n" + "\n".join(
        ", ".join(f"{name}={value}" for name, value in fault.items()) for fault in faults
    )


def _bronze_faults(spark: SparkSession | None, path: str, *, by_spark: bool) -> list[dict[str, Any]]:
    if not by_spark and (read := delta_rs.open_table(path)) is not None:
        found: list[dict[str, Any]] = delta_rs.query(read, _BRONZE_FAULTS).to_pylist()
        return found
    if not is_store(path) and not Path(path, "_delta_log").exists():
        return []
    from delta.tables import DeltaTable

    spark = spark or shared_session()
    if not DeltaTable.isDeltaTable(spark, path):
        return []
    rows = spark.read.format("delta").load(path)
    return [
        row.asDict()
        for row in spark.sql(_BRONZE_FAULTS.replace("FROM rows", "FROM {rows}"), rows=rows).collect()
    ]
