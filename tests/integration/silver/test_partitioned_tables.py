"""Tables that are divided into partitions have the rows of the source, by both writers, in every mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.apply.applier import Applier
from pipeline.bronze import change_rows
from pipeline.config.config import Config
from pipeline.crash_steps import CrashStep
from pipeline.delta import data_files
from pipeline.delta.table import LakeTable
from pipeline.ingest.job import run_ingest
from pipeline.silver.write import batch_writer
from tests.support.comparable.arrow import arrow_rows
from tests.support.comparable.silver import silver_path
from tests.support.comparable.source import Connection, snapshot, source_columns, source_rows
from tests.support.fault_points import WHEN, crash_at
from tests.support.modes.oracle import assert_equals_model
from tests.support.modes.workloads import KEYED, MODES, RowSteps, config_of_modes, names_of, rule_of
from tests.support.pipelines import Crash, succeeded
from tests.support.seeds import printed_rng, seed_of_run
from tests.support.servers import Database
from tests.support.workload.tables import Schema, create_schema
from tests.support.workload.transactions import run_workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIXED_SEED = 20_265
APPLY_STEPS = (
    CrashStep.EVOLVE_COLUMNS,
    CrashStep.REGISTER_TABLE,
    CrashStep.WRITE_TABLE,
    CrashStep.RECORD_MANIFEST,
)
# in the key or not, often set by updates; many rows have values of their own
PARTITIONS = {
    "documents": ("revision",),
    "Lines": ("day", "paid"),
    "tickets": ("part",),
    "readings": ("money",),
    "accounts": ("balance", "id"),
    "journal": ("day",),
}


def divided(config: Config, modes: Sequence[str] = ("mirror",)) -> Config:
    """Return a pipeline whose tables have partitions, those of schemas `w_<mode>_…` in a mode."""
    rules = []
    for mode, (table, columns) in product(modes, PARTITIONS.items()):
        schemas = "w_*" if mode == "mirror" else f"w_{mode}_*"
        globs = {f"{schemas}.{table}", f"{schemas}.*"}
        if mode == "mirror" or any(rule.source in globs for rule in config.tables):
            rules.append(replace(rule_of(f"{schemas}.{table}", mode), partition_by=columns))
    return replace(config, tables=tuple(rules))


@pytest.mark.promise("partitioned silver")
@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("copy", ["initial", "never"])
@pytest.mark.parametrize(("schemas", "cuts"), [(1, 2), pytest.param(40, 6, marks=pytest.mark.slow)])
def test_native_mirrors_have_the_rows_of_the_source(
    database: Database, tmp_path: Path, copy: str, schemas: int, cuts: int
) -> None:
    seed = FIXED_SEED if schemas == 1 else seed_of_run()
    prove(database, tmp_path, seed, None, copy=copy, schemas=schemas, cuts=cuts)


@pytest.mark.slow
@pytest.mark.promise("partitioned silver")
@pytest.mark.parametrize(("copy", "schemas", "cuts"), [("never", 1, 2), ("initial", 20, 3)])
def test_mirrors_of_spark_have_the_rows_of_the_source(
    database: Database, tmp_path: Path, spark: SparkSession, copy: str, schemas: int, cuts: int
) -> None:
    seed = FIXED_SEED if schemas == 1 else seed_of_run()
    prove(database, tmp_path, seed, spark, copy=copy, schemas=schemas, cuts=cuts)


def prove(
    database: Database,
    folder: Path,
    seed: int,
    spark: SparkSession | None,
    *,
    copy: str,
    schemas: int,
    cuts: int,
) -> None:
    """Run workloads, capture and apply them, and compare silver with the source after each cut."""
    rng = printed_rng(seed)
    config = database.config("*.*", root=str(folder / "lake"), create_publication="all", copy=copy)
    silver = replace(config.silver, writer="auto" if spark is None else "spark")
    config = divided(replace(config, silver=silver))
    if copy == "never":
        run_ingest(config)
    steps: dict[str, Any] = {"steps": RowSteps} if spark is None else {}
    applier = Applier(spark, config)
    with database.connect() as source:
        source.execute("CREATE TABLE other (v int)")
        for number in range(schemas):
            schema = create_schema(source, rng, name=f"w_{number}")
            for _ in range(cuts):
                run_workload(source, rng, 4, schema=schema, **steps)
                run_ingest(config)
                source.execute("INSERT INTO other VALUES (1)")  # a copy is applied once the stream is past it
                run_ingest(config)
                if rng.random() < 0.2:
                    applier = Applier(spark, config)
                succeeded(applier.apply_pending())
                assert_equal(source, config, schema)


def assert_equal(source: Connection, config: Config, schema: Schema) -> None:
    count = 0
    with snapshot(source):
        for name in schema.names:
            columns = source_columns(source, *name)
            wanted = source_rows(source, *name, columns)
            table = LakeTable(silver_path(config.storage.root, *name))
            if not table.exists():
                assert not wanted, name
                continue
            assert table.snapshot().partition_columns == PARTITIONS[name.table]
            found = arrow_rows(table.path, [column.name for column in columns])
            assert found == wanted, (
                name,
                list((wanted - found).items())[:3],
                list((found - wanted).items())[:3],
            )
            count += len(table.snapshot().files)
    assert count


@pytest.mark.promise("partitioned silver")
@pytest.mark.usefixtures("without_spark")
def test_native_tables_of_each_mode_have_the_rows_of_the_model(database: Database, tmp_path: Path) -> None:
    prove_modes(database, tmp_path, FIXED_SEED, MODES, None, cuts=2)


@pytest.mark.slow
@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("mode", MODES)
def test_many_native_tables_of_each_mode_have_the_rows_of_the_model(
    database: Database, tmp_path: Path, mode: str
) -> None:
    prove_modes(database, tmp_path, seed_of_run(), [mode], None, cuts=100)


@pytest.mark.sample(1)
@pytest.mark.promise("partitioned silver")
@pytest.mark.parametrize("mode", MODES)
def test_tables_of_each_mode_by_spark_have_the_rows_of_the_model(
    database: Database, tmp_path: Path, spark: SparkSession, mode: str
) -> None:
    chosen = Random(seed_of_run()).sample(KEYED, 1)
    prove_modes(database, tmp_path, FIXED_SEED, [mode], spark, cuts=2, tables=chosen)


@pytest.mark.usefixtures("without_spark")
def test_rows_of_many_partitions_are_added_in_chunks(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writer, "MAX_ROWS_AT_ONCE", 3)
    monkeypatch.setattr(change_rows, "CHUNK_ROWS", 5)
    monkeypatch.setattr(data_files, "_MAX_OPEN", 2)
    prove_modes(database, tmp_path, FIXED_SEED, ["append"], None, cuts=2)


def prove_modes(
    database: Database,
    folder: Path,
    seed: int,
    modes: Sequence[str],
    spark: SparkSession | None,
    *,
    cuts: int,
    tables: Sequence[str] = tuple(PARTITIONS),
) -> None:
    """Run workloads, capture and apply them, and compare silver with the models of its modes."""
    print(f"PGDELTA_SEED={seed}, tables: {tables}")
    rng = Random(seed)
    config = config_of_modes(database, folder / "lake", modes, "auto" if spark is None else "spark")
    config, counts = divided(config, modes), Counter[str]()
    chosen = tuple(rule for rule in config.tables if rule.source.partition(".")[2] in tables)
    config = replace(config, tables=chosen)
    run_ingest(config)
    with database.connect() as source:
        for cut in range(cuts):
            if cut % 4 == 0:
                schemas = {mode: create_schema(source, rng, name=f"w_{mode}_{cut}") for mode in modes}
            for schema in schemas.values():
                run_workload(source, rng, 4, schema=schema, steps=RowSteps)
            run_ingest(config)
            succeeded(Applier(spark, config).apply_pending())
            for mode, schema in schemas.items():
                place = config.storage.root, config.pipeline, mode
                for name in names_of(schema, mode):
                    if name.table in tables:
                        counts[mode] += assert_equals_model(source, *place, name)
    assert all(counts[mode] for mode in modes)


@pytest.mark.promise("partitioned silver")
@pytest.mark.usefixtures("without_spark")
def test_a_run_that_ends_at_a_write_leaves_no_partition_wrong(database: Database, tmp_path: Path) -> None:
    prove_crashes(database, tmp_path, FIXED_SEED, "mirror", None, [CrashStep.WRITE_TABLE])


@pytest.mark.promise("partitioned silver")
@pytest.mark.slow
@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("mode", ["mirror", *MODES])
def test_a_run_that_ends_at_any_step_leaves_no_partition_wrong(
    database: Database, tmp_path: Path, mode: str
) -> None:
    prove_crashes(database, tmp_path, seed_of_run(), mode, None, APPLY_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mirror", *MODES])
def test_a_run_of_spark_that_ends_at_any_step_leaves_no_partition_wrong(
    database: Database, tmp_path: Path, spark: SparkSession, mode: str
) -> None:
    prove_crashes(database, tmp_path, seed_of_run(), mode, spark, APPLY_STEPS)


def prove_crashes(
    database: Database,
    folder: Path,
    seed: int,
    mode: str,
    spark: SparkSession | None,
    steps: Sequence[CrashStep],
) -> None:
    """End a run before and after each step, go on, and compare silver with the source or with its model.

    One schema lives through all of it; another one is new each time.
    """
    rng = printed_rng(seed)
    config = database.config("*.*", root=str(folder / "lake"), create_publication="all")
    silver = replace(config.silver, writer="auto" if spark is None else "spark")
    if mode == "mirror":
        config = replace(config, silver=silver)
    else:
        config = config_of_modes(database, folder / "lake", [mode], silver.writer)
    config = divided(config, [mode])
    run_ingest(config)
    kinds: dict[str, Any] = {"steps": RowSteps} if spark is None else {}
    with database.connect() as source:
        first = create_schema(source, rng, name=f"w_{mode}_0")
        for number, (step, when) in enumerate(product(steps, WHEN), 1):
            schemas = (first, create_schema(source, rng, name=f"w_{mode}_{number}"))
            for schema in schemas:
                run_workload(source, rng, 4, schema=schema, **kinds)
            run_ingest(config)
            passing = 0 if step is CrashStep.RECORD_MANIFEST else rng.randrange(3)
            with crash_at(step, when, passing=passing), pytest.raises(Crash):
                Applier(spark, config).apply_pending()
            summary = Applier(spark, config).apply_pending()
            assert summary.exit_code(strict=True) == 0, (step, when, summary.tables)
            for schema in schemas:
                if mode == "mirror":
                    assert_equal(source, config, schema)
                    continue
                place = config.storage.root, config.pipeline, mode
                assert sum(assert_equals_model(source, *place, name) for name in names_of(schema, mode))
