"""Misfits record whose value it was, by its key, each time that the value comes to silver."""

import shutil
from collections import Counter
from dataclasses import replace

import pytest

from pipeline.config.tables import TableRule
from pipeline.key_ranges import KeyRange
from pipeline.operate.resync import run_resync
from tests.support.pipelines import MakePipeline


@pytest.mark.spark
@pytest.mark.slow
def test_misfits_of_a_partial_resync_and_of_a_rebuild_are_recorded(
    make_pipeline: MakePipeline,
) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, day date, n numeric)",
        "INSERT INTO t SELECT i, 'infinity', 'NaN' FROM generate_series(1, 3) i",
    )

    def recorded() -> Counter[str]:
        rows = pipeline.frame("_pgdelta", "misfits").collect()
        return Counter(row.column_name + row.key for row in rows)

    days = [f'day{{"id":"{i}"}}' for i in (1, 2, 3)]
    assert recorded() == Counter(days)
    for key in ("1", "2"):
        run_resync(pipeline.config, ["public.t"], key_ranges=[KeyRange((key,), (key,))])
        pipeline.catch_up()
        pipeline.apply()  # nothing comes twice
    assert recorded() == Counter([*days, *days[:2]]), "each once more, as of the snapshot of its keys"
    shutil.rmtree(pipeline.path("silver", "public", "t"))
    decimal = TableRule("public.t", types={"n": "DECIMAL(10,2)"})
    replace(pipeline, config=replace(pipeline.config, tables=(decimal,))).catch_up()
    numbers = Counter(key[0] for key in recorded())
    assert numbers == {"d": 3, "n": 3}
