"""A real that becomes double precision: silver has PostgreSQL's own cast of it, bit for bit."""

import struct
from random import Random

import pytest

from pipeline.operate.rebuild import run_rebuild
from pipeline.silver.write.writer_choice import WriterSetting
from tests.support.pipelines import Pipeline, assert_nothing_stopped, with_writer

pytestmark = pytest.mark.spark

VALUES = (
    "0.1", "0", "-0", "NaN", "Infinity", "-Infinity", "1e-45", "-1.1754942e-38", "1.17549435e-38", "16777217",
    "3.4028235e+38", "1e+15", "123456.79", "-1e-7", "0.3", "9.999999e+14",
)  # fmt: skip
TABLES = {
    "plain": "id int PRIMARY KEY, v real",
    "keyed": "v real PRIMARY KEY, id int, w text",
    "whole": "id int, v real",
    "free": "id int, v real",
}


def bits(value: float | None) -> str | None:
    return None if value is None else "NaN" if value != value else struct.pack(">d", value).hex()


def at_source(pipeline: Pipeline, table: str, column: str = "v") -> list[tuple[int, str | None]]:
    text = f"CASE WHEN {column} = 'NaN' THEN 'NaN' ELSE encode(float8send({column}), 'hex') END"
    rows = pipeline.source.execute(f"SELECT id, {text} FROM {table}".encode()).fetchall()
    return sorted((row[0], row[1]) for row in rows)


def in_silver(pipeline: Pipeline, table: str, column: str = "v") -> list[tuple[int, str | None]]:
    frame = pipeline.frame("silver", "public", table)
    assert dict(frame.dtypes)[column] == "double"
    return sorted((row[0], bits(row[1])) for row in frame.select("id", column).collect())


def assert_same_bits(pipeline: Pipeline) -> None:
    for table in TABLES:
        assert in_silver(pipeline, table) == at_source(pipeline, table), table


def insert(first: int, values: tuple[str, ...]) -> list[str]:
    rows = [(first + n, value) for n, value in enumerate(values)]
    listed = ", ".join(f"({n}, '{value}')" for n, value in rows)
    keyed = ", ".join(f"({n}, '{value}')" for n, value in rows if value != "-0")  # as a key it equals 0
    return [
        f"INSERT INTO {table} (id, v) VALUES {keyed if table == 'keyed' else listed} ON CONFLICT DO NOTHING"
        for table in TABLES
    ]


@pytest.mark.promise("widened reals")
@pytest.mark.parametrize(
    ("writer", "is_apart"),
    [
        ("native", False),
        pytest.param("native", True, marks=pytest.mark.slow),
        pytest.param("spark", False, marks=pytest.mark.slow),
        pytest.param("spark", True, marks=pytest.mark.slow),
    ],
    ids=["native, in one batch", "native, in two", "spark, in one batch", "spark, in two"],
)
def test_a_real_that_becomes_double_precision_has_the_bits_of_its_cast(
    pipeline: Pipeline, writer: WriterSetting, is_apart: bool
) -> None:
    pipeline = with_writer(pipeline, writer)
    rng = Random(1)
    more = tuple(str(struct.unpack("f", rng.randbytes(4))[0]).replace("inf", "Infinity") for _ in range(40))
    pipeline.run(*(f"CREATE TABLE {table} ({columns})" for table, columns in TABLES.items()))
    pipeline.ingest("ALTER TABLE whole REPLICA IDENTITY FULL", "ALTER TABLE free REPLICA IDENTITY NOTHING")
    pipeline.run(*insert(1, VALUES), *insert(100, more))
    if is_apart:
        pipeline.catch_up()
    pipeline.run(
        "UPDATE keyed SET w = 'before' WHERE id = 1",
        "ALTER TABLE plain ADD d real DEFAULT 0.1",
        "INSERT INTO plain VALUES (900, 0.1, 0.7), (901, 0.2, DEFAULT)",
    )
    pipeline.ingest()  # later the catalog does not have the default of the older rows
    pipeline.catch_up(
        *(f"ALTER TABLE {table} ALTER v TYPE float8" for table in TABLES),
        "ALTER TABLE plain ALTER d TYPE float8",
        *insert(500, ("0.1", "0.30000000000000004", "5e-324", "1.7976931348623157e+308")),
        "UPDATE plain SET id = id + 2000 WHERE id < 4",
        "UPDATE keyed SET w = 'after' WHERE id IN (1, 2, 12)",
        "DELETE FROM keyed WHERE id IN (3, 4, 7)",
        "UPDATE keyed SET v = 0.25 WHERE id = 13",
        "UPDATE whole SET id = id + 1000 WHERE id IN (1, 3, 4, 7, 100, 101)",
        "DELETE FROM whole WHERE id IN (2, 5, 9, 102)",
    )
    assert_same_bits(pipeline)
    assert in_silver(pipeline, "plain", "d") == at_source(pipeline, "plain", "d")
    pipeline.assert_equal(*TABLES)
    kinds = [kind for table in TABLES for kind, _ in pipeline.events(table)]
    assert not {"resync", "held"} & set(kinds)
    # silver stays as wide as it is, and finds the rows
    pipeline.catch_up(
        "UPDATE plain SET v = 0.1 WHERE id IN (502, 503)",
        "UPDATE whole SET v = 0.1 WHERE id IN (502, 503)",
        "ALTER TABLE plain ALTER v TYPE real",
        "ALTER TABLE whole ALTER v TYPE real",
        "INSERT INTO plain (id, v) VALUES (3000, 0.1)",
        "DELETE FROM whole WHERE id IN (1001, 6)",
        "UPDATE keyed SET w = 'last' WHERE id < 20",
    )
    whole = [number for number, _ in in_silver(pipeline, "whole")]
    assert whole == [number for number, _ in at_source(pipeline, "whole")]
    assert [row for row in in_silver(pipeline, "plain") if row[0] == 3000] == [(3000, "3fb99999a0000000")]
    assert in_silver(pipeline, "keyed") == at_source(pipeline, "keyed")
    pipeline.catch_up("ALTER TABLE plain ALTER v TYPE float8", "UPDATE plain SET v = 0.2 WHERE id = 3000")
    rebuilt = run_rebuild(pipeline.config, ["public.plain", "public.keyed"])
    assert_nothing_stopped(rebuilt)
    for table, column in (("keyed", "v"), ("plain", "d")):
        assert in_silver(pipeline, table, column) == at_source(pipeline, table, column)
