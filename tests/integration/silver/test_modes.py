"""Silver has the rows of each mode's model after random workloads, by both writers and however it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, get_args

import pyarrow.compute as pc
import pytest

from pipeline.apply.applier import Applier
from pipeline.bronze import change_rows
from pipeline.bronze.log import BronzeOffset
from pipeline.config.config import Config
from pipeline.config.tables import RowMode, TableRule
from pipeline.crash_steps import CrashStep
from pipeline.delta.table import LakeTable
from pipeline.ingest.job import run_ingest
from pipeline.metadata.manifests import Manifests
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold import write_plan
from pipeline.silver.write import batch_writer
from pipeline.table_name import TableName
from tests.support.comparable.silver import silver_path
from tests.support.fault_points import WHEN, crash_at
from tests.support.modes.models import Append, History
from tests.support.modes.oracle import assert_equals_model
from tests.support.modes.workloads import MODES, RowSteps, config_of, config_of_modes, names_of
from tests.support.pipelines import Crash, succeeded
from tests.support.seeds import printed_rng, seed_of_run
from tests.support.servers import Database
from tests.support.workload.tables import Connection, Schema, create_schema
from tests.support.workload.transactions import run_workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIXED_SEED = 20_264
APPLY_STEPS = (
    CrashStep.EVOLVE_COLUMNS,
    CrashStep.REGISTER_TABLE,
    CrashStep.WRITE_TABLE,
    CrashStep.RECORD_MANIFEST,
)
ONCE_A_BATCH = CrashStep.REGISTER_TABLE, CrashStep.RECORD_MANIFEST
WAYS = ("one batch", "random cuts", "one transaction a batch")


@pytest.mark.promise("modes", "the four modes")
@pytest.mark.usefixtures("without_spark")
def test_native_tables_have_the_rows_of_the_model(database: Database, tmp_path: Path) -> None:
    prove(database, tmp_path, FIXED_SEED, MODES, None, schemas=1, transactions=8, ways=WAYS[1:])


@pytest.mark.slow
@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_many_native_tables_have_the_rows_of_the_model(
    database: Database, tmp_path: Path, mode: str, part: int
) -> None:
    prove(database, tmp_path, seed_of_run() + part, [mode], None, schemas=34, transactions=15)


@pytest.mark.slow
@pytest.mark.promise("modes", "the four modes")
@pytest.mark.parametrize("mode", MODES)
def test_many_tables_of_spark_have_the_rows_of_the_model(
    database: Database, tmp_path: Path, spark: SparkSession, mode: str
) -> None:
    prove(database, tmp_path, seed_of_run(), [mode], spark, schemas=34, transactions=8)


@pytest.mark.usefixtures("without_spark")
def test_changes_that_are_appended_in_chunks_are_those_of_the_model(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writer, "MAX_ROWS_AT_ONCE", 3)
    monkeypatch.setattr(change_rows, "CHUNK_ROWS", 5)
    prove(database, tmp_path, FIXED_SEED, ["append"], None, schemas=1, transactions=12)


@pytest.mark.promise("modes", "history as of an LSN")
@pytest.mark.usefixtures("without_spark")
def test_a_history_as_of_a_manifest_is_the_mirror_there(database: Database, tmp_path: Path) -> None:
    rng = Random(FIXED_SEED)
    config = config_of(database, tmp_path / "lake", "history", "auto")
    run_ingest(config)
    start, end, count = pc.field("_valid_from_lsn"), pc.field("_valid_to_lsn"), 0
    with database.connect() as source:
        schema = create_schema(source, rng, name="w_0")
        run_workload(source, rng, 20, schema=schema, steps=RowSteps)
        run_ingest(config)
        applier = Applier(None, config)
        apply_schema(applier, schema, "random cuts", rng)
        manifests = Manifests(applier.lake).written()
        assert len(list(manifests)) > 2
        for lsn, _ in Manifests(applier.lake).written():
            condition = (start < int(lsn)) & (end.is_null() | (end >= int(lsn)))
            for name in names_of(schema, "history"):
                place = config.storage.root, config.pipeline, "mirror", name, int(lsn), condition
                count += assert_equals_model(source, *place)
        assert count


@pytest.mark.usefixtures("without_spark")
def test_tables_that_begin_with_a_copy_have_the_rows_of_the_model(database: Database, tmp_path: Path) -> None:
    rng = Random(FIXED_SEED)
    config = config_of_modes(database, tmp_path / "lake", MODES, "auto", copy="initial")
    with database.connect() as source:
        source.execute("CREATE TABLE other (v int)")
        schemas = {mode: create_schema(source, rng, name=f"w_{mode}_0") for mode in MODES}
        for _ in range(2):
            for schema in schemas.values():
                run_workload(source, rng, 4, schema=schema, steps=RowSteps)
            run_ingest(config)
            source.execute("INSERT INTO other VALUES (1)")  # a copy is applied once the stream is past it
            run_ingest(config)
            succeeded(Applier(None, config).apply_pending())
            for mode, schema in schemas.items():
                assert compare(source, config, mode, schema)


def prove(
    database: Database,
    folder: Path,
    seed: int,
    modes: Sequence[str],
    spark: SparkSession | None,
    *,
    schemas: int,
    transactions: int,
    ways: Sequence[str] = WAYS,
) -> None:
    """Run workloads, capture them, apply each in one of some ways, and compare silver with its model.

    Each mode has so many schemas.
    """
    rng = printed_rng(seed)
    config = config_of_modes(database, folder / "lake", modes, "auto" if spark is None else "spark")
    run_ingest(config)
    steps: dict[str, Any] = {"steps": RowSteps} if spark is None else {}
    with database.connect() as source:
        found = []
        for number, mode in product(range(schemas), modes):
            schema = create_schema(source, rng, name=f"w_{mode}_{number}")
            found.append((mode, schema))
            print(run_workload(source, rng, transactions, schema=schema, **steps))
        run_ingest(config)
        applier = Applier(spark, config)
        for number, (mode, schema) in enumerate(found):
            apply_schema(applier, schema, ways[number % len(ways)], rng)
            assert compare(source, config, mode, schema)


def compare(source: Connection, config: Config, mode: str, schema: Schema) -> int:
    """Assert that silver has the rows of the models of a schema's tables; return their number."""
    place = config.storage.root, config.pipeline, mode
    return sum(assert_equals_model(source, *place, name) for name in names_of(schema, mode))


