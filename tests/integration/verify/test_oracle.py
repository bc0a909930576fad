"""The workload and the oracle on a live server: what is judged, and that the judge notices.

The first half replays a workload's own pgoutput messages through the model, without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.postgres.sql_text import quote_identifier
from pipeline.protocol.decode import decode
from pipeline.protocol.events import Change, Truncation
from pipeline.protocol.messages import UNCHANGED_TOAST, Delete, Insert, Relation, TupleData, Update
from pipeline.protocol.transactions import Assembler
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.comparable.silver import silver_path, silver_type
from tests.support.comparable.source import (
    Connection,
    Rows,
    parse_array,
    snapshot,
    source_columns,
    source_rows,
    value_reader,
)
from tests.support.model import ModelChange, Shape, Table, Text
from tests.support.servers import Database
from tests.support.workload.rows import WorkloadCounts
from tests.support.workload.tables import Schema, create_schema
from tests.support.workload.transactions import run_workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_capture(database: Database, schema: Schema) -> None:
    tables = ", ".join(table.quoted for table in schema.tables)
    database.run(
        f"CREATE PUBLICATION captured FOR TABLE {tables}",
        "SELECT pg_create_logical_replication_slot('captured_by_test', 'pgoutput')",
    )


def captured(conn: Connection) -> Iterator[bytes]:
    query = """SELECT data FROM pg_logical_slot_peek_binary_changes(
        'captured_by_test', NULL, NULL, 'proto_version', '1', 'publication_names', 'captured')"""
    with snapshot(conn):
        messages = conn.execute(query).fetchall()
    return (bytes(data) for [data] in messages)


def shape_of(relation: Relation, primary_key: tuple[str, ...]) -> Shape:
    names = [column.name for column in relation.columns]
    return Shape(
        tuple(names),
        relation.replica_identity,
        tuple(position for position, column in enumerate(relation.columns) if column.is_key),
        tuple(names.index(name) for name in primary_key),
    )


def texts(cells: TupleData) -> tuple[Text, ...]:
    return tuple(cell.decode() if isinstance(cell, bytes) else None for cell in cells)


def model_change(shape: Shape, data: bytes) -> ModelChange:
    match decode(data):
        case Insert(_, new):
            return ModelChange("I", shape, new=texts(new), unsent=unsent_in(new))
        case Update(_, kind, old, new):
            return ModelChange(
                "U", shape, kind, None if old is None else texts(old), texts(new), unsent_in(new)
            )
        case Delete(_, kind, old):
            return ModelChange("D", shape, kind, texts(old))
    raise AssertionError("not a row change")


def unsent_in(cells: TupleData) -> frozenset[int]:
    return frozenset(position for position, cell in enumerate(cells) if cell is UNCHANGED_TOAST)


def replayed(messages: Iterator[bytes], primary_keys: Mapping[str, tuple[str, ...]]) -> dict[str, Table]:
    """Return every table after the model applied the messages to it."""
    tables: dict[str, Table] = {}
    assembler = Assembler()
    for data in messages:
        match assembler.receive(data):
            case Change() as change:
                relation = change.relation
                shape = shape_of(relation, primary_keys.get(relation.name, ()))
                tables.setdefault(relation.name, Table()).apply(model_change(shape, change.data))
            case Truncation() as truncation:
                for relation in truncation.relations:
                    shape = shape_of(relation, ())
                    tables.setdefault(relation.name, Table()).apply(ModelChange("T", shape))
    return tables


def replay_faults(database: Database, seed: int, transactions: int = 40) -> tuple[list[str], WorkloadCounts]:
    """Run a workload, replay its stream with and without the primary keys, and return what differs."""
    faults = []
    with database.connect() as conn:
        rng = Random(seed)
        schema = create_schema(conn, rng)
        start_capture(database, schema)
        counts = run_workload(conn, rng, transactions, schema=schema)
        for keys in ({}, {"accounts": ("id",)}):
            tables = replayed(captured(conn), keys)
            with snapshot(conn):
                for table in schema.tables:
                    columns = source_columns(conn, table.schema, table.name)
                    source = source_rows(conn, table.schema, table.name, columns)
                    model = tables.get(table.name, Table())
                    assert not model.unavailable
                    readers = [value_reader(column) for column in columns]
                    rows = model.counted([column.name for column in columns])
                    found: Rows = Counter()
                    for row, count in rows.items():
                        values = zip(readers, row, strict=True)
                        found[tuple(None if text is None else read(text) for read, text in values)] += count
                    names = [column.name for column in columns]
                    faults += [f"{table.name}: {line}" for line in oracle.row_faults(names, source, found)]
    return faults, counts


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(6))
def test_model_follows_the_stream_of_a_live_server(database: Database, seed: int) -> None:
    faults, counts = replay_faults(database, seed)
    assert not faults, f"seed {seed}\n" + "\n".join(faults)
    assert counts.transactions == 40


def test_model_follows_the_stream_of_postgresql_10(old_database: Database) -> None:
    faults, counts = replay_faults(old_database, 7)
    assert not faults, "\n".join(faults)
    assert counts.truncates == 0


@pytest.mark.quick
def test_stream_holds_old_keys_that_did_not_change(database: Database) -> None:
    """A key in TOAST is sent as K by every update and left out of the new row."""
    assembler, found = Assembler(), Counter[str]()
    with database.connect() as conn:
        rng = Random(11)
        schema = create_schema(conn, rng)
        start_capture(database, schema)
        run_workload(conn, rng, 80, schema=schema)
        for data in captured(conn):
            event = assembler.receive(data)
            if isinstance(event, Change) and isinstance(update := decode(event.data), Update):
                key = [position for position, column in enumerate(event.relation.columns) if column.is_key]
                lacks_key = any(update.new[position] is UNCHANGED_TOAST for position in key)
                found[f"{event.relation.replica_identity} {update.old_kind} {lacks_key}"] += 1
    assert {
        "d None False",
        "d K False",
        "i None False",
        "i K False",
        "i K True",
        "f O False",
        "f O True",
    } <= set(found), found


@pytest.mark.quick
def test_workload_reaches_every_kind_of_change(database: Database) -> None:
    with database.connect() as conn:
        rng = Random(3)
        counts = run_workload(conn, rng, 150, schema=create_schema(conn, rng))
    assert all(getattr(counts, kind) > 0 for kind in counts.__slots__), counts
    assert min(counts.inserts, counts.updates, counts.deletes, counts.key_changes, counts.toast_unsent) > 50


def test_same_seed_makes_the_same_rows(database: Database) -> None:
    results = []
    with database.connect() as conn:
        for name in ("one", "two"):
            rng, positions = Random(9), list[str]()
            schema = create_schema(conn, rng, name=name)
            run_workload(conn, rng, 30, schema=schema, commit_hook=positions.append)
            assert len(positions) == 30
            with snapshot(conn):
                results.append([source_rows(conn, name, table.name) for table in schema.tables])
    assert results[0] == results[1]


# The judge on silver tables that are right, and that are not ------------------------------------------------


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    """Give the process's one Spark session."""
    from pipeline.delta.spark.session import start_session

    return start_session("oracle")


