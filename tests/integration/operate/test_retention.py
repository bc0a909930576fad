"""`bronze.retention`: older changes become a base, from which everything that reads bronze works on."""

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.bronze.log import Bronze
from pipeline.bronze.merge import changes_layout
from pipeline.config.jobs import BronzeLog
from pipeline.config.tables import TableRule
from pipeline.crash_steps import RetentionStep
from pipeline.delta.merge import merge_groups
from pipeline.delta.table import Lake
from pipeline.forget.forget import run_forget
from pipeline.key_ranges import KeyRange
from pipeline.metadata.registry import Records
from pipeline.operate import retention
from pipeline.operate.maintain import MaintenanceSummary, run_maintenance
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.operate.retention import Compaction, TableBase
from pipeline.progress import ApplySummary
from pipeline.reading.history import read_history
from pipeline.silver.write.batch_writer import BatchWriter
from pipeline.table_name import TableName
from pipeline.verify.audit import run_audit
from pipeline.verify.reconcile import run_reconcile
from tests.support import oracle
from tests.support.fault_points import crash_at
from tests.support.native_pipelines import NativePipeline
from tests.support.pipelines import Crash, MakePipeline, Pipeline, succeeded, with_rules, with_writer
from tests.support.servers import Database

RETENTION = 3600
TABLES = ("keyed", "moved", "listed", "entire", "emptied", "cut", "parted", "untouched")
BIG = "repeat(md5(({})::text), 300)"
SCHEMA = (
    "CREATE TABLE keyed (id int PRIMARY KEY, n int, gone text, big text)",
    "ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE moved (id int PRIMARY KEY, n int, big text)",
    "ALTER TABLE moved ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE listed (n int, word text)",
    "CREATE TABLE entire (n int, word text, big text)",
    "ALTER TABLE entire ALTER big SET STORAGE EXTERNAL",
    "ALTER TABLE entire REPLICA IDENTITY FULL",
    "CREATE TABLE emptied (id int PRIMARY KEY)",
    "CREATE TABLE cut (id int PRIMARY KEY, v text)",
    "CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (100) TO (200)",
    "CREATE TABLE untouched (id int PRIMARY KEY, v text)",
)
ROWS = (
    f"INSERT INTO keyed SELECT i, i, 'gone', {BIG.format('i')} FROM generate_series(1, 20) AS i",
    f"INSERT INTO moved SELECT i, i, {BIG.format('i')} FROM generate_series(1, 9) AS i",
    "INSERT INTO listed SELECT i % 3, 'x' FROM generate_series(1, 9) AS i",
    f"INSERT INTO entire SELECT i % 3, 'x', {BIG.format('i % 2')} FROM generate_series(1, 12) AS i",
    "INSERT INTO emptied SELECT generate_series(1, 5)",
    "INSERT INTO cut SELECT i, 'old' FROM generate_series(1, 5) AS i",
    "INSERT INTO parted SELECT i * 20, 'x' FROM generate_series(0, 9) AS i",
    "INSERT INTO untouched VALUES (1, 'x'), (2, NULL)",
)
CHANGES = (
    "UPDATE keyed SET n = n + 100 WHERE id < 8",  # big is unchanged TOAST from here on
    "UPDATE keyed SET n = n + 100 WHERE id < 4",
    "UPDATE keyed SET big = 'short' WHERE id = 3",
    "DELETE FROM keyed WHERE id IN (5, 12)",
    "INSERT INTO keyed VALUES (5, 55, NULL, NULL)",
    "UPDATE moved SET id = id + 100 WHERE id < 4",
    "UPDATE moved SET id = id + 100, n = 0 WHERE id > 100",
    "UPDATE moved SET id = 1 WHERE id = 201",
    "INSERT INTO listed VALUES (7, NULL)",
    "UPDATE entire SET word = 'y' WHERE n = 1",
    "DELETE FROM entire WHERE n = 2 AND ctid IN (SELECT ctid FROM entire WHERE n = 2 LIMIT 2)",
    "DELETE FROM emptied",
    "TRUNCATE cut",
    "INSERT INTO cut VALUES (1, 'new'), (2, 'new')",
    "UPDATE cut SET v = 'newer' WHERE id = 2",
    "UPDATE parted SET v = 'y' WHERE id < 50",
    "UPDATE parted SET id = id + 101 WHERE id = 40",  # to another partition
)
DDL = (
    "ALTER TABLE keyed DROP COLUMN gone, ADD COLUMN added int DEFAULT 7, ADD COLUMN other text",
    "UPDATE keyed SET other = 'o' WHERE id IN (2, 9)",
    "ALTER TABLE entire ADD COLUMN added int DEFAULT 7",
    "UPDATE entire SET added = 8 WHERE n = 1",
    "DELETE FROM entire WHERE n = 0 AND ctid IN (SELECT ctid FROM entire WHERE n = 0 LIMIT 1)",
    "ALTER TABLE moved RENAME n TO renamed",
    "UPDATE moved SET renamed = 5 WHERE id = 9",
    "ALTER TABLE untouched ADD COLUMN added int DEFAULT 7",
    "INSERT INTO untouched VALUES (3, 'z')",
    "DELETE FROM untouched WHERE id = 3",  # only a deleted row had the new column
)


