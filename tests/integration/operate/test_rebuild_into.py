"""A table built as of an LSN has the rows that the source had there, whatever lies before and after it."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

import pgdelta
from pipeline.config.tables import RowMode, TableRule
from pipeline.crash_steps import RebuildStep
from pipeline.delta import native_write
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import ConfigError, LakeError
from pipeline.metadata.manifests import Manifests
from pipeline.operate.rebuild_into import BuiltTable, build_into
from pipeline.operate.resync import run_resync
from pipeline.silver.write.writer_choice import WriterSetting
from tests.support.comparable.source import Rows, SourceColumn, snapshot, source_columns, source_rows
from tests.support.fault_points import crash_at
from tests.support.frames import Frame
from tests.support.oracle import table_faults
from tests.support.pipelines import Crash, MakePipeline, Pipeline, with_rules, with_writer
from tests.support.seeds import seed_of_run

BIG = "repeat(md5(id::text), 300)"
SCHEMA = (
    "CREATE TABLE keyed (id int PRIMARY KEY, n int, gone text, big text)",
    "ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE entire (n int, word text)",
    "ALTER TABLE entire REPLICA IDENTITY FULL",
    "INSERT INTO keyed (id, n) SELECT i, i FROM generate_series(1, 20) i",
    f"UPDATE keyed SET big = {BIG}",
    "INSERT INTO entire SELECT i % 3, 'x' FROM generate_series(1, 9) AS i",
)
STEPS = (
    ("UPDATE keyed SET n = n + 1 WHERE id < 9", "DELETE FROM entire WHERE n = 1",
     "DELETE FROM keyed WHERE id = 20"),
    ("UPDATE keyed SET id = id + 100 WHERE id < 4", "UPDATE entire SET word = 'y' WHERE n = 2"),
    ("ALTER TABLE keyed ADD more text DEFAULT 'm'", "UPDATE keyed SET n = 0 WHERE id > 100",
     "TRUNCATE entire"),
    ("ALTER TABLE keyed DROP gone, ALTER n TYPE bigint",
     "INSERT INTO keyed (id, n) VALUES (500, 1::bigint << 40)",
     "INSERT INTO entire VALUES (7, NULL), (7, NULL), (8, 'z')"),
    ("TRUNCATE keyed", "INSERT INTO keyed VALUES (1, 1, NULL, 'm')",
     "ALTER TABLE entire RENAME word TO said", "INSERT INTO entire VALUES (9, 'q')"),
    ("UPDATE keyed SET id = 2", "DELETE FROM entire WHERE n = 7"),
)  # fmt: skip
TABLES = ("keyed", "entire")


@dataclass(frozen=True)
class Moment:
    """The source's rows at an LSN."""

    lsn: str
    time: datetime
    rows: dict[str, tuple[list[SourceColumn], Rows]]


def look(pipeline: Pipeline) -> Moment:
    source = pipeline.source
    row = source.execute("SELECT pg_current_wal_insert_lsn()::text, clock_timestamp()").fetchone()
    assert row is not None
    with snapshot(source):
        columns = {table: source_columns(source, "public", table) for table in TABLES}
        rows = {t: (c, source_rows(source, "public", t, c)) for t, c in columns.items()}
    return Moment(row[0], row[1], rows)


def built(pipeline: Pipeline, table: str, into: Path, **point: Any) -> BuiltTable:
    return build_into(pipeline.config, [f"public.{table}"], str(into), **point)


def assert_shows(pipeline: Pipeline, table: str, moment: Moment, into: Path) -> None:
    """Assert that a result at `…/silver/<name>` has the rows of a moment."""
    columns, rows = moment.rows[table]
    root = str(into.parent.parent)
    faults = [*table_faults(None, root, "public", table, columns, rows, into.name, {}, True, True)]
    assert not faults, f"{table} at {moment.lsn}: {faults}"


def counted(frame: Any) -> Counter[str]:
    return Counter(repr(tuple(row)) for row in frame.select(*sorted(frame.columns)).collect())