by_both_readers = pytest.mark.parametrize("by_spark", [False, pytest.param(True, marks=pytest.mark.slow)])


def write_silver(spark: SparkSession, conn: Connection, root: str, schema: str, table: str) -> None:
    """Write a silver table from the source's text by Spark's own casts."""
    from pyspark.sql import functions

    columns = source_columns(conn, schema, table)
    names = ", ".join(quote_identifier(column.name) for column in columns)
    with snapshot(conn):
        result = conn.execute(f"SELECT {names} FROM {quote_identifier(schema, table)}").pgresult
    assert result is not None
    rows: list[tuple[Any, ...]] = []
    for at in range(result.ntuples):
        raw = (result.get_value(at, position) for position in range(len(columns)))
        cells = zip(columns, (None if cell is None else bytes(cell).decode() for cell in raw), strict=True)
        rows.append(tuple(parse_array(text) if text and c.element else text for c, text in cells))
    types = ", ".join(f"c{i} {'array<string>' if c.element else 'string'}" for i, c in enumerate(columns))
    selected = []
    for position, column in enumerate(columns):
        type_ = silver_type(column)
        value = functions.col(f"c{position}")
        if type_ == "binary":
            value = functions.unhex(functions.substring(value, 3, 10**6))
        selected.append(value.cast(type_).alias(column.name))
    frame = spark.createDataFrame(rows, types).select(
        *selected,
        functions.lit(1).cast("bigint").alias("_commit_lsn"),
        functions.current_timestamp().alias("_commit_time"),
    )
    frame.write.format("delta").mode("overwrite").save(silver_path(root, schema, table))


