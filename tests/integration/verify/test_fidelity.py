"""`pgdelta fidelity`: values of the source are equal values and misfits, which a rebuild brings back."""

from dataclasses import replace

import pytest

from pipeline.config.tables import TableRule
from pipeline.metadata.reconciliations import DIFFERENT, EQUAL
from pipeline.operate.rebuild import run_rebuild
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from pipeline.verify.fidelity import ColumnFidelity, Fidelity, TableFidelity, run_fidelity
from tests.support.pages import render
from tests.support.pipelines import MakePipeline, Pipeline, succeeded, with_rules, with_writer

pytestmark = pytest.mark.postgres

T = TableName("public", "t")
TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, price numeric(5, 2), kept date, lost date, near date, partner date,"
    " days date[], whole int[], n numeric, note text, raw bytea)"
)
RULE = TableRule("public.t", misfits={"near": "clamp", "partner": "text"}, types={"n": "DECIMAL(20,2)"})
ROWS = (
    "INSERT INTO t VALUES (1, 'NaN', '2024-01-01', 'infinity', '-infinity', '0044-03-15 BC',"
    " '{2024-01-01,infinity,NULL}', '{1,2}', 1.5, 'a', '\\xff')",
    "INSERT INTO t VALUES (2, 1.25, NULL, '2024-02-02', '2024-02-02', '2024-02-02',"
    " '{2024-01-01}', '{{1},{2}}', 1.005, '', NULL)",
    "INSERT INTO t SELECT g, g, '2024-03-03', NULL, 'infinity', NULL, NULL, '[2:3]={1,2}', g, NULL, NULL"
    " FROM generate_series(3, 12) g",
    "DELETE FROM t WHERE id = 12",
)
# column → values, misfits
EXPECTED = {
    "id": (11, 0),
    "price": (11, 1),
    "kept": (10, 0),
    "lost": (2, 1),
    "near": (11, 10),
    "partner": (2, 1),
    "days": (2, 1),
    "whole": (11, 10),
    "n": (11, 1),
    "note": (2, 0),
    "raw": (1, 0),
}


def columns(found: Fidelity) -> dict[str, ColumnFidelity]:
    [table] = [table for table in found.tables if table.name == T]
    return {column.name: column for column in table.columns}


@pytest.fixture(params=["native", pytest.param("spark", marks=pytest.mark.slow)])
def life(request: pytest.FixtureRequest, pipeline: Pipeline) -> Pipeline:
    """Give a pipeline of a table with misfits of every policy, by each writer."""
    made = with_writer(with_rules(pipeline, RULE, TableRule("*.*")), request.param)
    made.catch_up(TABLE)
    made.catch_up(*ROWS)
    return made


def test_every_value_is_equal_or_a_misfit_until_a_rebuild_brings_it_back(life: Pipeline) -> None:
    found = run_fidelity(life.config, runs=True)
    assert found.exit_code(strict=False) == 0
    counted = columns(found)
    compared = {name: column for name, column in counted.items() if column.reason is None}
    assert {name: (column.values, column.misfits) for name, column in compared.items()} == EXPECTED
    for column in compared.values():
        assert column.values == (column.equal or 0) + (column.misfits or 0)
    assert {name: column.policy for name, column in compared.items() if column.misfits} == {
        "price": "null",
        "lost": "null",
        "near": "clamp",
        "partner": "text",
        "days": "null",
        "whole": "null",
        "n": "null",
    }
    assert counted["near"].recorded == {"clamp": 10}
    assert counted["partner"].recorded == {"text": 1}
    total = found.as_json()["tables"][0]
    assert total["values"] == total["equal"] + total["misfits"]

    # the misfits are in bronze: with another type, a rebuild puts them into silver
    types = {name: "STRING" for name, column in compared.items() if column.misfits}
    healed = with_rules(life, replace(RULE, types=types, misfits={}), TableRule("*.*"))
    assert run_rebuild(healed.config).exit_code(strict=True) == 0
    again = succeeded(run_fidelity(healed.config, ["public.t"], runs=True))
    counts = {name: (each.values, each.misfits, each.equal) for name, each in columns(again).items()}
    assert counts == {name: (values, 0, values) for name, (values, _) in EXPECTED.items()}


@pytest.mark.slow
def test_a_table_that_differs_has_no_number_of_equal_values(life: Pipeline) -> None:
    path = life.path("silver", "public", "t")
    life.session.sql(f"UPDATE delta.`{path}` SET note = 'changed' WHERE id = 1")
    found = run_fidelity(life.config, ["public.t"], runs=True)
    assert found.exit_code(strict=False) == 1
    [table] = found.tables
    assert (table.verdict, table.total("equal"), table.total("values")) == (DIFFERENT, None, 74)
    assert "note" in table.sentence


@pytest.mark.slow
def test_the_page_shows_columns_with_misfits_and_what_to_do(life: Pipeline) -> None:
    page = render(run_fidelity(life.config, runs=True).print, 100)
    lines = page.splitlines()
    [near] = [line.split() for line in lines if line.strip().startswith("near")]
    assert near == ["near", "11", "1", "10", "clamp"]
    assert not any(line.strip().startswith("note") for line in lines)
    assert "pgdelta rebuild --table public.t" in page


def test_totals_leave_out_what_was_not_compared() -> None:
    found = (ColumnFidelity("a", "null", 5, 1, 4), ColumnFidelity("b", "null", reason="It is hashed."))
    table = TableFidelity(T, EQUAL, LSN(1), 5, found, "")
    assert (table.total("values"), table.total("equal"), table.total("misfits")) == (5, 4, 1)
    assert Fidelity("shop", (table,)).exit_code(strict=False) == 0
    assert Fidelity("shop", (table,)).exit_code(strict=True) == 1


@pytest.mark.promise("any schema change")
def test_generated_columns_that_are_not_published_are_named(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    twice = "int GENERATED ALWAYS AS (id * 2)"
    pipeline.catch_up(f"CREATE TABLE t (id int PRIMARY KEY, v {twice} VIRTUAL, s {twice} STORED)")
    pipeline.catch_up("INSERT INTO t VALUES (1)")

    def named() -> set[str]:
        found = run_fidelity(pipeline.config, runs=True)
        assert (found.exit_code(strict=False), found.exit_code(strict=True)) == (0, 1)
        return {name for name, column in columns(found).items() if column.reason is not None}

    assert named() == {"v", "s"}
    publication = pipeline.config.source.publication
    pipeline.catch_up(f"ALTER PUBLICATION {publication} SET (publish_generated_columns = stored)")
    pipeline.catch_up()  # copies the table, because its columns changed
    assert named() == {"v"}
    assert [(row.id, row.s) for row in pipeline.frame("silver", "public", "t").collect()] == [(1, 2)]
