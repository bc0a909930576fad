"""Silver live with Spark shows the same as without it, whoever folds the changes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.tables import RowMode, TableRule
from pipeline.operate.live import LiveReader, open_live
from tests.support.comparable.arrow import comparable_rows
from tests.support.comparable.silver import frame_rows
from tests.support.pipelines import MakePipeline, with_writer
from tests.support.seeds import seed_of_run
from tests.support.workload.tables import Table, create_schema
from tests.support.workload.transactions import Step, run_workload

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

FIXED_SEED = 20_271


class RowSteps(Step):
    """Steps that change no column."""

    def add_column(self, table: Table) -> None:
        self.insert(table)


@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_live_is_the_same_with_and_without_spark(make_pipeline: MakePipeline, mode: RowMode) -> None:
    prove(make_pipeline, FIXED_SEED, mode=mode, schemas=1, cuts=1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mirror", "soft_delete", "history", "append"])
def test_live_is_the_same_with_and_without_spark_in_many_workloads(
    make_pipeline: MakePipeline, mode: RowMode
) -> None:
    prove(make_pipeline, seed_of_run(), mode=mode, schemas=6, cuts=3)


def prove(make_pipeline: MakePipeline, seed: int, *, mode: RowMode, schemas: int, cuts: int) -> None:
    """Read live in all ways after each of some workloads."""
    print(f"PGDELTA_SEED={seed}")
    rng = Random(seed)
    pipeline = with_writer(make_pipeline("*.*", create_publication="all"), "auto")
    config = replace(pipeline.config, tables=(TableRule("w_*.*", mode=mode),))
    by_spark = replace(config, silver=replace(config.silver, writer="spark"))
    pipeline.ingest()
    readers = [open_live(each, pipeline.spark) for each in (config, by_spark)]
    for number in range(schemas):
        schema = create_schema(pipeline.source, rng, name=f"w_{number}")
        for _ in range(cuts + 1):
            run_workload(pipeline.source, rng, 5, schema=schema, steps=RowSteps)
            pipeline.ingest()
            live = LiveReader(config).read()
            wanted = {name: comparable_rows(live[name].to_table()) for name in live}
            for reader in readers:
                frames = reader.read()
                assert (frames.lsn, frames.keys(), frames.refused) == (live.lsn, live.keys(), live.refused)
                for name in frames:
                    assert frames[name].columns == live[name].schema.names
                    found = frame_rows(frames[name], frames[name].columns)
                    assert found == wanted[name], (name, found - wanted[name], wanted[name] - found)
            Applier(None, config).apply_pending()
