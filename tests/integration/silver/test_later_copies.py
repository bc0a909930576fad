"""Silver has the rows of each mode's model after later copies, and shows the source's, however it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest

from pipeline.apply.applier import Applier
from pipeline.bronze.copies import Copies
from pipeline.bronze.copy_states import CopyState
from pipeline.bronze.log import BronzeOffset
from pipeline.config.config import Config, Copying
from pipeline.crash_steps import CrashStep
from pipeline.delta.table import Lake
from pipeline.ingest.job import run_ingest
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from tests.support.comparable.arrow import arrow_rows
from tests.support.comparable.silver import silver_path
from tests.support.comparable.source import Connection, snapshot, source_columns, source_rows
from tests.support.copies import BIG, stop_after
from tests.support.fault_points import WHEN, crash_at
from tests.support.modes.oracle import assert_equals_model
from tests.support.modes.workloads import MODES, RowSteps, config_of_modes, names_of, rule_of
from tests.support.pipelines import (
    Crash,
    MakePipeline,
    Pipeline,
    assert_nothing_stopped,
    with_rules,
    with_writer,
)
from tests.support.seeds import printed_rng, seed_of_run
from tests.support.servers import Database, MakeServer
from tests.support.unseen import unseen_commits
from tests.support.workload.tables import create_schema
from tests.support.workload.transactions import run_workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.silver.write.writer_choice import WriterSetting

FIXED_SEED = 20_265
APPLY_STEPS = (
    CrashStep.EVOLVE_COLUMNS,
    CrashStep.REGISTER_TABLE,
    CrashStep.WRITE_TABLE,
    CrashStep.SWAP_TABLE,
    CrashStep.RECORD_MANIFEST,
)
IS_CURRENT = pc.field("_is_current")
SHOWN = {
    "soft_delete": pc.field("_deleted") == pc.scalar(False),
    "history": IS_CURRENT,
    "intermediate": IS_CURRENT,
}


def publish(source: Connection, config: Config, operations: str) -> None:
    """Set which operations are published: the stream lacks all others."""
    source.execute(f"ALTER PUBLICATION {config.source.publication} SET (publish = '{operations}')".encode())


def assert_shows_source(source: Connection, config: Config, mode: str, name: TableName) -> None:
    """Assert that the rows which are not gone are those of the source."""
    if mode == "append":
        return
    columns = [column.name for column in source_columns(source, *name)]
    with snapshot(source):
        wanted = source_rows(source, *name)
    found = arrow_rows(silver_path(config.storage.root, *name), columns, SHOWN[mode])
    assert found == wanted, (name, list((wanted - found).items())[:3], list((found - wanted).items())[:3])


def apply(config: Config, spark: SparkSession | None = None, end: LSN | None = None) -> Applier:
    applier = Applier(spark, config)
    newest = applier.bronze.captured_offset()
    assert newest is not None
    summary = applier.apply_pending(BronzeOffset(newest.version, end) if end else None)
    assert_nothing_stopped(summary)
    return applier


def random_cuts(config: Config, rng: Random, spark: SparkSession | None) -> None:
    """Apply some of what bronze holds, up to random commits."""
    applier = Applier(spark, config)
    manifest = applier.shown.manifests.last() if applier.bronze.changes.exists() else None
    rows = applier.bronze.changes.rows(["end_lsn"]).column("end_lsn").to_pylist()
    ends = sorted({end for end in rows if manifest is None or end > manifest.lsn})
    for end in sorted(rng.sample(ends, min(rng.randrange(3), len(ends)))):
        apply(config, spark, LSN(end))


def prove(
    database: Database,
    spark: SparkSession | None,
    folder: Path,
    seed: int,
    modes: Sequence[str],
    rounds: int,
) -> None:
    """Lose changes, copy the tables again and compare them with their model, by random cuts."""
    rng = printed_rng(seed)
    writer: WriterSetting = "native" if spark is None else "spark"
    config = config_of_modes(database, folder / "lake", modes, writer, copy="initial")
    with database.connect() as source:
        source.execute("CREATE TABLE other (v int)")
        schemas = {mode: create_schema(source, rng, name=f"w_{mode}_0") for mode in modes}
        names = [name for mode, schema in schemas.items() for name in names_of(schema, mode)]

        def work(transactions: int) -> None:
            for schema in schemas.values():
                run_workload(source, rng, transactions, schema=schema, steps=RowSteps)

        def assert_all_right() -> None:
            for mode, schema in schemas.items():
                place, count = (config.storage.root, config.pipeline, mode), 0
                for name in names_of(schema, mode):
                    count += assert_equals_model(source, *place, name)
                    assert_shows_source(source, config, mode, name)
                assert count, mode

        def capture() -> None:
            run_ingest(config)
            source.execute("INSERT INTO other VALUES (1)")  # a copy is applied once the stream is past it
            run_ingest(config)

        work(3)
        capture()
        for _ in range(rounds):
            work(3)
            publish(source, config, "insert")  # the stream lacks all others
            work(3)
            publish(source, config, "insert, update, delete, truncate")
            work(2)
            if rng.random() < 0.5:
                capture()
                random_cuts(config, rng, spark)
            run_resync(config, [str(name) for name in rng.sample(names, rng.randint(1, len(names)))])
            run_ingest(config)
            work(2)
            capture()
            random_cuts(config, rng, spark)
        run_resync(config, [str(name) for name in names])
        capture()
        apply(config, spark)
        assert_all_right()
        work(3)
        capture()
        apply(config, spark)
        assert_all_right()


@pytest.mark.promise("modes")
@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", MODES)
def test_later_copies_leave_the_rows_of_the_model(database: Database, tmp_path: Path, mode: str) -> None:
    prove(database, None, tmp_path, FIXED_SEED, [mode], rounds=1)


@pytest.mark.slow
def test_later_copies_by_spark_leave_the_rows_of_the_model(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    prove(database, spark, tmp_path, FIXED_SEED, [mode for mode in MODES if mode != "append"], rounds=1)


ROWS = (
    "CREATE TABLE {0} (id int8 PRIMARY KEY, n int, big text)",
    "ALTER TABLE {0} ALTER big SET STORAGE EXTERNAL",
    "ALTER TABLE {0} SET (autovacuum_enabled = off)",
    f"INSERT INTO {{0}} SELECT i, i % 7, CASE WHEN i % 3 > 0 THEN {BIG} END FROM generate_series(1, {{1}}) i",
)
LOST = ("UPDATE {0} SET n = -2 WHERE id % 9 = 1", "DELETE FROM {0} WHERE id BETWEEN 100 AND 130")


def with_modes(pipeline: Pipeline, modes: Sequence[str] = MODES) -> Pipeline:
    """Return the pipeline with a table of each mode, which is its name."""
    pipeline = with_rules(pipeline, *(rule_of(f"public.{mode}", mode) for mode in modes))
    pipeline.run("CREATE TABLE other (id int)", *(each.format(mode, 210) for mode in modes for each in ROWS))
    return pipeline


def run_in_all(pipeline: Pipeline, *statements: str, modes: Sequence[str] = MODES) -> None:
    pipeline.run(*(statement.format(mode) for statement in statements for mode in modes))


def lose(pipeline: Pipeline, tables: Sequence[str], *statements: str, but: str = "insert") -> None:
    """Run statements that the stream lacks, in each of the tables; `but` are operations that it has."""
    publish(pipeline.source, pipeline.config, but)
    pipeline.run(*(statement.format(table) for statement in statements for table in tables))
    publish(pipeline.source, pipeline.config, "insert, update, delete, truncate")


def catch_up(pipeline: Pipeline) -> None:
    """Capture and apply all there is, and copies that are complete."""
    pipeline.ingest()
    pipeline.ingest("INSERT INTO other VALUES (1)")
    assert_nothing_stopped(pipeline.apply())


def assert_right(pipeline: Pipeline, modes: Sequence[str] = MODES) -> None:
    assert_models(pipeline, modes)
    for mode in modes:
        assert_shows_source(pipeline.source, pipeline.config, mode, TableName("public", mode))


def assert_models(pipeline: Pipeline, modes: Sequence[str]) -> None:
    for mode in modes:
        place = pipeline.source, pipeline.root, pipeline.config.pipeline, mode, TableName("public", mode)
        assert assert_equals_model(*place)


@pytest.mark.parametrize(
    ("modes", "writer"),
    [(MODES, "native"), pytest.param(("soft_delete",), "spark", marks=pytest.mark.slow)],
)
def test_a_row_that_silver_has_as_deleted_is_deleted_again(
    make_pipeline: MakePipeline, modes: Sequence[str], writer: WriterSetting
) -> None:
    pipeline = with_modes(make_pipeline(copy="initial", create_publication="all"), modes)
    pipeline = with_writer(pipeline, writer)
    catch_up(pipeline)
    run_in_all(pipeline, "DELETE FROM {} WHERE id < 5", modes=modes)
    catch_up(pipeline)
    # in a batch of its own, and in the one that deletes the row first
    run_in_all(pipeline, "DELETE FROM {} WHERE id BETWEEN 5 AND 8", modes=modes)
    lose(pipeline, modes, "UPDATE {0} SET id = id - 10 WHERE id BETWEEN 11 AND 18")
    statements = (
        "DELETE FROM {} WHERE id IN (1, 5)",
        "UPDATE {} SET id = id + 1000 WHERE id IN (2, 6)",
        "UPDATE {} SET n = -3 WHERE id IN (3, 7)",
    )
    run_in_all(pipeline, *statements, modes=modes)
    catch_up(pipeline)
    assert_models(pipeline, modes)
    gone = pipeline.frame("silver", "public", "soft_delete").where("_deleted AND _deleted_at = _commit_time")
    lsns = {row.id: row._commit_lsn for row in gone.collect()}
    assert lsns[4] < lsns[8] < lsns[1] == lsns[5] < lsns[2] == lsns[6]


def test_rows_that_a_truncate_removed_are_deleted_again(make_pipeline: MakePipeline) -> None:
    pipeline = with_modes(make_pipeline(copy="initial", create_publication="all"))
    pipeline = with_writer(pipeline, "native")
    catch_up(pipeline)
    run_in_all(pipeline, "DELETE FROM {} WHERE id = 30", "TRUNCATE {}")
    lose(pipeline, MODES, "INSERT INTO {0} VALUES (1), (30), (31)", but="delete")
    run_in_all(pipeline, "DELETE FROM {} WHERE id < 31", "INSERT INTO {} VALUES (32, 1)")
    catch_up(pipeline)
    assert_models(pipeline, MODES)
    lose(pipeline, MODES, "INSERT INTO {0} VALUES (2)", but="delete")
    run_in_all(pipeline, "DELETE FROM {} WHERE id = 2")
    run_resync(pipeline.config, None)
    catch_up(pipeline)
    assert_right(pipeline)


def copied_in_ranges(make_pipeline: MakePipeline, mode: str) -> Pipeline:
    """Return a pipeline of a table with rows, whose copies have several chunks."""
    copying = Copying(connections=1, range_size=8 << 10)
    pipeline = make_pipeline(f"public.{mode}", copy="initial", copying=copying, create_publication="all")
    pipeline = with_rules(pipeline, rule_of(f"public.{mode}", mode), rule_of("public.other", "append"))
    pipeline.run("CREATE TABLE other (id int)", *(each.format(mode, 1200) for each in ROWS))
    return pipeline


@pytest.mark.parametrize("mode", [pytest.param("soft_delete", marks=pytest.mark.slow), "history"])
def test_a_copy_that_was_interrupted_counts_once(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    name, pipeline = TableName("public", mode), copied_in_ranges(make_pipeline, mode)
    pipeline.run(f"DELETE FROM {mode} WHERE id < 60", f"VACUUM {mode}")
    catch_up(pipeline)
    lose(pipeline, [mode], *LOST)
    run_resync(pipeline.config, [str(name)])
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        pipeline.ingest()
    pipeline.run(
        f"UPDATE {mode} SET n = -1 WHERE id BETWEEN 500 AND 520", f"DELETE FROM {mode} WHERE id = 999"
    )
    pipeline.run(f"INSERT INTO {mode} VALUES (999, 0, 'again'), (110, 0, 'back')")
    for _ in range(2):
        catch_up(pipeline)
        assert assert_equals_model(pipeline.source, pipeline.root, pipeline.config.pipeline, mode, name)
    assert [len(state.snapshots) for state in states_of(pipeline, mode)] == [1, 2]


@pytest.mark.parametrize("mode", [pytest.param("soft_delete", marks=pytest.mark.slow), "history"])
def test_a_copy_that_lacks_values_is_not_compared_and_another_one_is(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    name, pipeline = TableName("public", mode), copied_in_ranges(make_pipeline, mode)
    catch_up(pipeline)
    lose(pipeline, [mode], *LOST)
    pipeline.run(f"DELETE FROM {mode} WHERE id < 60", f"VACUUM {mode}")
    run_resync(pipeline.config, [str(name)])
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        pipeline.ingest()
    pipeline.apply()  # silver is past the first snapshot before the copy is complete
    # new versions are on the page that was read already, and their long values are not sent
    on_page = f"SELECT id FROM {mode} WHERE (ctid::text::point)[0] < 1 AND big IS NOT NULL"
    read = pipeline.database.run(on_page)
    pipeline.database.run(f"UPDATE {mode} SET n = -1 WHERE id BETWEEN 500 AND 1100")
    assert set(pipeline.database.run(on_page)) - set(read)
    catch_up(pipeline)
    rows = pipeline.frame("silver", "public", mode)
    assert rows.where("n = -2").count() == 0  # what the stream lacks is not corrected
    assert rows.where("n = -1 AND id % 3 > 0 AND big IS NULL").count() == 0
    assert assert_equals_model(pipeline.source, pipeline.root, pipeline.config.pipeline, mode, name)
    told = [sentence for _, sentence in pipeline.events(mode)]
    assert sum("lacks values that the source did not send" in each for each in told) == 1, told
    assert not any("compared with a copy" in each for each in told), told
    version = pipeline.version(mode)
    assert_nothing_stopped(pipeline.apply())
    assert pipeline.version(mode) == version
    catch_up(pipeline)
    assert assert_equals_model(pipeline.source, pipeline.root, pipeline.config.pipeline, mode, name)
    assert_shows_source(pipeline.source, pipeline.config, mode, name)
    assert [len(state.snapshots) for state in states_of(pipeline, mode)] == [1, 2, 1]
    rebuilt = run_rebuild(pipeline.config, [str(name)])
    assert_nothing_stopped(rebuilt)
    assert assert_equals_model(pipeline.source, pipeline.root, pipeline.config.pipeline, mode, name)
    assert len(Copies(Lake(pipeline.root)).read().open_requests) == 0


def states_of(pipeline: Pipeline, table: str) -> Sequence[CopyState]:
    return Copies(Lake(pipeline.root)).read().states[TableName("public", table)]


def test_what_a_snapshot_did_not_see_is_part_of_the_copy(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    database = Database.of(make_server({"synchronous_standby_names": ""}))
    pipeline = with_modes(make_pipeline(copy="initial", create_publication="all", database=database))
    catch_up(pipeline)
    lose(pipeline, MODES, *LOST)
    run_resync(pipeline.config, None)
    statements = (
        "UPDATE {} SET n = -5, id = id + 1000 WHERE id IN (10, 20)",
        "DELETE FROM {} WHERE id = 37",
        "INSERT INTO {} VALUES (77777, 1)",
    )
    with unseen_commits(database, *(each.format(mode) for mode in MODES for each in statements)):
        pipeline.ingest()
        later = [state for mode in MODES for state in states_of(pipeline, mode)[1:] if state.copy]
        assert all(state.invisible_commits for state in later)
    catch_up(pipeline)
    assert_right(pipeline)


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_that_ends_at_any_step_leaves_no_mode_wrong(make_pipeline: MakePipeline) -> None:
    pipeline = with_modes(make_pipeline(copy="initial", create_publication="all"))
    catch_up(pipeline)
    for number, (step, when) in enumerate(product(APPLY_STEPS, WHEN)):
        lose(
            pipeline,
            MODES,
            f"UPDATE {{0}} SET n = -2 WHERE id % 9 = {number}",
            f"DELETE FROM {{0}} WHERE id = {number}",
        )
        run_in_all(pipeline, "ALTER TABLE {0} ADD " + f"c{number} int", "UPDATE {0} SET n = 0 WHERE id = 200")
        run_resync(pipeline.config, None)
        pipeline.ingest()
        run_in_all(pipeline, f"INSERT INTO {{0}} VALUES ({1000 + number}, 1)")
        pipeline.ingest()
        passing = 0 if step is CrashStep.RECORD_MANIFEST else number % 3
        with crash_at(step, when, passing=passing), pytest.raises(Crash):
            Applier(pipeline.spark, pipeline.config).apply_pending()
        apply(pipeline.config)
        assert_right(pipeline)


def test_a_type_change_and_an_event_have_their_copies_in_a_mode(make_pipeline: MakePipeline) -> None:
    pipeline = with_modes(make_pipeline(copy="initial", create_publication="all"))
    silver = replace(pipeline.config.silver, resync="auto")
    rules = tuple(replace(rule, type_changes="resync") for rule in pipeline.config.tables)
    pipeline = replace(pipeline, config=replace(pipeline.config, silver=silver, tables=rules))
    catch_up(pipeline)
    run_in_all(pipeline, "DELETE FROM {0} WHERE id = 7")
    lose(pipeline, MODES, *LOST)  # ingest sees that the publication was changed
    for _ in range(2):
        catch_up(pipeline)
    assert_right(pipeline)
    run_in_all(
        pipeline,
        "ALTER TABLE {0} ALTER n TYPE text USING 'number ' || n",
        "UPDATE {0} SET n = 'new' WHERE id = 8",
    )
    for _ in range(3):
        pipeline.ingest()
        pipeline.run("INSERT INTO other VALUES (1)")
        pipeline.apply()
    assert_nothing_stopped(pipeline.apply())
    for mode in MODES:
        assert_shows_source(pipeline.source, pipeline.config, mode, TableName("public", mode))
    history = pipeline.frame("silver", "public", "history")
    assert [row.n for row in history.where("id = 9").orderBy("_valid_from_lsn").collect()] == [
        "2",
        "number 2",
    ]
    assert history.where("id = 7 AND NOT _is_current").count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_many_later_copies_leave_the_rows_of_the_model(database: Database, tmp_path: Path, mode: str) -> None:
    prove(database, None, tmp_path, seed_of_run(), [mode], rounds=20)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_many_later_copies_by_spark_leave_the_rows_of_the_model(
    database: Database, tmp_path: Path, spark: SparkSession, mode: str
) -> None:
    prove(database, spark, tmp_path, seed_of_run(), [mode], rounds=3)


@pytest.mark.promise("modes")
@pytest.mark.parametrize("mode", ["soft_delete", "history", "append"])
def test_a_name_that_returns_to_its_first_table_begins_again(make_pipeline: MakePipeline, mode: str) -> None:
    pipeline = with_rules(
        make_pipeline(copy="initial", create_publication="all"), rule_of(f"public.{mode}", mode)
    )
    table = f"CREATE TABLE {mode} (id int PRIMARY KEY, v int)"
    pipeline.run("CREATE TABLE other (id int)", table, f"INSERT INTO {mode} VALUES (1, 1), (2, 2)")
    catch_up(pipeline)
    pipeline.ingest(f"ALTER TABLE {mode} RENAME TO kept", table, f"INSERT INTO {mode} VALUES (9, 9)")
    pipeline.run(f"DROP TABLE {mode}", f"ALTER TABLE kept RENAME TO {mode}")
    pipeline.ingest(f"UPDATE {mode} SET v = 7 WHERE id = 1")
    pipeline.apply()
    assert run_rebuild(pipeline.config, [f"public.{mode}"]).exit_code(strict=True) == 0
    pipeline.run(f"INSERT INTO {mode} VALUES (3, 3)")
    catch_up(pipeline)
    assert_shows_source(pipeline.source, pipeline.config, mode, TableName("public", mode))
