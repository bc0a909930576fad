"""Silver as of one commit: a transaction that spans tables is seen in all of them, or in none."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import pgdelta
from pipeline.apply.applier import Applier
from pipeline.config.tables import TableRule
from pipeline.crash_steps import CrashStep
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import LakeError
from pipeline.metadata.manifests import Manifests
from pipeline.operate.rebuild import run_rebuild
from pipeline.protocol.lsn import LSN
from pipeline.reading.as_of import read_silver
from pipeline.silver.read.as_of import AsOf
from pipeline.table_name import TableName
from tests.support.fault_points import crash_at
from tests.support.lives import FILL, TABLE
from tests.support.pipelines import Crash, Pipeline

pytestmark = pytest.mark.spark

TABLES = (
    "CREATE TABLE debit (id int PRIMARY KEY, amount int)",
    'CREATE TABLE "Credit" (id int PRIMARY KEY, amount int)',
)
NAMES = [TableName("public", "Credit"), TableName("public", "debit")]


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put this process, as its host may be, into another time zone than UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


BOOK = 2 * (
    *("BEGIN", "INSERT INTO debit SELECT count(*), 10 FROM debit"),
    *('INSERT INTO "Credit" SELECT count(*), 10 FROM "Credit"', "COMMIT"),
    *("BEGIN", "UPDATE debit SET amount = amount + 1", 'UPDATE "Credit" SET amount = amount + 1', "COMMIT"),
)
"""Writes to both tables, in transactions that leave them alike."""


def rows(silver: AsOf, table: str) -> list[tuple[int, int]]:
    return sorted((row.id, row.amount) for row in silver[TableName("public", table)].collect())


def assert_alike(silver: AsOf, count: int) -> None:
    assert rows(silver, "debit") == rows(silver, "Credit")
    assert len(rows(silver, "debit")) == count


def manifest_lsns(pipeline: Pipeline) -> list[LSN]:
    found = pipeline.frame("_pgdelta", "manifests").select("lsn").distinct().collect()
    return sorted(LSN(row.lsn) for row in found)


def silver_of(pipeline: Pipeline, **wanted: Any) -> AsOf:
    found = pgdelta.as_of(pipeline.session, pipeline.root, **wanted)
    assert isinstance(found, AsOf)
    return found


def end_before_the_manifest(pipeline: Pipeline) -> None:
    """Run an apply that writes its tables, and ends before it says so."""
    with crash_at(CrashStep.RECORD_MANIFEST), pytest.raises(Crash):
        Applier(pipeline.spark, pipeline.config).apply_pending()


@pytest.mark.promise("consistent reads")
def test_every_manifest_shows_whole_transactions(pipeline: Pipeline, far_east: None) -> None:
    pipeline.ingest()
    pipeline.run(*TABLES)
    for _ in range(2):
        pipeline.catch_up(*BOOK)
    lsns = manifest_lsns(pipeline)
    seen = {lsn: silver_of(pipeline, lsn=str(lsn)) for lsn in lsns}
    sides = [(rows(silver, "debit"), rows(silver, "Credit")) for silver in seen.values()]
    assert all(debit == credit for debit, credit in sides)
    assert [len(debit) for debit, _ in sides] == [2, 4]
    newest = silver_of(pipeline)
    assert (newest.lsn, sorted(newest), newest.behind) == (lsns[-1], NAMES, {})
    assert silver_of(pipeline, lsn=LSN(lsns[1] + 1)).lsn == lsns[1]
    # commit times are the source's, whatever zone this machine is in
    times = [silver.commit_time for silver in seen.values()]
    assert all(t and abs(datetime.now(timezone.utc) - t) < timedelta(minutes=30) for t in times)
    assert times[1]
    assert silver_of(pipeline, timestamp=times[1]).lsn == lsns[1]
    assert silver_of(pipeline, timestamp=(times[1] - timedelta(microseconds=1)).isoformat()).lsn == lsns[0]
    for wanted in ({"lsn": LSN(lsns[0] - 1)}, {"timestamp": "2001-01-01"}):
        with pytest.raises(LakeError, match="has no manifest at or before"):
            silver_of(pipeline, **wanted)
    assert seen[lsns[1]].create_views() == {"public__Credit": NAMES[0], "public__debit": NAMES[1]}
    joined = "SELECT count(*) AS n FROM public__debit JOIN public__Credit USING (id, amount)"
    assert [row.n for row in pipeline.session.sql(joined).collect()] == [4]

    # a table that is held is as of another commit than the others
    manifests = Manifests(Lake(pipeline.root, pipeline.spark))
    last = manifests.last()
    assert last is not None
    entries = (replace(e, is_behind=e.table_name == "Credit") for e in last.entries)
    manifests.record(replace(last, lsn=LSN(last.lsn + 8), entries=tuple(entries)))
    held = silver_of(pipeline)
    assert (sorted(held), held.behind) == (
        [TableName("public", "debit")],
        {TableName("public", "Credit"): lsns[-1]},
    )
    assert TableName("public", "Credit") not in held
    with pytest.raises(
        LakeError, match=r"Table public\.Credit is behind: it shows .*/.*, the other tables show"
    ):
        held[TableName("public", "Credit")]
    assert held.create_views() == {"public__debit": NAMES[1]}
    assert not pipeline.session.catalog.tableExists("public__Credit"), "of another commit than the other"
    printed = read_silver(pipeline.config, lsn=None, timestamp=None)
    assert [table["state"] for table in printed.as_json()["tables"]] == ["behind", "current"]


@pytest.mark.promise("consistent reads")
@pytest.mark.slow
def test_a_manifest_has_the_time_of_the_copy_that_a_table_begins_with(life: Pipeline, far_east: None) -> None:
    life.run(TABLE.format("b"), FILL.format("b", 1, 70))
    [[before]] = life.source.execute("SELECT clock_timestamp()").fetchall()
    life.run("UPDATE b SET v = 'later'", f"ALTER PUBLICATION {life.config.source.publication} ADD TABLE b")
    life.catch_up()
    newest = silver_of(life)
    assert {*newest} == {TableName("public", "a"), TableName("public", "b")}
    assert newest.commit_time is not None
    assert before < newest.commit_time < datetime.now(timezone.utc)
    with pytest.raises(
        LakeError, match="has no manifest at or before"
    ):  # a, too, began with its copy: before this time
        silver_of(life, timestamp="2001-01-01")
    assert [*silver_of(life, timestamp=before)] == [TableName("public", "a")]


@pytest.mark.slow
def test_what_a_run_wrote_that_ended_early_is_in_no_manifest_of_before(pipeline: Pipeline) -> None:
    pipeline.ingest()
    pipeline.catch_up(*TABLES, *BOOK)
    [[before]] = pipeline.source.execute("SELECT clock_timestamp()").fetchall()
    pipeline.ingest(*BOOK)
    end_before_the_manifest(pipeline)
    pipeline.catch_up()
    assert_alike(silver_of(pipeline, timestamp=before), 2)
    assert_alike(silver_of(pipeline), 4)


@pytest.fixture
def booked(pipeline: Pipeline) -> Pipeline:
    """Give a pipeline with two manifests."""
    pipeline.ingest()
    pipeline.run(*TABLES)
    for _ in range(2):
        pipeline.catch_up(*BOOK)
    return pipeline


@pytest.mark.slow
def test_a_table_that_caught_up_is_in_another_manifest_of_the_same_commit(booked: Pipeline) -> None:
    identifier, version = f"delta.`{booked.path('silver', 'public', 'Credit')}`", booked.version("Credit")
    booked.session.sql(f"DELETE FROM {identifier} WHERE id = 0")
    booked.ingest(*BOOK)
    booked.apply()
    held = silver_of(booked)
    assert [*held.behind] == [TableName("public", "Credit")]
    booked.session.sql(f"RESTORE TABLE {identifier} TO VERSION AS OF {version}")
    booked.apply()
    caught_up = silver_of(booked, lsn=held.lsn)
    assert (caught_up.lsn, caught_up.behind) == (held.lsn, {})
    assert_alike(caught_up, 6)
    for lsn, count in zip(manifest_lsns(booked), (2, 4, 6), strict=True):
        assert_alike(silver_of(booked, lsn=lsn), count)


@pytest.mark.promise("versions that are gone")
@pytest.mark.slow
def test_a_table_built_again_has_other_rows_under_the_same_numbers(booked: Pipeline) -> None:
    shutil.rmtree(booked.path("silver", "public", "Credit"))
    booked.catch_up(*BOOK)
    *lsns, newest = manifest_lsns(booked)
    for lsn, count in zip(lsns, (2, 4), strict=True):
        silver = silver_of(booked, lsn=lsn)
        assert len(rows(silver, "debit")) == count
        with pytest.raises(LakeError, match="was removed and created again since"):
            silver[TableName("public", "Credit")]
    assert_alike(silver_of(booked, lsn=newest), 6)


@pytest.mark.promise("versions that are gone")
@pytest.mark.slow
def test_a_manifest_of_an_older_release_is_read_by_the_offsets_of_versions(booked: Pipeline) -> None:
    table, first = booked.spark_frame("_pgdelta", "manifests"), manifest_lsns(booked)[0]
    fields = ["schema_name", "table_name", "path", "version", "applied_lsn", "is_behind"]
    of_then = ", ".join(f"'{name}', t.{name}" for name in fields)
    old = table.withColumn("tables", F.expr(f"transform(tables, t -> named_struct({of_then}))"))
    old.localCheckpoint().write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(
        str(booked.path("_pgdelta", "manifests"))
    )
    for lsn, count in zip(manifest_lsns(booked), (2, 4), strict=True):
        assert_alike(silver_of(booked, lsn=lsn), count)
    booked.catch_up(*BOOK)  # and goes on with the column
    assert_alike(silver_of(booked), 6)
    shutil.rmtree(booked.path("silver", "public", "Credit"))
    booked.catch_up()
    booked.catch_up(*BOOK)
    with pytest.raises(LakeError, match=r"created again since|has rows of another commit"):
        silver_of(booked, lsn=first)[TableName("public", "Credit")]


@pytest.mark.promise("versions that are gone")
@pytest.mark.slow
def test_versions_whose_files_or_log_are_deleted_are_refused(booked: Pipeline) -> None:
    lsns = manifest_lsns(booked)
    gone = LakeTable(str(booked.path("silver", "public", "debit")), booked.spark)
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    booked.session.conf.set(check, "false")
    try:
        booked.session.sql(f"VACUUM {gone.identifier} RETAIN 0 HOURS")
    finally:
        booked.session.conf.unset(check)
    silver = silver_of(booked, lsn=lsns[0])
    with pytest.raises(LakeError, match=r"lacks files, such as .*: VACUUM removes"):
        silver[TableName("public", "debit")]
    assert len(rows(silver, "Credit")) == 2
    printed = read_silver(booked.config, lsn=str(lsns[0]), timestamp=None)
    assert [state for state, _ in printed.tables] == ["current", "gone"]
    assert printed.exit_code(strict=False) == 1
    with pytest.raises(LakeError, match=r"Table public\.debit cannot be read"):
        silver.create_views()
    assert_alike(silver_of(booked, lsn=lsns[1]), 4)
    # Delta removes what a checkpoint made superfluous
    path = booked.path("silver", "public", "Credit", "_delta_log")
    log: Any = booked.session._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
    log.forTable(booked.session._jsparkSession, str(path.parent)).checkpoint()
    for file in path.glob("*.json"):
        if int(file.stem) < booked.version("Credit"):
            file.unlink()
    log.clearCache()
    with pytest.raises(LakeError, match=r"does not have version .* any more"):
        silver_of(booked, lsn=lsns[0])[TableName("public", "Credit")]
    assert_alike(silver_of(booked, lsn=lsns[1]), 4)


@pytest.mark.promise("versions that are gone")
@pytest.mark.slow
def test_as_of_is_the_same_after_a_move_a_rebuild_and_a_detached_table(
    booked: Pipeline, tmp_path: Path
) -> None:
    first, second = manifest_lsns(booked)
    root = tmp_path / "elsewhere" / "silver" / "lake"
    root.parent.mkdir(parents=True)
    shutil.move(booked.root, root)
    storage = replace(booked.config.storage, root=str(root))
    moved = replace(booked, config=replace(booked.config, storage=storage))
    for lsn, count in ((first, 2), (second, 4)):
        assert_alike(silver_of(moved, lsn=lsn), count)
    run_rebuild(moved.config, ["public.Credit"])
    for lsn, count in ((first, 2), (second, 4)):
        assert_alike(silver_of(moved, lsn=lsn), count)
    moved.catch_up(*BOOK)
    third = silver_of(moved)
    assert_alike(third, 6)
    rules = (TableRule("public.debit"),)
    silver = replace(moved.config.silver, detached_tables="archive")
    moved = replace(moved, config=replace(moved.config, tables=rules, silver=silver))
    moved.catch_up(*BOOK)
    assert [*silver_of(moved)] == [TableName("public", "debit")]
    for lsn, count in ((first, 2), (second, 4), (third.lsn, 6)):
        assert_alike(silver_of(moved, lsn=lsn), count)


@pytest.mark.promise("consistent reads")
@pytest.mark.slow
def test_what_a_run_wrote_that_ended_before_its_manifest_is_in_the_next(booked: Pipeline) -> None:
    booked.ingest(*BOOK)
    end_before_the_manifest(booked)
    booked.catch_up("INSERT INTO debit VALUES (100, 1)")  # of the other table there is nothing to apply
    silver = silver_of(booked)
    assert rows(silver, "debit")[:-1] == rows(silver, "Credit")
    assert len(rows(silver, "Credit")) == 6
    assert_alike(silver_of(booked, lsn=manifest_lsns(booked)[1]), 4)
