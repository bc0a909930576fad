"""Read texts as silver types in Spark and in DuckDB, and compare the results bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.delta.schema import TableSchema
from pipeline.engine import DUCKDB, SPARK, Engine
from pipeline.silver.types.text_parsers import SilverType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def expressions(kind: SilverType, engine: Engine) -> dict[str, str]:
    """Return the SQL over a text `x` that a write uses, by what it gives."""
    clamped = kind.clamped
    value, nearest = kind.value("x", engine), clamped.value("x", engine)
    no = "false"
    return {
        "value": value,
        "misfit": kind.misfit("x", f"({value})", engine) or no,
        "canonical": kind.canonical("x", engine),
        "nearest": nearest,
        "clamped": clamped.misfit("x", f"({nearest})", engine) or no,
        "sidecar": kind.text_of_misfit.value("x", engine),
        "key": kind.key_text("x", engine),
        "one_key": kind.key_text("x", engine, has_many_spellings=True),
    }


def table_of(texts: Sequence[str | None]) -> pa.Table:
    """Return a table of texts x, numbered by i."""
    return pa.table({"i": range(len(texts)), "x": pa.array(texts, pa.string())})


def connect() -> duckdb.DuckDBPyConnection:
    """Return a connection with the settings of the native writer."""
    connection = duckdb.connect(config={"threads": 2})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def read_in_duckdb(kinds: Mapping[str, SilverType], texts: pa.Table) -> dict[str, pa.Table]:
    """Return the results by the name of a type; `texts` is a `table_of` them."""
    found = {}
    with connect() as connection:
        connection.register("texts", texts)
        for name, kind in kinds.items():
            columns = ", ".join(f"{e} AS {n}" for n, e in expressions(kind, DUCKDB).items())
            found[name] = connection.sql(f"SELECT {columns} FROM texts ORDER BY i").to_arrow_table()
    return found


def read_in_spark(
    spark: SparkSession, kinds: Mapping[str, SilverType], texts: pa.Table, folder: Path
) -> dict[str, pa.Table]:
    """Return the same by Spark, as its Parquet files have it."""
    pq.write_table(texts, folder / "texts.parquet")
    frame = spark.read.parquet(str(folder / "texts.parquet")).repartition(2, "i")
    of = {name: {n: f"{name} {n}" for n in expressions(kind, SPARK)} for name, kind in kinds.items()}
    columns = [
        f"{e} AS {SPARK.quoted(of[name][n])}"
        for name, kind in kinds.items()
        for n, e in expressions(kind, SPARK).items()
    ]
    frame.selectExpr("i", *columns).write.parquet(str(folder / "found"))
    found = pq.read_table(folder / "found").sort_by("i")
    return {name: found.select(list(n.values())).rename_columns(list(n)) for name, n in of.items()}


def bits(values: pa.ChunkedArray) -> list[Any]:
    """Return values so that equality means the same bits: NaN equals NaN, and -0 is not 0."""
    array = values.combine_chunks()
    return _bits(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)


def _bits(array: pa.Array) -> list[Any]:
    if pa.types.is_list(array.type):
        items = _bits(array.values)
        return [
            items[start.as_py() : end.as_py()] if valid else None
            for start, end, valid in zip(
                array.offsets, array.offsets[1:], array.is_valid().to_pylist(), strict=False
            )
        ]
    if pa.types.is_floating(array.type) or pa.types.is_temporal(array.type):
        width = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[array.type.bit_width]
        return list(array.view(width).to_pylist())
    return list(array.to_pylist())


def classes(canonical: Sequence[Any]) -> list[int | None]:
    """Return numbers that are equal where canonical texts are: engines may spell these differently."""
    numbers: dict[Any, int] = {}
    return [None if text is None else numbers.setdefault(text, len(numbers)) for text in canonical]


def differences(
    name: str, kind: SilverType, texts: Sequence[str | None], spark: pa.Table, native: pa.Table
) -> list[str]:
    """Return a sentence for each text that the engines read differently."""
    found = []
    arrow = TableSchema.of_ddl(f"x {kind.ddl}").arrow.field("x").type
    for column in native.column_names:
        if column in ("value", "nearest"):
            for engine, table in (("Spark", spark), ("DuckDB", native)):
                if not same_type(table.schema.field(column).type, arrow):
                    found.append(f"{name} {column}: {engine} has {table.schema.field(column).type}")
        one, other = bits(spark[column]), bits(native[column])
        if column in ("canonical", "one_key"):
            one, other = classes(one), classes(other)
        for text, a, b in zip(texts, one, other, strict=True):
            if a != b:
                found.append(f"{name} {column} of {str(text)[:200]!r}: Spark {a!r}, DuckDB {b!r}")
    return found


def same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether two types are the same in Parquet: the name of a list's element is not compared."""
    if pa.types.is_list(one) and pa.types.is_list(other):
        return same_type(one.value_type, other.value_type)
    return bool(one == other)


def count_misfits(table: pa.Table) -> int:
    """Return for how many texts a result says that they do not fit."""
    return int(pc.sum(pc.cast(pc.fill_null(table["misfit"], False), pa.int64())).as_py() or 0)