@by_both_readers
def test_judge_accepts_equal_tables_and_names_each_difference(
    database: Database, spark: SparkSession, tmp_path: Path, by_spark: bool
) -> None:
    root = str(tmp_path)
    with database.connect() as conn:
        rng = Random(5)
        schema = create_schema(conn, rng, name="judged")
        run_workload(conn, rng, 25, schema=schema)
        conn.execute("TRUNCATE judged.readings, judged.documents")
        conn.execute("INSERT INTO judged.readings (sensor, value) VALUES (1, '-0'), (1, '-0'), (2, 'NaN')")
        conn.execute("INSERT INTO judged.documents (id, title) VALUES (1, 'a  '), (2, NULL)")
        for schema_name, name in schema.names:
            write_silver(spark, conn, root, schema_name, name)
        zone = spark.conf.get("spark.sql.session.timeZone")
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        try:
            oracle.assert_silver_equals_source(conn, spark, root, schema.names, by_spark=by_spark)
        finally:
            spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
        for table_name, statement, complaint in (
            (
                "readings",
                "UPDATE judged.readings SET value = 0 WHERE sensor = 1",
                "2 rows missing from silver",
            ),
            ("documents", "DELETE FROM judged.documents WHERE id = 2", "1 rows too many in silver"),
            (
                "accounts",
                "ALTER TABLE judged.accounts ALTER rate TYPE numeric",
                "rate is double, should be string",
            ),
            ("journal", "ALTER TABLE judged.journal DROP n", "columns that the source has not: n"),
        ):
            conn.execute(statement)
            with pytest.raises(AssertionError, match=complaint):
                oracle.assert_silver_equals_source(
                    conn, spark, root, [TableName("judged", table_name)], by_spark=by_spark
                )


@by_both_readers
def test_repeats_and_gaps_in_bronze_are_found(spark: SparkSession, tmp_path: Path, by_spark: bool) -> None:
    root = str(tmp_path)
    types = "commit_lsn long, end_lsn long, ordinal long, xid long, op string, transactional boolean"

    def append(*rows: tuple[Any, ...]) -> None:
        frame = spark.createDataFrame(list(rows), types)
        frame.write.format("delta").mode("append").save(f"{root}/bronze/changes")

    def judge(complaint: str | None = None) -> None:
        with pytest.raises(AssertionError, match=complaint) if complaint else nullcontext():
            oracle.bronze_has_no_duplicates(spark, root, by_spark=by_spark)

    judge()
    append(
        (1, 2, 0, 5, "I", None), (1, 2, 1, 5, "T", None), (1, 2, 0, 5, "M", True), (1, 1, 0, None, "M", False)
    )
    judge()
    append((20, 21, 1, 7, "I", None))
    judge("commit_lsn=20")
    append((1, 2, 0, 5, "I", None))
    judge("commit_lsn=1, ")