@pytest.mark.promise("rebuild to any LSN", "a table next to the live one")
@pytest.mark.parametrize("writer", ["native", pytest.param("spark", marks=pytest.mark.slow)])
def test_a_table_built_as_of_an_lsn_has_the_source_s_rows_of_it(
    make_pipeline: MakePipeline, writer: WriterSetting, tmp_path: Path
) -> None:
    pipeline = make_pipeline("public.*", copy="initial", create_publication="configured")
    pipeline = with_writer(pipeline, writer)
    pipeline.catch_up(*SCHEMA)
    moments = [look(pipeline)]
    for number, statements in enumerate(STEPS):
        pipeline.run(*statements)
        moments.append(look(pipeline))
        if number == 1:
            pipeline.catch_up()
        if number == 2:  # later the catalog does not have the default of the older rows
            pipeline.ingest()
        if number == 3:  # a copy amid the changes
            run_resync(pipeline.config, ["public.*"])
            pipeline.catch_up()
            moments.append(look(pipeline))
    pipeline.catch_up()
    shown = {lsn for lsn, _ in Manifests(Lake(pipeline.root)).written()}
    newest = {table: pipeline.version(table) for table in TABLES}
    into = {table: tmp_path / "built" / "silver" / table for table in TABLES}
    # by default those that the catalog or a copy makes hard, and any other one
    others = (
        range(len(moments)) if writer == "spark" else {3, 6, Random(seed_of_run()).choice((0, 1, 2, 4, 5, 7))}
    )
    for number in sorted(others):
        moment = moments[number]
        for table in TABLES if number in (1, 3, 6) else TABLES[:1]:
            result = built(pipeline, table, into[table], lsn=moment.lsn)
            assert (str(result.lsn), result.row_count) == (moment.lsn, moment.rows[table][1].total())
            assert_shows(pipeline, table, moment, into[table])
            assert result.notes == ()
    for lsn in sorted(shown)[1:2] if writer == "spark" else ():
        silver = pgdelta.as_of(pipeline.session, pipeline.root, lsn=lsn)
        built(pipeline, "keyed", into["keyed"], lsn=str(lsn))
        columns = [c for c in silver["public", "keyed"].columns if c != "gone"]
        rebuilt = pipeline.session.read.format("delta").load(str(into["keyed"]))
        live = silver["public", "keyed"]
        values = [c for c in columns if c in rebuilt.columns and not c.startswith("_commit")]
        assert counted(rebuilt.select(values)) == counted(live.select(values)), lsn
    # by time: before the first transaction that committed later
    built(pipeline, "keyed", into["keyed"], time=moments[2].time.isoformat())
    assert_shows(pipeline, "keyed", moments[2], into["keyed"])
    snapshot_ = LakeTable(str(into["keyed"])).snapshot()
    assert snapshot_.configuration["pgdelta.table"] == "public.keyed"
    assert snapshot_.configuration["pgdelta.pipeline"] == pipeline.config.pipeline
    assert newest == {table: pipeline.version(table) for table in TABLES}, "the live tables are as they were"
    assert not [*pipeline.path("_pgdelta", "reconcile").iterdir()]
    with pytest.raises(LakeError, match="cannot be built as of 0/1, because bronze has it from"):
        built(pipeline, "keyed", into["keyed"], lsn="0/1")
    with pytest.raises(LakeError, match=r"bronze is complete up to .* only\. Run pgdelta ingest"):
        built(pipeline, "keyed", into["keyed"], lsn="FFF/0")


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", ["soft_delete", "append", "history"])
def test_a_table_of_a_mode_is_built_as_apply_left_it(
    make_pipeline: MakePipeline, mode: RowMode, tmp_path: Path
) -> None:
    pipeline = make_pipeline("public.*", copy="initial", create_publication="configured")
    pipeline = with_rules(pipeline, TableRule("public.*", mode=mode))
    pipeline.catch_up(*SCHEMA[:2], *SCHEMA[4:6])
    for statements in (STEPS[0], STEPS[1], STEPS[2], STEPS[4]):
        pipeline.run(*(each for each in statements if "keyed" in each))
    pipeline.catch_up()
    lsn = max(lsn for lsn, _ in Manifests(Lake(pipeline.root)).written())
    live = pipeline.frame("silver", "public", "keyed")
    columns, rows = live.columns, counted(live)
    assert len(rows) > 20
    pipeline.run("UPDATE keyed SET id = 2, n = -1", "TRUNCATE keyed", "INSERT INTO keyed (id) VALUES (2)")
    pipeline.catch_up()
    assert counted(pipeline.frame("silver", "public", "keyed")) != rows
    result = built(pipeline, "keyed", tmp_path / "built", lsn=str(lsn))
    rebuilt = Frame(str(tmp_path / "built"))
    assert sorted(rebuilt.columns) == sorted(columns)
    assert counted(rebuilt) == rows
    assert result.row_count == rows.total()