def maintain(pipeline: Pipeline, later: float = 2 * RETENTION, **options: Any) -> MaintenanceSummary:
    """Maintain as of so many seconds from now."""
    made = succeeded(run_maintenance(pipeline.config, clock=lambda: time.time() + later, **options))
    return made


def bases(summary: MaintenanceSummary) -> dict[str, TableBase]:
    return {table.table.removeprefix("public."): table for table in summary.compaction.tables}


def retaining(pipeline: Pipeline, seconds: int = RETENTION) -> Pipeline:
    return replace(pipeline, config=replace(pipeline.config, bronze=BronzeLog(seconds)))


def copied(make_pipeline: MakePipeline) -> Pipeline:
    """Return a pipeline that copies its tables and is written natively."""
    return retaining(with_writer(make_pipeline(create_publication="all", copy="initial"), "native"))


def assert_equal(pipeline: Pipeline, *tables: str) -> None:
    """Assert that silver equals the source; bronze lacks the ordinals of removed changes."""
    names = [TableName("public", table) for table in tables]
    oracle.assert_silver_equals_source(
        pipeline.source, pipeline.spark, pipeline.root, names, ignore_left_columns=True
    )


def built(summary: ApplySummary) -> ApplySummary:
    """Return a rebuild that failed and held no table; some may be in doubt, because changes were left out."""
    assert summary.exit_code(strict=False) == 0, summary.lines()
    assert not any(state.held for state in summary.tables.values()), summary.lines()
    return summary


def assert_whole(pipeline: Pipeline, *tables: str) -> None:
    """Assert that silver is right, also rebuilt from bronze, and that audit and reconcile agree."""
    pipeline.catch_up()
    assert_equal(pipeline, *tables)
    rebuilt = built(run_rebuild(pipeline.config))
    assert sorted(name.table for name in rebuilt.rebuilt or ()) == sorted(tables)
    assert_equal(pipeline, *tables)
    assert run_audit(pipeline.config).findings == ()
    assert run_reconcile(pipeline.config, runs=True).exit_code(strict=True) == 0


def rows_of(pipeline: Pipeline, table: str) -> int:
    return sum(row["table_name"] == table and row["op"] != "M" for row in pipeline.changes())


def silver(pipeline: Pipeline, table: str) -> list[dict[str, Any]]:
    """Return the rows of a silver table, with the commits that wrote them, but for a dropped column."""
    rows = pipeline.frame("silver", "public", table).drop("gone").orderBy("id").collect()
    return [row.asDict() for row in rows]


