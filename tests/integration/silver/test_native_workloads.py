"""Silver equals the source after random workloads whose tables are all written without Spark.

Nothing here may start Spark: every batch would need a job for each of its tables.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.delta.table import LakeTable
from pipeline.ingest.job import run_ingest
from tests.support.comparable.arrow import arrow_rows
from tests.support.comparable.silver import silver_path
from tests.support.comparable.source import snapshot, source_columns, source_rows
from tests.support.modes.workloads import RowSteps
from tests.support.pipelines import succeeded
from tests.support.seeds import printed_rng, seed_of_run
from tests.support.servers import Database
from tests.support.workload.tables import Connection, Schema, create_schema
from tests.support.workload.transactions import run_workload

pytestmark = pytest.mark.usefixtures("without_spark")

FIXED_SEED = 20_263


@pytest.mark.parametrize("copy", ["initial", "never"])
@pytest.mark.parametrize(("schemas", "cuts"), [(1, 3), pytest.param(60, 8, marks=pytest.mark.slow)])
def test_random_workloads_need_no_spark(
    database: Database, tmp_path: Path, copy: str, schemas: int, cuts: int
) -> None:
    seed = FIXED_SEED if schemas == 1 else seed_of_run()
    rng = printed_rng(seed)
    config = database.config("*.*", root=str(tmp_path / "lake"), create_publication="all", copy=copy)
    silver = replace(config.silver, writer="auto")
    config = replace(config, silver=silver, tables=(TableRule("w_*.*"),))
    if copy == "never":
        run_ingest(config)
    applier = Applier(None, config)
    with database.connect() as source:
        source.execute("CREATE TABLE other (v int)")
        for number in range(schemas):
            schema = create_schema(source, rng, name=f"w_{number}")
            for _ in range(cuts):
                run_workload(source, rng, 4, schema=schema, steps=RowSteps)
                run_ingest(config)
                source.execute("INSERT INTO other VALUES (1)")  # a copy is applied once the stream is past it
                run_ingest(config)
                if rng.random() < 0.2:
                    applier = Applier(None, config)
                succeeded(applier.apply_pending())
                assert_equal(source, config, schema)


def assert_equal(source: Connection, config: Config, schema: Schema) -> None:
    with snapshot(source):
        for name in schema.names:
            columns = source_columns(source, *name)
            wanted = source_rows(source, *name, columns)
            path = silver_path(config.storage.root, *name)
            if not LakeTable(path).exists():
                assert not wanted, name
                continue
            found = arrow_rows(path, [column.name for column in columns])
            assert found == wanted, (
                name,
                list((wanted - found).items())[:3],
                list((found - wanted).items())[:3],
            )
