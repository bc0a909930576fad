"""Reconcile without Spark: every kind of table and of difference, and the same verdicts as by Spark."""

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.config.tables import TableRule
from pipeline.delta.table import LakeTable
from pipeline.metadata.reconciliations import DIFFERENT, EQUAL, PROVE, RECONCILE, Method
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.verify.reconcile import run_reconcile
from pipeline.verify.reconcile_report import Reconciled
from tests.support.pipelines import MakePipeline, Pipeline, with_rules, with_writer

RULES = (
    TableRule("public.divided", partition_by=("region",)),
    TableRule("public.marked", mode="soft_delete"),
    TableRule("public.past", mode="history"),
    TableRule("public.*"),
)
KEYED = ("divided", "marked", "past", "renamed", "quiet", "emptied")
TYPED = """CREATE TABLE typed (id int PRIMARY KEY, ok bool, small numeric(5, 5), price numeric(38, 10),
    "e" float4, "p" float8, raw bytea, day date, at timestamp, instant timestamptz, tags text[],
    parts numeric(2, 2)[], days date[], name char(4))"""
VALUES = (
    r"""(1, true, 0.5, -0.0000000001, '-0', 'NaN', '\x00ff', '0001-01-01', '9999-12-31 23:59:59.999999',
        '1582-10-10 01:02:03.0001+00', '{"a,b",NULL,"","nUll","\"\\"}', '{-.01,.5}', '{2024-02-29}', 'ü')""",
    r"""(2, false, -0.00001, 'NaN', 'Infinity', 5e-324, '', 'infinity', '-infinity', '0044-03-15 BC', '{}',
        '{NULL}', '{infinity}', '')""",
    "(3)",
)
SETUP = (
    TYPED,
    *(f"INSERT INTO typed VALUES {row}" for row in VALUES),
    *(f"CREATE TABLE {name} (id int PRIMARY KEY, region text, v text)" for name in KEYED),
    *(f"INSERT INTO {name} SELECT i, 'r' || i % 2, 'v' || i FROM generate_series(1, 9) i" for name in KEYED),
    "CREATE TABLE bag (n int, v text)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "INSERT INTO bag SELECT nullif(i % 3, 0), nullif('v' || i % 2, 'v1') FROM generate_series(1, 12) i",
)
APPLIED = (
    "ALTER TABLE renamed RENAME COLUMN v TO w",
    "INSERT INTO renamed VALUES (10, 'r0', 'w')",
    *(f"DELETE FROM {name} WHERE id = 1" for name in KEYED),
    *(f"UPDATE {name} SET region = 'r7' WHERE id = 2" for name in KEYED),
)
PENDING = (
    "UPDATE typed SET price = 1 WHERE id = 3",
    *(f"UPDATE {name} SET region = 'r8' WHERE id = 3" for name in KEYED if name not in ("quiet", "emptied")),
    *(f"DELETE FROM {name} WHERE id = 4" for name in KEYED if name not in ("quiet", "emptied")),
    "DELETE FROM bag WHERE n IS NULL AND v IS NULL",
    "INSERT INTO bag VALUES (NULL, 'more')",
    "TRUNCATE emptied",
    "INSERT INTO emptied VALUES (1, 'after', NULL)",
)
Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def kinds(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline whose tables have changes that silver lacks."""
    pipeline = make_pipeline(copy="initial", create_publication="all")
    made = with_writer(with_rules(pipeline, *RULES), "native")
    made.catch_up(*SETUP)
    made.catch_up(*APPLIED)
    made.run(*PENDING)
    return made


def injure(
    pipeline: Pipeline, name: str, where: pc.Expression, condition: str, change: Change | None
) -> None:
    """Replace rows of a silver table as a fault would, or remove them."""
    table = LakeTable(f"{pipeline.root}/silver/public/{name}")
    rows = table.rows(where=where)
    assert rows.num_rows
    table.delete_rows(where, condition, table.schema().names)
    if change is not None:
        table.append_rows(change(rows), "")


def with_value(column: str, value: Any) -> Change:
    def change(rows: pa.Table) -> pa.Table:
        number = rows.schema.get_field_index(column)
        values = pa.array([value] * rows.num_rows, rows.schema.field(number).type)
        return rows.set_column(number, rows.schema.field(number), values)

    return change


def injure_all(pipeline: Pipeline) -> None:
    first, five = pc.field("id") == 1, pc.field("id") == 5
    injure(pipeline, "typed", first, "id = 1", with_value("e", 0.0))  # not -0
    injure(pipeline, "quiet", five, "id = 5", None)
    injure(pipeline, "quiet", pc.field("id") == 6, "id = 6", lambda rows: pa.concat_tables([rows, rows]))
    injure(pipeline, "quiet", pc.field("id") == 7, "id = 7", with_value("v", None))
    injure(pipeline, "quiet", pc.field("id") == 8, "id = 8", with_value("id", 80))
    injure(pipeline, "marked", five, "id = 5", with_value("_deleted", True))
    injure(pipeline, "past", five, "id = 5", with_value("v", ""))
    has_two = pc.field("n").is_valid() & (pc.field("n") == 2)
    injure(pipeline, "bag", has_two, "n = 2", lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))


def compared(pipeline: Pipeline, writer: WriterSetting, method: Method = RECONCILE) -> Reconciled:
    return run_reconcile(with_writer(pipeline, writer).config, runs=True, method=method)


def differences(found: Reconciled) -> dict[str, list[tuple[object, ...]]]:
    return {v.name.table: sorted(map(astuple, v.rows), key=str) for v in found.verdicts if v.rows}


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(RECONCILE, marks=pytest.mark.promise("reconcile", "comparison in every mode")),
        pytest.param(PROVE, marks=pytest.mark.promise("proof")),
    ],
)
def test_every_kind_of_table_is_compared_without_spark(kinds: Pipeline, method: Method) -> None:
    found = compared(kinds, "auto", method)
    verdicts = {verdict.name.table: verdict for verdict in found.verdicts}
    assert verdicts.keys() == {*KEYED, "typed", "bag"}
    assert [verdict for verdict in found.verdicts if verdict.verdict != EQUAL] == []
    assert not any(verdict.left_out for verdict in found.verdicts)
    assert not found.by_spark
    pending = {name: verdict.pending for name, verdict in verdicts.items()}
    assert pending == {**dict.fromkeys(KEYED, 2), "typed": 1, "bag": 3, "quiet": 0, "emptied": 1}

    injure_all(kinds)
    found = compared(kinds, "auto", method)
    assert {v.name.table for v in found.verdicts if v.verdict == DIFFERENT} == {*differences(found)}
    assert differences(found) == {
        "typed": [("changed", '{"id": "1"}', ("e",), 1)],
        "quiet": [
            ("changed", '{"id": "7"}', ("v",), 1),
            ("missing", '{"id": "5"}', (), 1),
            ("missing", '{"id": "8"}', (), 1),
            ("surplus", '{"id": "6"}', (), 1),
            ("surplus", '{"id": "80"}', (), 1),
        ],
        "marked": [("missing", '{"id": "5"}', (), 1)],
        "past": [("changed", '{"id": "5"}', ("v",), 1)],
        "bag": [("surplus", None, (), 1)],
    }


@pytest.mark.spark
@pytest.mark.slow
def test_both_engines_reach_the_same_verdicts(kinds: Pipeline) -> None:
    for change in (None, injure_all):
        if change is not None:
            change(kinds)
        told = [
            [(v.name, v.verdict, v.source_rows, v.silver_rows, v.columns, v.misfits, v.pending) for v in each]
            + [differences(found)]
            for found in (
                compared(kinds, "auto"),
                compared(kinds, "spark"),
                compared(kinds, "spark", PROVE),
            )
            for each in [found.verdicts]
        ]
        assert told[0] == told[1] == told[2]