@pytest.fixture(params=["copied", "streamed"])
def lived(request: pytest.FixtureRequest, make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline whose tables have changed in all ways, after a copy or without one."""
    copies = request.param == "copied"
    made = make_pipeline(create_publication="never", copy="initial" if copies else "never")
    pipeline = retaining(with_writer(made, "native"))
    publication = pipeline.config.source.publication
    pipeline.run(f"CREATE PUBLICATION {publication} FOR ALL TABLES WITH (publish_via_partition_root)")
    if not copies:
        pipeline.ingest()
    pipeline.catch_up(*SCHEMA, *ROWS)
    pipeline.catch_up(*CHANGES)
    pipeline.catch_up(*DDL)
    return pipeline


@pytest.mark.sample(1)
@pytest.mark.promise("retention")
def test_everything_works_on_from_a_base(lived: Pipeline) -> None:
    before = len(lived.changes())
    assert maintain(lived, later=RETENTION / 2).compaction.removed_rows == 0
    planned = maintain(lived, dry_run=True).compaction
    assert len(lived.changes()) == before
    done = maintain(lived)
    found = bases(done)
    assert replace(planned, added_files=done.compaction.added_files) == done.compaction
    assert not any(table.kept for table in found.values()), found
    assert {*found} >= {"keyed", "moved", "entire", "emptied", "cut"}
    assert len(lived.changes()) == before - done.compaction.removed_rows
    count = lived.source.execute("SELECT count(*) FROM keyed").fetchone()
    assert count is not None
    assert rows_of(lived, "keyed") == count[0]
    assert rows_of(lived, "cut") == 2
    before_rebuild = silver(lived, "keyed"), silver(lived, "moved")
    assert_whole(lived, *TABLES)
    assert (silver(lived, "keyed"), silver(lived, "moved")) == before_rebuild

    lived.run(
        "UPDATE keyed SET n = n + 1",
        "UPDATE moved SET id = id + 1000",
        "DELETE FROM entire WHERE n = 1",
        "INSERT INTO listed VALUES (8, 'later')",
        "INSERT INTO emptied VALUES (1)",
        "UPDATE untouched SET v = 'w'",
        "TRUNCATE parted",
    )
    assert_whole(lived, *TABLES)
    again = bases(maintain(lived, later=10 * RETENTION))
    assert again["keyed"].removed_rows > 0
    assert_whole(lived, *TABLES)
    assert not maintain(lived, later=20 * RETENTION).compaction.removed_rows


@pytest.mark.sample(1)
@pytest.mark.spark
@pytest.mark.promise("retention")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", list(RetentionStep))
def test_a_run_that_crashes_is_ended_by_the_next(
    make_pipeline: MakePipeline, step: RetentionStep, when: str
) -> None:
    pipeline = copied(make_pipeline)
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    pipeline.catch_up()
    pipeline.catch_up("UPDATE t SET n = 10 WHERE id < 3", "DELETE FROM t WHERE id = 1", "UPDATE t SET n = 11")
    with crash_at(step, when), pytest.raises(Crash):
        maintain(pipeline)
    assert_whole(pipeline, "t")
    maintain(pipeline, later=10 * RETENTION)
    assert rows_of(pipeline, "t") == 2
    assert_whole(pipeline, "t")


@pytest.mark.slow
@pytest.mark.spark
def test_tables_with_retentions_of_their_own(make_pipeline: MakePipeline) -> None:
    rules = (TableRule("public.short", retention=60), TableRule("public.long", retention=None))
    pipeline = with_rules(copied(make_pipeline), *rules, TableRule("public.*"))
    tables = ("short", "long", "plain")
    for table in tables:
        pipeline.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int)", f"INSERT INTO {table} VALUES (1, 1)"
        )
    pipeline.catch_up()
    pipeline.run(*(f"UPDATE {table} SET n = n + 1" for table in tables))
    pipeline.catch_up("SELECT pg_logical_emit_message(false, 'old', 'message')")
    found = bases(maintain(pipeline, later=RETENTION / 2))
    assert {name: table.removed_rows for name, table in found.items()} == {"short": 1}
    assert [rows_of(pipeline, table) for table in tables] == [1, 2, 2]
    assert_whole(pipeline, *tables)
    found = bases(maintain(pipeline))
    assert {name: table.removed_rows for name, table in found.items()} == {"plain": 1}
    assert [rows_of(pipeline, table) for table in tables] == [1, 2, 1]
    assert not any(row["op"] == "M" for row in pipeline.changes())
    assert_whole(pipeline, *tables)


TYPED = {
    "pairs": ("a int, b text", "a, b", "i % 3, chr(64 + i)", ("1", "B")),
    "words": ("a text", "a", "chr(64 + i) || lower(chr(84 - i))", ("B",)),
    "ids": ("a uuid", "a", "md5(i::text)::uuid", ("50000000-0000-0000-0000-000000000000",)),
    "amounts": ("a numeric(10, 2)", "a", "i * 1.5", ("2.5",)),
}


@pytest.fixture(params=["copied", "streamed"])
def resynced(request: pytest.FixtureRequest, make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline with partly resynced tables, and rows that were deleted without a message."""
    copies = request.param == "copied"
    made = make_pipeline(create_publication="all", copy="initial" if copies else "never")
    pipeline = retaining(with_writer(made, "native"))
    pipeline.ingest()
    pipeline.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT i, 0, {BIG.format('i')} FROM generate_series(1, 40) AS i",
    )
    for name, (columns, key, values, _) in TYPED.items():
        pipeline.run(
            f"CREATE TABLE {name} ({columns}, n int, PRIMARY KEY ({key}))",
            f"INSERT INTO {name} SELECT {values}, i FROM generate_series(1, 20) AS i",
        )
    pipeline.catch_up()
    pipeline.catch_up(
        "UPDATE t SET n = 1 WHERE id <= 20",
        "UPDATE t SET id = id + 100 WHERE id IN (5, 35)",
        *(f"UPDATE {name} SET n = n + 100 WHERE n % 2 = 0" for name in TYPED),
    )
    without_deletes(
        pipeline,
        "DELETE FROM t WHERE id IN (8, 9)",
        *(
            f"DELETE FROM {name} WHERE n > 110 AND ({key}) >= ({', '.join(map(repr, first))})"
            for name, (_, key, _, first) in TYPED.items()
        ),
    )
    pipeline.run("UPDATE t SET n = 2 WHERE id = 15")
    request_keys(pipeline, "t", ("7",), ("15",))
    for name, (*_, first) in TYPED.items():
        request_keys(pipeline, name, first, ())
    pipeline.catch_up()
    return pipeline