@pytest.mark.promise("rebuild to any LSN")
def test_a_result_replaces_only_an_earlier_one_and_survives_a_crash(
    make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    pipeline = make_pipeline("public.*", copy="initial", create_publication="configured")
    pipeline.catch_up(*SCHEMA)
    before = look(pipeline)
    pipeline.ingest(*STEPS[0])
    after = look(pipeline)
    into = tmp_path / "built" / "silver" / "keyed"
    with crash_at(RebuildStep.PUBLISH_TABLE), pytest.raises(Crash):
        built(pipeline, "keyed", into, lsn=before.lsn)
    assert "pgdelta.lsn" not in LakeTable(str(into)).snapshot().configuration
    built(pipeline, "keyed", into, lsn=before.lsn)
    assert_shows(pipeline, "keyed", before, into)
    assert LakeTable(str(into)).snapshot().configuration["pgdelta.lsn"] == before.lsn
    with crash_at(RebuildStep.PUBLISH_TABLE), pytest.raises(Crash):
        built(pipeline, "keyed", into)
    assert_shows(pipeline, "keyed", before, into)
    assert built(pipeline, "keyed", into).lsn >= 0
    assert_shows(pipeline, "keyed", after, into)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    for table, path, message in (
        ("entire", into, "has a table that pgdelta rebuild did not write for public.entire"),
        ("keyed", tmp_path / "full", "exists but is not a Delta table"),
        ("keyed", pipeline.path("silver", "public", "keyed"), "is in the lake"),
        ("keyed", pipeline.path("new"), "is in the lake"),
        ("keyed", pipeline.path().parent, "is in the lake"),
        ("*", tmp_path / "other", "--into takes one table"),
        ("nothing", tmp_path / "other", "neither has the source"),
    ):
        with pytest.raises(ConfigError, match=message):
            built(pipeline, table, path)
    live = DeltaTable(str(pipeline.path("silver", "public", "keyed")))
    write_deltalake(str(tmp_path / "copied"), live.to_pyarrow_table())
    with pytest.raises(ConfigError, match="did not write"):
        built(pipeline, "keyed", tmp_path / "copied")
    earlier = (before.time - timedelta(days=9)).isoformat()
    with pytest.raises(LakeError, match="cannot be built as of"):
        built(pipeline, "keyed", into, time=earlier)


@pytest.mark.spark
def test_spark_replaces_a_result_that_nothing_else_can(make_pipeline: MakePipeline, tmp_path: Path) -> None:
    pipeline = make_pipeline("public.*", copy="initial", create_publication="configured")
    pipeline.catch_up("CREATE TABLE keyed (id int PRIMARY KEY, n int)", "INSERT INTO keyed VALUES (1, 1)")
    table = LakeTable(str(tmp_path / "built"))
    first = built(pipeline, "keyed", tmp_path / "built")
    native_write.set_properties(table.folder, table.snapshot(), {"delta.enableChangeDataFeed": "true"}, "{}")
    pipeline.catch_up("ALTER TABLE keyed ADD more text", "UPDATE keyed SET n = 2, more = 'm'")
    second = built(pipeline, "keyed", tmp_path / "built")
    assert [(row["n"], row["more"]) for row in table.rows().to_pylist()] == [(2, "m")]
    assert table.snapshot().configuration["pgdelta.lsn"] == str(second.lsn)
    assert second.lsn > first.lsn
