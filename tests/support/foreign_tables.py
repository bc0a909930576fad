"""Delta tables that another program wrote: the rows of a source's table at a moment, by Spark or delta-rs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from deltalake import write_deltalake

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql import SparkSession

Program = Literal["spark", "deltalake"]

# every type that a JDBC dump or a copy by Arrow gives its own
COLUMNS = {
    "id": ("bigint PRIMARY KEY", pa.int64()),
    "n": ("int", pa.int32()),
    "small": ("smallint", pa.int16()),
    "price": ("numeric(10,2)", pa.decimal128(10, 2)),
    "paid": ("boolean", pa.bool_()),
    "at": ("timestamp", pa.timestamp("us")),
    "zoned": ("timestamptz", pa.timestamp("us", "UTC")),
    "day": ("date", pa.date32()),
    "ratio": ("real", pa.float32()),
    "size": ("double precision", pa.float64()),
    "token": ("uuid", pa.string()),
    "raw": ("bytea", pa.binary()),
    "tags": ("text[]", pa.list_(pa.string())),
    "counts": ("int[]", pa.list_(pa.int32())),
    "document": ("jsonb", pa.string()),
    "exact": ("numeric", pa.string()),
    "big": ("text", pa.string()),
}
BIG = "(SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 90) j)"
FILL = f"""
INSERT INTO {{0}} SELECT i, i % 7, i % 100, i / 7.0, i % 2 = 0,
  '2024-01-01'::timestamp + i * interval '1.5 s',
  '2024-03-01 12:00+00'::timestamptz + i * interval '61.25 s', '2020-01-01'::date + i, i / 3.0, i * 1e12 / 7,
  md5(i::text)::uuid, decode(md5(i::text), 'hex'), ARRAY['a' || i, 'b,"c', NULL], ARRAY[i, NULL],
  jsonb_build_object('i', i), i / 8.0, CASE WHEN i % 20 = 0 THEN {BIG} WHEN i % 9 > 0 THEN 'v' || i END
FROM generate_series({{1}}, {{2}}) i
"""


def create(name: str) -> tuple[str, ...]:
    """Return statements that create a table with every type, whose long values are stored apart."""
    columns = ", ".join(f"{column} {kind}" for column, (kind, _) in COLUMNS.items())
    return f"CREATE TABLE {name} ({columns})", f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL"


def read(source: Connection[Any], name: str) -> pa.Table:
    """Return the rows that a table of `create` has now."""
    texts = {"document", "exact"}
    columns = ", ".join(f"{c}::text" if c in texts else c for c in COLUMNS)
    rows = source.execute(f"SELECT {columns} FROM {name}".encode()).fetchall()
    schema = pa.schema([(column, kind) for column, (_, kind) in COLUMNS.items()])
    dicts = [dict(zip(COLUMNS, map(_plain, row), strict=True)) for row in rows]
    return pa.Table.from_pylist(dicts, schema)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, uuid.UUID) else value


def edited(rows: pa.Table, **values: Any) -> pa.Table:
    """Return one row with other values."""
    row = {**rows.slice(0, 1).to_pylist()[0], **values}
    return pa.Table.from_pylist([row], rows.schema)


def write(
    rows: pa.Table,
    path: Path,
    program: Program,
    spark: SparkSession,
    *,
    partition_by: Sequence[str] = (),
    mode: Literal["overwrite", "append"] = "overwrite",
) -> str:
    """Write rows as a Delta table, and return its path."""
    if program == "deltalake":
        write_deltalake(path, rows, mode=mode, partition_by=list(partition_by) or None)
        return str(path)
    frame = spark.createDataFrame(rows)
    frame.write.format("delta").mode(mode).partitionBy(*partition_by).save(str(path))
    return str(path)