def without_deletes(pipeline: Pipeline, *statements: str) -> None:
    """Run statements whose deletes are not in the stream."""
    publication = pipeline.config.source.publication
    pipeline.run(f"ALTER PUBLICATION {publication} SET (publish = 'insert, update, truncate')", *statements)
    pipeline.run(f"ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')")


def request_keys(pipeline: Pipeline, table: str, first: tuple[str, ...], last: tuple[str, ...]) -> None:
    """Request a copy of the keys of a range."""
    ranges = [KeyRange(first, last)]
    run_resync(pipeline.config, [f"public.{table}"], key_ranges=ranges)


def resync(pipeline: Pipeline, table: str, first: tuple[str, ...], last: tuple[str, ...]) -> None:
    """Copy the keys of a range again."""
    request_keys(pipeline, table, first, last)
    pipeline.catch_up()


@pytest.mark.spark
@pytest.mark.promise("retention")
@pytest.mark.slow
def test_keys_that_were_copied_again(resynced: Pipeline) -> None:
    pipeline = resynced
    pipeline.catch_up(
        "UPDATE t SET n = 3 WHERE id IN (10, 11, 30)",  # big is unchanged TOAST, of copied rows too
        "UPDATE t SET id = id + 200 WHERE id IN (11, 12)",
        "DELETE FROM t WHERE id IN (13, 31)",
        "INSERT INTO t VALUES (13, 9, NULL), (8, 8, NULL)",
    )
    resync(pipeline, "t", ("10",), ("10",))
    pipeline.catch_up("UPDATE t SET n = 5 WHERE id < 12", "UPDATE t SET id = 11 WHERE id = 211")
    before = silver(pipeline, "t")
    found = bases(maintain(pipeline))
    assert not any(table.kept for table in found.values()), found
    tables = ("t", *TYPED)
    for table in tables:
        assert found[table].removed_rows > 0
        count = pipeline.source.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert count is not None
        assert rows_of(pipeline, table) == count[0], "of rows in a range that the source lost, none is left"
    assert_whole(pipeline, *tables)
    assert silver(pipeline, "t") == before
    by_spark = with_writer(pipeline, "spark")
    assert run_rebuild(by_spark.config).exit_code(strict=True) == 0
    assert silver(pipeline, "t") == before
    assert_equal(pipeline, *tables)
    ((copied_row,),) = read_history(pipeline.config, "public.t", ("14",)).lives
    assert copied_row.change.op == "R"

    pipeline.run("UPDATE t SET n = 6 WHERE id < 20", "UPDATE t SET id = id + 500 WHERE id = 10")
    without_deletes(pipeline, "DELETE FROM t WHERE id = 1")
    resync(pipeline, "t", ("1",), ("3",))
    pipeline.catch_up("DELETE FROM t WHERE id = 14")
    run_forget(pipeline.config, "public.t", [("14",)])
    assert bases(maintain(pipeline, later=10 * RETENTION))["t"].removed_rows > 0
    assert_whole(pipeline, *tables)


