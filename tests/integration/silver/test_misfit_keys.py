"""Misfits say whose value it was, by its key, and each is recorded whenever it comes to silver anew."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace

import pytest

from pipeline.config.tables import TableRule
from pipeline.key_ranges import KeyRange
from pipeline.operate.resync import run_resync
from tests.support.pipelines import MakePipeline, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

KEYS = {
    "text": ["a", "", "NULL"],
    "bytea": ["\\xff", "\\xfe"],
    "text[]": ['{a,"b, c"}', "{a,b,c}", "{a,NULL}"],
}


@pytest.mark.parametrize(
    "type_",
    ["text", *(pytest.param(type_, marks=pytest.mark.slow) for type_ in ("bytea", "text[]"))],
)
def test_misfits_of_different_rows_have_different_keys(pipeline: Pipeline, type_: str) -> None:
    pipeline.run(f"CREATE TABLE keyed (k {type_} PRIMARY KEY, day date)")
    pipeline.ingest()
    pipeline.run(*(f"INSERT INTO keyed VALUES ('{key}', 'infinity')" for key in KEYS[type_]))
    pipeline.catch_up()
    recorded = [row.key for row in pipeline.frame("_pgdelta", "misfits").collect()]
    assert len(recorded) == len(set(recorded)) == len(KEYS[type_])


@pytest.mark.slow
def test_misfits_of_keys_copied_again_and_of_a_table_built_again_are_recorded(
    make_pipeline: MakePipeline,
) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.run(
        "CREATE TABLE t (id int PRIMARY KEY, day date, n numeric)",
        "INSERT INTO t SELECT i, 'infinity', 'NaN' FROM generate_series(1, 3) i",
    )
    pipeline.catch_up()

    def recorded() -> Counter[str]:
        rows = pipeline.frame("_pgdelta", "misfits").collect()
        return Counter(row.column_name + row.key for row in rows)

    days = [f'day{{"id":"{i}"}}' for i in (1, 2, 3)]
    assert recorded() == Counter(days)
    for key in ("1", "2"):
        run_resync(pipeline.config, ["public.t"], key_ranges=[KeyRange((key,), (key,))], spark=pipeline.spark)
        pipeline.catch_up()
        pipeline.apply()  # nothing comes twice
    assert recorded() == Counter([*days, *days[:2]]), "each once more, as of the snapshot of its keys"
    shutil.rmtree(pipeline.path("silver", "public", "t"))
    decimal = TableRule("public.t", types={"n": "DECIMAL(10,2)"})
    replace(pipeline, config=replace(pipeline.config, tables=(decimal,))).catch_up()
    numbers = Counter(key[0] for key in recorded())
    assert numbers == {"d": 3, "n": 3}