def apply_schema(applier: Applier, schema: Schema, way: str, rng: Random) -> None:
    """Apply what bronze holds up to the last commit that changed the schema."""
    newest = applier.bronze.captured_offset()
    assert newest is not None
    rows = applier.bronze.changes.rows(["schema_name", "end_lsn"]).to_pylist()
    ends = sorted({row["end_lsn"] for row in rows if row["schema_name"] == schema.name})
    chosen = ends[-1:]
    if way == "one transaction a batch":
        chosen = ends
    elif way == "random cuts":
        chosen = sorted({*rng.sample(ends, min(3, len(ends))), ends[-1]})
    for end in chosen:
        summary = applier.apply_pending(BronzeOffset(newest.version, LSN(end)))
        assert summary.exit_code(strict=True) == 0, (schema.name, way, LSN(end), summary.tables)


@pytest.mark.promise("modes", "the four modes")
@pytest.mark.usefixtures("without_spark")
@pytest.mark.sample(1)
@pytest.mark.parametrize("step", APPLY_STEPS)
def test_a_run_that_ends_at_any_step_leaves_no_mode_wrong(
    database: Database, tmp_path: Path, step: CrashStep
) -> None:
    rng, modes = Random(FIXED_SEED), {"documents": "history", "Lines": "soft_delete"}
    config = config_of(database, tmp_path / "lake", "append", "auto")
    own = (TableRule("w_*.documents", mode="history"), TableRule("w_*.Lines", mode="soft_delete"))
    config = replace(config, tables=(*own, *config.tables))
    run_ingest(config)
    with database.connect() as source:
        schemas = [create_schema(source, rng, name="w_0")]
        for number, when in enumerate(WHEN, 1):
            schemas.append(create_schema(source, rng, name=f"w_{number}"))  # its tables are registered
            for schema in (schemas[0], schemas[-1]):
                run_workload(source, rng, 4, schema=schema, steps=RowSteps)
            run_ingest(config)
            passing = 0 if step in ONCE_A_BATCH else rng.randrange(4)
            with crash_at(step, when, passing=passing), pytest.raises(Crash):
                Applier(None, config).apply_pending()
            summary = Applier(None, config).apply_pending()
            assert summary.exit_code(strict=True) == 0, (step, when, summary.tables)
            for name in (*schemas[0].names, *schemas[-1].names):
                mode = modes.get(name.table, "append")
                assert_equals_model(source, config.storage.root, config.pipeline, mode, name)