@pytest.mark.spark
@pytest.mark.promise("retention")
@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", list(RetentionStep))
def test_a_run_that_crashes_with_copied_keys(resynced: Pipeline, step: RetentionStep, when: str) -> None:
    with crash_at(step, when), pytest.raises(Crash):
        maintain(resynced)
    assert_whole(resynced, "t", *TYPED)
    resynced.run("UPDATE t SET n = 6 WHERE id < 12")
    resync(resynced, "t", ("11",), ("20",))
    maintain(resynced, later=10 * RETENTION)
    assert_whole(resynced, "t", *TYPED)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.promise("retention")
def test_what_a_range_lost_does_not_stay(make_pipeline: MakePipeline) -> None:
    pipeline = copied(make_pipeline)
    silver = replace(pipeline.config.silver, rewrites="event")  # else the lost delete is found and copied
    pipeline = replace(pipeline, config=replace(pipeline.config, silver=silver))
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 9) AS i",
    )
    pipeline.run("UPDATE t SET n = 30 WHERE id < 6")
    without_deletes(pipeline, "DELETE FROM t WHERE id = 4")
    resync(pipeline, "t", ("3",), ("5",))
    pipeline.catch_up("UPDATE t SET n = 31 WHERE id = 5")
    maintain(pipeline)
    assert rows_of(pipeline, "t") == 8
    assert_whole(pipeline, "t")

    other = with_rules(pipeline, TableRule("public.*", mode="history"))  # which reads no copies of keys
    refused = run_rebuild(other.config)
    assert refused.exit_code(strict=True) == 1
    assert "rows only in copies of keys" in str(refused.lines()), refused.lines()
    run_resync(other.config, ["public.t"])
    other.ingest()
    assert run_rebuild(other.config).exit_code(strict=True) == 0
    rows = other.frame("silver", "public", "t").where("_is_current").select("id", "n").collect()
    assert sorted(map(tuple, rows)) == sorted(other.source.execute("SELECT id, n FROM t").fetchall())


RENAMES = (
    ("ALTER TABLE one RENAME TO moved_one",),
    ("CREATE SCHEMA IF NOT EXISTS other", "ALTER TABLE two SET SCHEMA other"),
    ("ALTER TABLE three RENAME TO former", "CREATE TABLE three (id int PRIMARY KEY, n int, v text)"),
    ("ALTER TABLE four RENAME TO x", "ALTER TABLE five RENAME TO four", "ALTER TABLE x RENAME TO five"),
    ("ALTER TABLE six RENAME TO y", "UPDATE y SET n = 7", "DELETE FROM y WHERE id = 9"),
)


@pytest.mark.spark
@pytest.mark.promise("retention")
@pytest.mark.slow
@pytest.mark.parametrize("copies", [True, False], ids=["copied", "streamed"])
def test_renamed_tables(make_pipeline: MakePipeline, copies: bool) -> None:
    made = make_pipeline(create_publication="all", copy="initial" if copies else "never")
    pipeline = retaining(with_writer(made, "native"))
    pipeline.ingest()
    before = ("one", "two", "three", "four", "five", "six")
    for table in before:
        pipeline.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int)",
            f"INSERT INTO {table} SELECT i, 0 FROM generate_series(1, 9) AS i",
        )
    pipeline.catch_up()
    pipeline.catch_up(*(f"UPDATE {table} SET n = 1 WHERE id < 4" for table in before))
    for statements in RENAMES:
        pipeline.run(*statements)
    after = ("moved_one", "other.two", "three", "former", "four", "five", "y")

    def change(n: int) -> None:
        for table in after:
            pipeline.run(
                f"INSERT INTO {table} (id, n) VALUES ({n}, {n}), ({n + 1}, 0)",
                f"UPDATE {table} SET n = {n} WHERE id > {n - 3}",
                f"DELETE FROM {table} WHERE id = {n + 1}",
            )
        for _ in range(3):  # the copies under new names
            pipeline.ingest()
            pipeline.apply()

    def shown() -> dict[str, list[Any]]:
        found = {}
        for name in sorted(Records(Lake(pipeline.root, pipeline.spark)).tables.read()):
            found[str(name)] = sorted(map(tuple, pipeline.frame("silver", *name).select("id", "n").collect()))
        return found

    change(20)
    change(30)
    rows = shown()
    done = bases(maintain(pipeline))
    kept = {name: table.kept for name, table in done.items() if table.kept}
    assert set(kept.values()) <= {"it is not published any more, and silver still has it"}, kept
    assert done["moved_one"].removed_rows > 0
    assert done["three"].removed_rows > 0
    for writer in ("native", "spark"):
        other = with_writer(pipeline, writer)
        built(run_rebuild(other.config))
        assert shown() == rows, writer
    change(40)
    if copies:
        for name in ("moved_one", "three", "former", "four", "five", "y"):
            source = pipeline.source.execute(f"SELECT id, n FROM {name}").fetchall()
            assert shown()[f"public.{name}"] == sorted(source), name
    assert run_audit(pipeline.config).findings == ()
    rows = shown()
    maintain(pipeline, later=10 * RETENTION)
    built(run_rebuild(pipeline.config))
    assert shown() == rows


