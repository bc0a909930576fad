"""Silver as others read it: polars, delta-rs and DuckDB see the rows of the source, without Spark.

DuckDB reads through delta-rs's list of files: its own Delta extension is not part of its wheel. What a table
asks of its readers is as little as it can be: column mapping and type widening only where a column was
renamed or widened.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from pipeline.delta.rows import read_rows
from pipeline.delta.table import LakeTable
from pipeline.postgres.embedded import EmbeddedServer
from tests.support.pipelines import Pipeline
from tests.support.servers import Database, drop_database
from tools.readers.read import READERS as TRIED
from tools.readers.read import plain_rows, result_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.postgres

Rows = Counter[tuple[Any, ...]]
COLUMNS = (
    "id int", "flag bool", "small int2", "large int8", "real float4", "double float8", "amount numeric(12,2)",
    "wide numeric(38,10)", "free numeric", "name text", "raw bytea", "day date", "at timestamp",
    "seen timestamptz", "words text[]", "amounts numeric(8,3)[]", "days date[]", "seens timestamptz[]",
    "doc jsonb",
)  # fmt: skip
BAG = COLUMNS[:8]
NAMES = [column.split()[0] for column in COLUMNS]
VALUES = (
    "g, g % 2 = 0, g::int2, 9223372036854775807 - g, g / 3.0, g / 7.0, g * 1.25,"
    " -9999999999999999999999999999.5, g * 1.10,"
    " CASE g % 3 WHEN 0 THEN '' WHEN 1 THEN NULL ELSE 'naïve 日本 🦀 ' || g END,"
    " decode(lpad(to_hex(g), 8, '0'), 'hex'), DATE '0001-01-01' + g * 9000,"
    " TIMESTAMP '9999-12-31 23:59:59.999999' - g * INTERVAL '60 days 1.000001 seconds',"
    " TIMESTAMPTZ '1883-11-18 12:03:57.5+00' + g * INTERVAL '500 days 0.000001 seconds',"
    " ARRAY['a ' || g, NULL, '', 'NULL'], ARRAY[g, NULL, 1.250], ARRAY[DATE '1582-10-10' + g],"
    " ARRAY[TIMESTAMPTZ '2024-02-29 12:00:00.000001+00', NULL], jsonb_build_object('g', g)"
)
FAR = (
    "'0001-01-01 00:00+00'",
    "'1677-01-01 00:00+00'",
    "'2262-04-12 00:00+00'",
    "'9999-12-31 23:59:59.9+00'",
)


def source_rows(pipeline: Pipeline, table: str, columns: Iterable[str]) -> Rows:
    """Return the source's rows as Python's own values."""
    casts = {"doc": "::text", "free": "::text", "real": "::float8"}
    selected = ", ".join(f'"{name}"{casts.get(name, "")}' for name in columns)
    pipeline.run("SET timezone = 'UTC'")
    return Counter(
        tuple(map(plain, row)) for row in pipeline.source.execute(f"SELECT {selected} FROM {table}")
    )


def plain(value: Any) -> Any:
    """Return a value that can be hashed and is the same from every reader; NaN and -0 do not occur here."""
    if isinstance(value, list):
        return tuple(map(plain, value))
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(timezone.utc)
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def by_polars(path: str, columns: list[str]) -> Iterable[tuple[Any, ...]]:
    return polars.read_delta(path).select(columns).rows()


def by_delta_rs(path: str, columns: list[str]) -> Iterable[tuple[Any, ...]]:
    table = DeltaTable(path).to_pyarrow_table(columns=columns)
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def by_duckdb(path: str, columns: list[str]) -> Iterable[tuple[Any, ...]]:
    silver = DeltaTable(path).to_pyarrow_dataset()
    selected = ", ".join(f'"{column}"' for column in columns)
    with duckdb.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        return connection.register("silver", silver).execute(f"SELECT {selected} FROM silver").fetchall()


READERS: dict[str, Callable[[str, list[str]], Iterable[tuple[Any, ...]]]] = {
    "polars": by_polars, "delta-rs": by_delta_rs, "DuckDB": by_duckdb,
}  # fmt: skip


def rows_of(reader: str, pipeline: Pipeline, table: str, columns: list[str]) -> Rows:
    path = str(pipeline.path("silver", "public", table))
    return Counter(tuple(map(plain, row)) for row in READERS[reader](path, columns))


def features(path: Path) -> set[str]:
    """Return what the newest protocol in a table's log asks of its readers and writers."""
    found: set[str] = set()
    for commit in sorted((path / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            if protocol := json.loads(line).get("protocol"):
                found = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
                if protocol["minReaderVersion"] == 2:
                    found.add("columnMapping")
    return found


def fill(pipeline: Pipeline) -> None:
    columns, bag = ", ".join(COLUMNS), ", ".join(f'"{name}"' for name in NAMES[:8])
    pipeline.ingest(
        f"CREATE TABLE items ({columns}, PRIMARY KEY (id))",
        f"CREATE TABLE bags ({', '.join(BAG)})",
        "ALTER TABLE bags REPLICA IDENTITY FULL",
        f"CREATE TABLE sales ({columns}, region text, PRIMARY KEY (region, id)) PARTITION BY LIST (region)",
        "CREATE TABLE sales_north PARTITION OF sales FOR VALUES IN ('north')",
        "CREATE TABLE sales_south PARTITION OF sales FOR VALUES IN ('south')",
        "CREATE TABLE renamed (id int PRIMARY KEY, v text, at timestamp)",
        "CREATE TABLE widened (id int PRIMARY KEY, n int, at timestamp)",
        "CREATE TABLE plain (id int PRIMARY KEY, v text)",
        "CREATE TABLE far (id int PRIMARY KEY, at timestamp, seen timestamptz)",
        f"CREATE PUBLICATION {pipeline.config.source.publication} FOR TABLE"
        " items, bags, sales, renamed, widened, plain, far WITH (publish_via_partition_root)",
    )
    inserted = f"SELECT {VALUES} FROM generate_series(1, 40) g"
    pipeline.run(
        f"INSERT INTO items {inserted}",
        f"INSERT INTO bags SELECT {bag} FROM items, generate_series(1, 2)",
        *(f"INSERT INTO sales SELECT *, '{region}' FROM ({inserted}) s" for region in ("north", "south")),
        *(
            f"INSERT INTO {table} SELECT g FROM generate_series(1, 9) g"
            for table in ("renamed", "widened", "plain")
        ),
    )
    pipeline.catch_up(*(f"INSERT INTO far VALUES ({i}, {far}, {far})" for i, far in enumerate(FAR)))
    pipeline.catch_up(
        *(f"UPDATE {table} SET amount = -1, at = now() WHERE id IN (30, 31)" for table in ("items", "sales")),
        "UPDATE bags SET wide = 0 WHERE id = 7",
        *(f"DELETE FROM {table} WHERE id % 5 = 0" for table in ("items", "bags", "sales", "plain")),
        "UPDATE items SET id = id + 100 WHERE id < 4",
        "UPDATE sales SET region = 'north', id = id + 100 WHERE region = 'south' AND id = 7",
        "ALTER TABLE renamed RENAME v TO title",
        "ALTER TABLE widened ALTER n TYPE bigint",
        "UPDATE renamed SET title = 'new' WHERE id = 1",
        "UPDATE widened SET n = 5000000000 WHERE id = 1",
    )  # fmt: skip


@pytest.fixture(scope="module")
def filled(
    server: EmbeddedServer, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """Give a pipeline whose silver tables had rows inserted, changed and deleted, in commits of their own."""
    Database.of(server).run("CREATE DATABASE readers")
    database = Database(server, "readers", server.conninfo_of("readers"))
    with database.connect() as source:
        config = database.config(root=str(tmp_path_factory.mktemp("readers") / "lake"))
        pipeline = Pipeline(database, config, source, spark=spark)
        fill(pipeline)
        yield pipeline
    drop_database(server, "readers")


@pytest.mark.promise("other readers")
def test_other_readers_see_the_rows_of_the_source(filled: Pipeline) -> None:
    tables = {"items": NAMES, "bags": NAMES[:8], "sales": [*NAMES, "region"], "plain": ["id", "v"]}
    for reader in READERS:
        for table, columns in tables.items():
            found, expected = rows_of(reader, filled, table, columns), source_rows(filled, table, columns)
            assert found == expected, f"{reader}, {table}"
            print(f"{reader}: {table} {found.total()} rows")
        # What these tables ask for may be refused, but not misread.
        for table, columns in {"renamed": ["id", "title", "at"], "widened": ["id", "n", "at"]}.items():
            try:
                found = rows_of(reader, filled, table, columns)
            except Exception as error:
                print(f"{reader}: {table} is refused: {str(error).splitlines()[0]}")
                continue
            assert found == source_rows(filled, table, columns), f"{reader}, {table}"
            print(f"{reader}: {table} {found.total()} rows")


def test_only_renamed_or_widened_columns_require_more_reader_features(filled: Pipeline) -> None:
    tables = ("items", "bags", "sales", "renamed", "widened", "plain")
    asked = {table: features(filled.path("silver", "public", table)) for table in tables}
    print(asked)
    for feature, table in (("columnMapping", "renamed"), ("typeWidening", "widened")):
        assert {name for name, found in asked.items() if feature in found} == {table}


@pytest.mark.parametrize("reader", READERS)
def test_other_readers_see_instants_that_nanoseconds_do_not_reach(filled: Pipeline, reader: str) -> None:
    columns = ["id", "at", "seen"]
    assert rows_of(reader, filled, "far", columns) == source_rows(filled, "far", columns)


@pytest.mark.promise("other readers")
@pytest.mark.parametrize(
    "reader",
    [pytest.param("Spark 4", marks=[pytest.mark.spark, pytest.mark.slow]), "delta-rs", "pandas", "Polars"],
)
def test_the_readers_of_the_page_read_the_values_that_pgdelta_reads(filled: Pipeline, reader: str) -> None:
    path = str(filled.path("silver", "public", "sales"))
    rows = read_rows(path, LakeTable(path).snapshot())
    request = {"path": path, "columns": rows.column_names, "version": None, "is_feed": False}
    expected = plain_rows(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert result_of(TRIED[reader]()[1], request) == {"rows": expected}
