"""The native writer leaves the same silver tables as Spark, whoever reads them, and by whatever filter.

Random workloads are captured into two lakes of one database. One is applied by Spark, the other natively,
both up to the same commits. Rows, types, misfits and events are equal after each batch; and each column of
the native table answers filters as its rows do, in Spark, DuckDB and polars.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from pipeline.config.tables import Misfits, TableRule
from pipeline.delta import checkpoints
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import TableLog
from pipeline.engine import DUCKDB, SPARK
from pipeline.protocol.lsn import LSN
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from tests.support.comparable.arrow import arrow_rows
from tests.support.comparable.silver import backticked, silver_path, silver_rows
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.rewritten import is_about_rewrite
from tests.support.seeds import printed_rng, seed_of_run
from tests.support.workload.tables import WORKLOAD, Connection, create_schema
from tests.support.workload.transactions import run_workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.apply.applier import Applier

WRITERS: tuple[WriterSetting, ...] = ("spark", "native")
POLICIES: tuple[Misfits, ...] = ("null", "text", "clamp")
FIXED_SEED = 20_262
SPARK_FILTERS = 4
"""Filters of a table that Spark answers: each is a query of its own."""
# texts that silver's types do not all hold
ODD = {
    "day date": ("infinity", "-infinity", "0044-03-15 BC", "2024-02-29", "12345-01-01"),
    "at timestamptz": ("infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "2024-02-29 12:00:00.5+02"),
    "n numeric(10, 2)": ("NaN", "1.25", "-0.01"),
    "days date[]": ("{infinity,2020-01-01,NULL}", "{{2020-01-01},{2020-01-02}}", "{}", "{2020-01-01}"),
}


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is read from checkpoints be written again, in the few commits of each table."""
    monkeypatch.setattr(checkpoints, "_DEFAULT_INTERVAL", 2)
    monkeypatch.setattr(checkpoints, "_LEAST_SECONDS", 0.0)


@pytest.mark.spark
def test_a_random_workload_leaves_equal_tables(make_pipeline: MakePipeline) -> None:
    compare(make_pipeline, FIXED_SEED, schemas=1, cuts=2, least_writes=3, tables=1)


@pytest.mark.spark
@pytest.mark.slow
def test_random_workloads_leave_equal_tables(make_pipeline: MakePipeline) -> None:
    # eight tables a schema: about a hundred writes
    compare(make_pipeline, FIXED_SEED, schemas=4, cuts=3, least_writes=60)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_two_thousand_random_writes_leave_equal_tables(make_pipeline: MakePipeline, part: int) -> None:
    compare(make_pipeline, seed_of_run() + part, schemas=14, cuts=6, least_writes=500)


def compare(
    make_pipeline: MakePipeline,
    seed: int,
    *,
    schemas: int,
    cuts: int,
    least_writes: int,
    tables: int | None = None,
) -> None:
    """Run workloads, apply them by both writers up to the same commits, and compare after each batch.

    Silver has so many tables of the workload, and the odd ones; another seed of the run chooses others.
    """
    from pipeline.apply.applier import Applier

    rng = printed_rng(seed)
    policies = list(itertools.islice(itertools.cycle(POLICIES), schemas))
    chosen = Random(seed_of_run()).sample(WORKLOAD, tables) if tables else ["*"]
    print(f"tables: {chosen}")
    lanes = {writer: make_pipeline("*.*", name=writer, create_publication="all") for writer in WRITERS}
    for writer in WRITERS:
        lane = lanes[writer]
        rules = [
            TableRule(f"w_{n}.{table}", misfit=policy)
            for n, policy in enumerate(policies)
            for table in ("odd", "odd_full", *chosen)
        ]
        silver = replace(lane.config.silver, writer=writer)
        lane.config = replace(lane.config, silver=silver, tables=tuple(rules))
        lane.ingest()
    appliers = {writer: Applier(lane.spark, lane.config) for writer, lane in lanes.items()}
    writes = 0
    with lanes["spark"].database.connect() as source:
        for number in range(schemas):
            schema = create_schema(source, rng, name=f"w_{number}")
            names = [name for name in schema.names if {name.table, "*"} & {*chosen}]
            names += create_odd_tables(source, schema.name)
            for _ in range(cuts):
                run_workload(source, rng, 3, schema=schema)
                write_odd_rows(source, rng, schema.name)
                for lane in lanes.values():
                    lane.ingest()
                apply_both(lanes, appliers)
                writes += sum(compare_table(lanes, name) for name in names)
            check_filters(lanes["native"], names, rng)
            for name in set(names) & set(names_in(lanes["native"])):
                compare_by_spark(lanes, name)
    assert compare_records(lanes) > 0
    made = [by_us for name in names_in(lanes["native"]) for by_us in commits(lanes["native"], name)]
    print(f"{writes} tables compared, {sum(made)} of {len(made)} commits are native")
    assert sum(made) >= least_writes
    assert sum(made) > len(made) / 2