@pytest.mark.slow
@pytest.mark.spark
def test_messages_are_removed_though_tables_keep_all(make_pipeline: MakePipeline) -> None:
    pipeline = with_rules(copied(make_pipeline), TableRule("public.*", retention=None))
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1)")
    pipeline.run("UPDATE t SET n = 2", "SELECT pg_logical_emit_message(true, 'old', 'message')")
    pipeline.catch_up("UPDATE t SET n = 3")
    assert maintain(pipeline).compaction.removed_messages == 1
    assert rows_of(pipeline, "t") == 3
    assert_whole(pipeline, "t")


@pytest.mark.slow
@pytest.mark.spark
def test_files_that_are_merged_meanwhile_are_compacted(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_pipeline(create_publication="all", copy="initial")
    pipeline = retaining(with_writer(made, "native"), seconds=1)
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    for _ in range(3):
        pipeline.catch_up()
        pipeline.run("UPDATE t SET n = n + 1")
    pipeline.catch_up()
    commit, calls = retention._commit, []

    def commit_after_merge(bronze: Bronze, *arguments: Any) -> int:
        calls.append(bronze)
        if len(calls) == 1:
            snapshot = bronze.changes.snapshot()
            groups = [list(snapshot.files.values())]
            merge_groups(bronze.changes, snapshot, groups, changes_layout())
        return commit(bronze, *arguments)

    monkeypatch.setattr(retention, "_commit", commit_after_merge)
    time.sleep(1)
    assert bases(maintain(pipeline, later=0))["t"].removed_rows > 0
    assert len(calls) == 2
    assert rows_of(pipeline, "t") == 2
    assert_whole(pipeline, "t")


@pytest.mark.spark
@pytest.mark.promise("retention")
def test_what_is_still_needed_stays(make_pipeline: MakePipeline) -> None:
    pipeline = copied(make_pipeline)
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    pipeline.catch_up("CREATE TABLE u (id int PRIMARY KEY, n int)", "INSERT INTO u VALUES (1, 1), (2, 2)")
    pipeline.run("UPDATE t SET n = n + 1", "UPDATE t SET n = n + 1", "UPDATE u SET n = n + 1")
    pipeline.ingest()  # and silver does not have these
    assert rows_of(pipeline, "t") == 6
    maintain(pipeline)
    assert rows_of(pipeline, "t") == 6
    pipeline.catch_up()
    run_resync(pipeline.config, ["public.u"])
    pipeline.catch_up()
    maintain(pipeline, later=10 * RETENTION)
    assert rows_of(pipeline, "t") == rows_of(pipeline, "u") == 2
    assert_whole(pipeline, "t", "u")


@pytest.mark.promise("retention")
def test_silver_that_is_set_back_before_the_base_is_rebuilt(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline = retaining(with_writer(pipeline, "native"))
    pipeline.ingest()
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    for folder in ("silver", "_pgdelta"):
        shutil.copytree(pipeline.path(folder), tmp_path / "backup" / folder)
    pipeline.catch_up("DELETE FROM t WHERE id = 1", "UPDATE t SET n = 3")
    maintain(pipeline)
    for folder in ("silver", "_pgdelta"):
        shutil.rmtree(pipeline.path(folder))
        shutil.copytree(tmp_path / "backup" / folder, pipeline.path(folder))
    pipeline.catch_up("INSERT INTO t VALUES (4, 4)")
    assert_equal(pipeline, "t")
    assert any("bronze has every change from" in sentence for _, sentence in pipeline.events("t"))


@pytest.mark.slow
@pytest.mark.spark
def test_a_table_without_newer_changes_is_not_rebuilt(make_pipeline: MakePipeline) -> None:
    pipeline = copied(make_pipeline)
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    pipeline.catch_up("CREATE TABLE u (id int PRIMARY KEY)")
    pipeline.catch_up("UPDATE t SET n = 3", "DELETE FROM t WHERE id = 1")
    pipeline.catch_up("INSERT INTO u VALUES (1)")
    before = pipeline.version("t")
    assert bases(maintain(pipeline))["t"].removed_rows > 0
    pipeline.catch_up("INSERT INTO u VALUES (2)")
    assert not any("It is rebuilt" in sentence for _, sentence in pipeline.events("t"))
    assert pipeline.version("t") == before
    pipeline.run("UPDATE t SET n = 4")
    assert_whole(pipeline, "t", "u")


def test_a_table_that_is_rebuilt_meanwhile(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = copied(make_pipeline)
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    pipeline.catch_up()
    pipeline.catch_up("DELETE FROM t WHERE id = 1", "UPDATE t SET n = 4 WHERE id = 2")
    write = BatchWriter._write
    compacted: list[Compaction] = []

    def write_before_maintenance(writer: BatchWriter, *arguments: Any) -> int:
        done = write(writer, *arguments)
        if not compacted:
            compacted.append(maintain(pipeline).compaction)
        return done

    monkeypatch.setattr(BatchWriter, "_write", write_before_maintenance)
    succeeded(run_rebuild(pipeline.config))
    assert compacted[0].removed_rows > 0
    assert_equal(pipeline, "t")


@pytest.mark.slow
@pytest.mark.spark
def test_a_key_whose_texts_have_changed(make_pipeline: MakePipeline) -> None:
    pipeline = copied(make_pipeline)
    pipeline.catch_up(
        "CREATE TABLE t (id numeric(10, 1) PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    )
    pipeline.catch_up(
        "ALTER TABLE t ALTER id TYPE numeric(11, 2)",
        "DELETE FROM t WHERE id = 1",
        "UPDATE t SET v = 'd' WHERE id = 2",
    )
    assert_equal(pipeline, "t")
    assert "key have changed" in str(bases(maintain(pipeline))["t"].kept)
    assert_whole(pipeline, "t")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.promise("retention")
def test_forget_and_retention_go_together(make_pipeline: MakePipeline) -> None:
    pipeline = copied(make_pipeline)
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 9) AS i",
    )
    pipeline.catch_up("UPDATE t SET n = 0 WHERE id > 4", "DELETE FROM t WHERE id IN (1, 9)")
    run_forget(pipeline.config, "public.t", [("1",)])
    maintain(pipeline)
    assert rows_of(pipeline, "t") == 7
    assert_whole(pipeline, "t")
    pipeline.catch_up("UPDATE t SET n = 5 WHERE id = 2", "DELETE FROM t WHERE id = 2")
    run_forget(pipeline.config, "public.t", [("2",)])
    assert rows_of(pipeline, "t") == 6
    assert_whole(pipeline, "t")
    maintain(pipeline, later=10 * RETENTION)
    assert_whole(pipeline, "t")


def test_bronze_with_features_of_others_is_left_as_it_is(database: Database, tmp_path: Path) -> None:
    pipeline = NativePipeline.make(database, tmp_path)
    pipeline.config = replace(pipeline.config, bronze=BronzeLog(RETENTION))
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "DELETE FROM t")
    changes = Lake(pipeline.config.storage).table("bronze", "changes")
    DeltaTable(str(changes.folder)).alter.add_constraint({"counted": "ordinal IS NULL OR ordinal >= 0"})
    version = changes.snapshot().version
    made = run_maintenance(pipeline.config, clock=lambda: time.time() + 2 * RETENTION)
    assert made.compaction_failure == (
        f"{changes.path} has the constraint counted, which only Spark writes, so bronze.retention cannot "
        "shorten it. Remove it from the table, then run pgdelta maintain again."
    )
    assert changes.snapshot().version == version