@pytest.mark.usefixtures("without_spark")
def test_more_truncates_than_one_write_marks_are_all_followed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_plan, "_MAX_TRUNCATES", 8)
    rng, names = Random(FIXED_SEED), {mode: TableName(f"w_{mode}_0", "documents") for mode in MODES}
    config = config_of_modes(database, tmp_path / "lake", MODES, "auto")
    run_ingest(config)
    with database.connect() as source:
        for name in names.values():
            source.execute(f"CREATE SCHEMA {name.schema}".encode())
            source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)".encode())
        for number in range(24):
            for name in names.values():
                source.execute("BEGIN")
                for statement in rng.choices(
                    (
                        f"TRUNCATE {name}",
                        f"INSERT INTO {name} VALUES ({rng.randrange(9)}, {number})"
                        " ON CONFLICT (id) DO UPDATE SET v = excluded.v + 1",
                        f"DELETE FROM {name} WHERE id % 3 = 1",
                        f"UPDATE {name} SET id = {number + 100} WHERE id = (SELECT min(id) FROM {name})"
                        f" AND NOT EXISTS (SELECT FROM {name} WHERE id = {number + 100})",
                    ),
                    (4, 5, 1, 1),
                    k=3,
                ):
                    source.execute(statement.encode())
                source.execute("COMMIT")
            if number == 10:
                run_ingest(config)
                Applier(None, config).apply_pending()
        run_ingest(config)
        succeeded(Applier(None, config).apply_pending())
        for mode, name in names.items():
            assert assert_equals_model(source, config.storage.root, config.pipeline, mode, name)


@pytest.mark.usefixtures("without_spark")
def test_the_columns_of_a_mode_do_not_depend_on_those_of_the_commit(
    database: Database, tmp_path: Path
) -> None:
    own = {
        "mirror": ([], 0),
        "soft_delete": (["_deleted", "_deleted_at"], 2),
        "history": ([*History.OWN], 2),
        "append": ([*Append.OWN], 4),
    }
    modes: tuple[RowMode, ...] = get_args(RowMode)
    config = config_of(database, tmp_path / "lake", "append", "auto")
    config = replace(
        config,
        silver=replace(config.silver, metadata_columns=False),
        tables=tuple(TableRule(f"public.{mode}", mode=mode) for mode in modes),
    )
    with database.connect() as source:
        for mode in modes:
            source.execute(f"CREATE TABLE {mode} (id int PRIMARY KEY)".encode())
        run_ingest(config)
        for statement in ("INSERT INTO {} VALUES (1), (2)", "DELETE FROM {} WHERE id = 2", "TRUNCATE {}"):
            for mode in modes:
                source.execute(statement.format(mode).encode())
    run_ingest(config)
    succeeded(Applier(None, config).apply_pending())
    for mode in modes:
        table, (columns, count) = LakeTable(silver_path(config.storage.root, "public", mode)), own[mode]
        assert table.schema().names == ["id", *columns]
        assert table.rows().num_rows == count