def create_odd_tables(source: Connection, schema: str) -> list[TableName]:
    """Create a table with a key and one with identity FULL; return their names."""
    for table, key in (("odd", "id int PRIMARY KEY"), ("odd_full", "id int")):
        source.execute(f"CREATE TABLE {schema}.{table} ({key}, {', '.join(ODD)})".encode())
    source.execute(f"ALTER TABLE {schema}.odd_full REPLICA IDENTITY FULL".encode())
    return [TableName(schema, "odd"), TableName(schema, "odd_full")]


def write_odd_rows(source: Connection, rng: Random, schema: str) -> None:
    """Replace some rows of both tables by others."""
    for table in ("odd", "odd_full"):
        for _ in range(4):
            key, values = rng.randrange(6), [rng.choice(texts) for texts in ODD.values()]
            source.execute(f"DELETE FROM {schema}.{table} WHERE id = %s".encode(), (rng.randrange(6),))
            source.execute(f"UPDATE {schema}.{table} SET day = %s WHERE id = %s".encode(), (values[0], key))
            source.execute(
                f"INSERT INTO {schema}.{table} SELECT %s, %s, %s, %s, %s "
                f"WHERE NOT EXISTS (SELECT FROM {schema}.{table} WHERE id = %s)".encode(),
                (key, *values, key),
            )


def apply_both(lanes: Mapping[WriterSetting, Pipeline], appliers: Mapping[WriterSetting, Applier]) -> None:
    """Apply by both writers up to the LSN that both lakes have."""
    from pipeline.bronze.log import BronzeOffset

    captured = {writer: applier.bronze.captured_offset() for writer, applier in appliers.items()}
    end = min(offset.lsn for offset in captured.values() if offset)
    TableLog.forget(lanes["native"].root)  # a new run reads checkpoints
    for writer, applier in appliers.items():
        offset = captured[writer]
        assert offset is not None
        summary = applier.apply_pending(BronzeOffset(offset.version, LSN(end)))
        assert summary.exit_code(strict=True) == 0, (writer, summary.lines())


def table_of(lane: Pipeline, name: TableName) -> LakeTable:
    return LakeTable(silver_path(lane.root, *name))


def compare_table(lanes: Mapping[WriterSetting, Pipeline], name: TableName) -> bool:
    """Assert that both lakes have the same table; return whether they have it."""
    tables = [table_of(lanes[writer], name) for writer in WRITERS]
    exists = [table.exists() for table in tables]
    assert exists[0] == exists[1], name
    if not exists[0]:
        return False
    by_spark, natively = (table.schema() for table in tables)
    columns = [(field.name, field.type) for field in natively.fields]
    assert columns == [(field.name, field.type) for field in by_spark.fields], name
    found = [Counter(map(repr, table.rows().to_pylist())) for table in tables]
    only = [list((one - other).items())[:3] for one, other in (found, found[::-1])]
    assert found[0] == found[1], (name, only)
    return True


def compare_by_spark(lanes: Mapping[WriterSetting, Pipeline], name: TableName) -> None:
    """Assert that Spark reads the native table as its own one is read."""
    lane, columns = lanes["native"], table_of(lanes["native"], name).schema().names
    by_spark = silver_rows(lane.session, lane.root, *name, columns)
    assert by_spark == arrow_rows(silver_path(lanes["spark"].root, *name), columns), name


def compare_records(lanes: Mapping[WriterSetting, Pipeline]) -> int:
    """Assert that both lakes recorded the same misfits and events; return how many misfits there are."""
    misfits = {writer: records(lane, "misfits", ()) for writer, lane in lanes.items()}
    assert misfits["native"] == misfits["spark"]
    events = {writer: records(lane, "events", ("recorded_at",)) for writer, lane in lanes.items()}
    assert events["native"] == events["spark"]
    return misfits["native"].total()


def records(lane: Pipeline, table: str, without: tuple[str, ...]) -> Counter[str]:
    recorded = LakeTable(str(lane.path("_pgdelta", table)))
    rows = recorded.rows().to_pylist() if recorded.exists() else []
    for row in rows:
        if is_about_rewrite(row.get("sentence", "")):
            row["lsn"] = None  # that of the run of ingest that found it
    return Counter(repr({k: v for k, v in row.items() if k not in without}) for row in rows)


def names_in(lane: Pipeline) -> list[TableName]:
    return [TableName(path.parent.name, path.name) for path in lane.path("silver").glob("*/*")]


def commits(lane: Pipeline, name: TableName) -> Iterator[bool]:
    """Yield for each commit of rows whether it was made natively."""
    log = lane.path("silver", *name) / "_delta_log"
    for path in log.glob("*.json"):
        actions = [json.loads(line) for line in path.read_bytes().splitlines()]
        [information] = [action["commitInfo"] for action in actions if "commitInfo" in action]
        if information["operation"] in ("WRITE", "MERGE"):
            yield information["engineInfo"].startswith("pgdelta/")


