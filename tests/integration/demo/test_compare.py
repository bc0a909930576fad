"""Comparing a silver table with its source: equal in every type, and every difference is found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

from pipeline.delta.table import Lake
from pipeline.demo.compare import compare_table, float_text
from pipeline.postgres.connection import connect
from pipeline.table_name import TableName
from tests.support.servers import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = """CREATE TABLE t (id int, ok bool, small int2, big int8, real float4, double float8,
    price numeric(12,10), name bpchar(5), bytes bytea, day date, local timestamp, at timestamptz,
    tags text[], numbers int[], ratios float8[])"""
ROW = r"""(1, true, -3, 9007199254740993, 0.1, 1e300, 0.0000001, 'ab', '\x00ff', '0999-12-31',
    '2024-02-29 12:00:00.120', '2024-02-29 12:00:00+02', '{"a,b",NULL,"NULL","","q\"\\ß"}', '{1,NULL}',
    '{1e15,-0,NaN,0.0001}')"""
SILVER = r"""SELECT 1 AS id, true AS ok, -3S AS small, 9007199254740993L AS big, float(0.1) AS real,
    double('1e300') AS double, CAST(0.0000001 AS DECIMAL(12,10)) AS price, 'ab   ' AS name, X'00FF' AS bytes,
    DATE '0999-12-31' AS day, TIMESTAMP_NTZ '2024-02-29 12:00:00.12' AS local,
    TIMESTAMP '2024-02-29 10:00:00+00:00' AS at, array('a,b', NULL, 'NULL', '', 'q"\\ß') AS tags,
    array(1, NULL) AS numbers, array(double('1e15'), double('-0'), double('NaN'), double('0.0001')) AS ratios,
    5L AS _commit_lsn"""


@pytest.mark.spark
@pytest.mark.postgres
def test_a_table_is_compared_as_a_multiset_and_by_column(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    nulls = "INSERT INTO t VALUES (2), (2)"
    database.run(TABLE, f"INSERT INTO t VALUES {ROW}", nulls)
    table = Lake(spark, str(tmp_path)).table("t")
    one = spark.sql(SILVER)
    nothing = one.selectExpr(
        "2 AS id", *(f"CAST(NULL AS {type_}) AS {name}" for name, type_ in one.dtypes[1:])
    )
    with connect(database.conninfo) as connection:
        absent = compare_table(connection, table, TableName("public", "t"))
        assert (absent.source_rows, absent.silver_rows, absent.missing) == (3, 0, 3)

        one.unionByName(nothing).unionByName(nothing).write.format("delta").save(table.path)
        same = compare_table(connection, table, TableName("public", "t"))
        assert same.is_equal, same
        assert (same.source_rows, same.silver_rows, same.columns) == (3, 3, ())

        # a column that silver lacks is NULL there; one row less of two equal ones is a difference
        database.run("ALTER TABLE t ADD COLUMN late text")
        assert compare_table(connection, table, TableName("public", "t")).is_equal
        database.run("UPDATE t SET late = 'x', price = 1, at = NULL WHERE id = 1")
        changed = compare_table(connection, table, TableName("public", "t"))
        assert (changed.missing, changed.surplus, changed.columns) == (1, 1, ("price", "at", "late"))
        database.run("DELETE FROM t WHERE ctid = (SELECT max(ctid) FROM t WHERE id = 2)")
        assert compare_table(connection, table, TableName("public", "t")).surplus == 2


@pytest.mark.postgres
def test_floats_are_written_as_the_server_writes_them(database: Database) -> None:
    texts = [
        "0",
        "-0",
        "1",
        "100",
        "123456",
        "1234567",
        "1e15",
        "999999999999999",
        "1e14",
        "0.0001",
        "0.00001",
    ]
    texts += ["1.5e-7", "1.7976931348623157e308", "5e-324", "0.1", "-2.5e20", "NaN", "Infinity", "-Infinity"]
    values = ", ".join(f"('{text}'::float8)" for text in texts)
    for text in database.run(f"SELECT v::text, v FROM (VALUES {values}) AS t (v)"):
        assert float_text(repr(text[1]), 15) == text[0]
    values = ", ".join(
        f"('{text}'::float4)"
        for text in texts
        if abs(float(text)) not in (5e-324, float("1.7976931348623157e308"))
    )
    for text in database.run(f"SELECT v::text, v FROM (VALUES {values}) AS t (v)"):
        assert float_text(str(numpy.float32(text[1])), 6) == text[0]