# Filters ----------------------------------------------------------------------------------------------------


def check_filters(lane: Pipeline, names: list[TableName], rng: Random) -> None:
    """Assert that readers that skip files and row groups find as many rows as there are."""
    for name in names:
        table = table_of(lane, name)
        if not table.exists():
            continue
        rows = table.rows()
        filters: list[Filter] = []
        for column in rows.column_names:
            values = [v for v in rows.column(column).to_pylist() if is_scalar(v)]
            if values:
                filters.append((column, rng.choice(("=", "=", "<", ">=")), rng.choice(values)))
        if not filters:
            continue
        expected = [count(rows.column(column).to_pylist(), op, value) for column, op, value in filters]
        path = silver_path(lane.root, *name)
        few = rng.sample(range(len(filters)), min(len(filters), SPARK_FILTERS))
        found = by_spark(lane.session, path, [filters[i] for i in few])
        wanted = [expected[i] for i in few]
        assert found == wanted, (name, differing([filters[i] for i in few], found, wanted))
        if lane.root.startswith("hdfs:"):  # which the others have no client for
            continue
        found = by_duckdb(path, filters)
        assert found == expected, (name, differing(filters, found, expected))
        found = by_polars(path, filters)
        assert found == expected, (name, differing(filters, found, expected))


Filter = tuple[str, str, Any]
# Days that the calendar before the Gregorian reform does not have. Spark compares a DATE or a TIMESTAMP with
# another day where a filter names one of them, whoever wrote the table.
GAP = (date(1582, 10, 5), date(1582, 10, 14))


def differing(filters: list[Filter], found: list[int], expected: list[int]) -> list[tuple[Filter, int, int]]:
    """Return the filters that found another number of rows than there are."""
    return [each for each in zip(filters, found, expected, strict=True) if each[1] != each[2]]


def is_scalar(value: Any) -> bool:
    if isinstance(value, date) and GAP[0] <= date(value.year, value.month, value.day) <= GAP[1]:
        return False
    if isinstance(value, float) and value == 0.0:
        return False  # Spark finds zeros of the other sign in some Parquet files only, whoever wrote them
    return isinstance(value, (bool, int, float, str, Decimal, date, datetime))


def order(value: Any) -> Any:
    """Return what sorts as Spark, DuckDB and polars do: NaN is the greatest number, and equal to itself."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def count(values: list[Any], operator: str, value: Any) -> int:
    found = [order(each) for each in values if each is not None]
    wanted = order(value)
    if operator == "=":
        return sum(each == wanted for each in found)
    return sum(each < wanted if operator == "<" else each >= wanted for each in found)


def literal_sql(value: Any, *, spark: bool) -> str:
    """Return a value as SQL of its own type."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            text = repr(value).replace("nan", "NaN").replace("inf", "Infinity")
            return f"CAST('{text}' AS DOUBLE)"
        case int() | Decimal():
            return format(value, "f") if isinstance(value, Decimal) else str(value)
        case str():
            return (SPARK if spark else DUCKDB).literal(value)
        case datetime():
            zone = "" if value.tzinfo else ("_NTZ" if spark else "")
            kind = "TIMESTAMP" + ("TZ" if value.tzinfo and not spark else zone)
            return f"CAST('{value.isoformat(sep=' ')}' AS {kind})"
    return f"DATE '{value.isoformat()}'"


def by_spark(spark: SparkSession, path: str, filters: list[Filter]) -> list[int]:
    conditions = (
        f"{backticked(column)} {operator} {literal_sql(value, spark=True)}"
        for column, operator, value in filters
    )
    queries = (f"(SELECT count(*) FROM delta.{backticked(path)} WHERE {each})" for each in conditions)
    return list(spark.sql(f"SELECT {', '.join(queries)}").collect()[0])


def by_duckdb(path: str, filters: list[Filter]) -> list[int]:
    """Count by DuckDB's own Parquet reader, over the files that the statistics in the log leave."""
    files = [str(file) for file in DeltaTable(path).file_uris()]
    if not files:
        return [0] * len(filters)
    found: list[int] = []
    with duckdb.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        for column, operator, value in filters:
            condition = f"{DUCKDB.quoted(column)} {operator} {literal_sql(value, spark=False)}"
            rows = f"read_parquet({files!r}, union_by_name := true)"
            found += connection.sql(f"SELECT count(*) FROM {rows} WHERE {condition}").fetchall()[0]
    return found


def by_polars(path: str, filters: list[Filter]) -> list[int]:
    frame = polars.scan_delta(path)
    found = []
    for column, operator, value in filters:
        expression = polars.col(column)
        literal = polars.lit(value, dtype=frame.collect_schema()[column])
        condition = {"=": expression.eq, "<": expression.lt, ">=": expression.ge}[operator](literal)
        found.append(frame.filter(condition).select(polars.len()).collect().item())
    return found
