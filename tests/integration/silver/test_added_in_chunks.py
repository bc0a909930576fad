"""Rows that are only added are written in chunks and one commit, however many they are, without Spark."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.apply.applier import Applier
from pipeline.bronze import change_rows, changes_scan
from pipeline.bronze.change_rows import ChangeRows
from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.delta.data_files import DataFiles
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.table import Lake, LakeTable
from pipeline.ingest.job import run_ingest
from pipeline.silver.write import batch_writer, file_committer, step_writer
from tests.support.comparable.arrow import arrow_rows
from tests.support.comparable.silver import silver_path
from tests.support.comparable.source import snapshot, source_columns, source_rows
from tests.support.pipelines import Crash
from tests.support.servers import Database
from tests.support.statistics import statistics_of

ROWS = 3000
CREATE = (
    "CREATE TABLE t (id bigint PRIMARY KEY, n numeric(12, 2), v text, at timestamptz, day date, f float8,"
    " tags text[])"
)
FILL = (
    "INSERT INTO t SELECT g, g / 7.0, CASE WHEN g % 3 > 0 THEN 'value ' || g END, now(), '2024-02-29',"
    " CASE WHEN g = 1500 THEN float8 'NaN' ELSE g END, ARRAY['a', g::text]"
    f" FROM generate_series(1, {ROWS}) g"
)


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make chunks and files small, and refuse to start Spark; return the rows of each chunk that is read."""

    def refuse(provider: SparkProvider) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(SparkProvider, "session", property(refuse))
    monkeypatch.setattr(changes_scan, "_BATCH_ROWS", 100)
    monkeypatch.setattr(change_rows, "CHUNK_ROWS", 250)
    monkeypatch.setattr(batch_writer, "MAX_ROWS_AT_ONCE", 50)
    monkeypatch.setattr(file_committer, "ADDED_FILE_IN_MEMORY", 100_000)
    sizes = []
    read = ChangeRows.chunks

    def counted(rows: ChangeRows, *arguments: Any) -> Iterator[pa.Table]:
        for chunk in read(rows, *arguments):
            sizes.append(chunk.num_rows)
            yield chunk

    monkeypatch.setattr(ChangeRows, "chunks", counted)
    return sizes


def configure(database: Database, folder: Path, copy: str = "initial", **rule: Any) -> Config:
    config = database.config("*.*", root=str(folder / "lake"), create_publication="all", copy=copy)
    silver = replace(config.silver, writer="auto")
    return replace(config, silver=silver, tables=(TableRule("public.*", **rule),))


def catch_up(config: Config, applier: Applier | None = None, *, ok: bool = True) -> None:
    """Ingest and apply all that is committed; a copy is applied once the stream is past it."""
    run_ingest(config)
    summary = (applier or Applier(None, config)).apply_pending()
    assert (summary.exit_code(strict=True) == 0) is ok, summary.tables


def assert_equal(database: Database, config: Config, name: str) -> None:
    with database.connect() as source, snapshot(source):
        columns = source_columns(source, "public", name)
        wanted = source_rows(source, "public", name, columns)
    path = silver_path(config.storage.root, "public", name)
    assert arrow_rows(path, [column.name for column in columns]) == wanted


def tick(database: Database, config: Config) -> None:
    """Ingest, and move the stream beyond what was copied."""
    run_ingest(config)
    database.run("CREATE TABLE IF NOT EXISTS other (v int)", "INSERT INTO other VALUES (1)")


def operations(table: LakeTable) -> list[str]:
    texts = (path.read_text() for path in sorted(table.folder.glob("_delta_log/*.json")))
    actions = (json.loads(line) for text in texts for line in text.splitlines())
    return [action["commitInfo"]["operation"] for action in actions if "commitInfo" in action]


def silver(config: Config, name: str = "t") -> LakeTable:
    return LakeTable(silver_path(config.storage.root, "public", name))


def data_files(table: LakeTable) -> list[Path]:
    return sorted(table.folder.glob("*.parquet"))


def misfits(config: Config) -> list[dict[str, Any]]:
    rows = Lake(config.storage).table("_pgdelta", "misfits").rows().to_pylist()
    return sorted(rows, key=lambda row: (row["column_name"], int(json.loads(row["key"])["id"])))


def test_a_copy_of_many_chunks_is_one_commit_of_several_files(
    database: Database, tmp_path: Path, chunks: list[int]
) -> None:
    config = configure(database, tmp_path)
    database.run(CREATE, FILL)
    tick(database, config)
    database.run(
        "UPDATE t SET v = 'new' WHERE id % 500 = 0",
        "DELETE FROM t WHERE id = 7",
        "UPDATE t SET id = -id WHERE id = 8",
    )
    catch_up(config)
    assert sum(chunks) == ROWS
    assert len(chunks) >= ROWS // 300
    assert max(chunks) <= 350
    assert_equal(database, config, "t")
    table = silver(config)
    assert operations(table) == ["CREATE TABLE", "WRITE", "MERGE"]
    assert len(data_files(table)) > 2


def test_each_file_has_the_statistics_of_its_rows(database: Database, tmp_path: Path) -> None:
    config = configure(database, tmp_path)
    database.run(CREATE, FILL)
    tick(database, config)
    catch_up(config)
    table = silver(config)
    files = table.snapshot().files.values()
    assert len(files) > 2
    assert sum(json.loads(file["stats"])["numRecords"] for file in files) == ROWS
    for file in files:
        rows = pq.read_table(table.folder / file["path"])
        assert json.loads(file["stats"]) == json.loads(statistics_of(rows))


def test_misfits_of_several_chunks_are_recorded_once(
    database: Database, tmp_path: Path, chunks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(database, tmp_path)
    database.run(
        CREATE,
        FILL,
        "UPDATE t SET day = 'infinity' WHERE id IN (5, 1505, 2995)",
        "UPDATE t SET at = '-infinity' WHERE id = 1506",
        "VACUUM FULL t",
    )
    tick(database, config)
    run_ingest(config)

    def end(*arguments: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(file_committer.FileCommitter, "_rewrite", end)
        with pytest.raises(Crash):
            Applier(None, config).apply_pending()
    found = [(row["column_name"], row["key"], row["raw_text"], row["policy"]) for row in misfits(config)]
    wanted = [("at", '{"id":"1506"}', "-infinity", "null")]
    wanted += [("day", f'{{"id":"{key}"}}', "infinity", "null") for key in (5, 1505, 2995)]
    assert found == wanted
    catch_up(config)
    assert len(misfits(config)) == 4
    rows = pq.read_table(data_files(silver(config)), columns=["id", "day", "at"]).to_pylist()
    assert len(rows) == ROWS
    assert sorted(row["id"] for row in rows if row["day"] is None) == [5, 1505, 2995]
    assert [row["id"] for row in rows if row["at"] is None] == [1506]
    assert len(chunks) > 2 * ROWS // 350


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_copy_that_ends_between_its_chunks_starts_again(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    config = configure(database, tmp_path)
    database.run(CREATE, FILL)
    tick(database, config)
    run_ingest(config)
    calls = []
    write = DataFiles.write

    def fifth(files: DataFiles, rows: pa.Table) -> None:
        calls.append(rows.num_rows)
        if len(calls) == 5:
            raise Crash
        write(files, rows)

    with monkeypatch.context() as patched:
        patched.setattr(DataFiles, "write", fifth)
        patched.setattr("pipeline.delta.data_files.ROW_GROUP", 1000)
        if is_killed:  # a process that is killed removes nothing
            patched.setattr(DataFiles, "discard", lambda files: None)
        with pytest.raises(Crash):
            Applier(None, config).apply_pending()
    table = silver(config)
    assert operations(table) == ["CREATE TABLE"]
    assert bool(data_files(table)) is is_killed
    catch_up(config)
    assert_equal(database, config, "t")
    assert operations(table) == ["CREATE TABLE", "WRITE"]
    database.run("INSERT INTO t VALUES (-1)")
    catch_up(config)
    assert_equal(database, config, "t")


def test_a_key_that_does_not_fit_leaves_no_file(database: Database, tmp_path: Path) -> None:
    config = configure(database, tmp_path, types={"id": "INT"})
    database.run(CREATE, FILL, "UPDATE t SET id = 3000000000 WHERE id = 2999")
    tick(database, config)
    catch_up(config, ok=False)
    assert operations(silver(config)) == ["CREATE TABLE"]
    assert data_files(silver(config)) == []


def test_too_many_misfits_are_left_to_spark(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(database, tmp_path)
    database.run(CREATE, FILL, "UPDATE t SET day = 'infinity'")
    tick(database, config)
    left = []

    def write(writer: batch_writer.BatchWriter, *arguments: object) -> int:
        left.append(arguments)
        return 0

    monkeypatch.setattr(step_writer, "_MAX_MISFIT_BYTES", 10_000)
    monkeypatch.setattr(batch_writer.BatchWriter, "_write_by_spark", write)
    catch_up(config)
    assert len(left) == 1
    assert data_files(silver(config)) == []
    assert misfits(config) == []


def test_inserts_without_a_key_are_written_in_chunks(
    database: Database, tmp_path: Path, chunks: list[int]
) -> None:
    config = configure(database, tmp_path, copy="never")
    database.run("CREATE TABLE log (v text)", "CREATE TABLE t (id int PRIMARY KEY, v text)")
    run_ingest(config)
    insert = "INSERT INTO {} SELECT {} FROM generate_series({}, {}) g"
    for first in range(0, 2000, 200):
        database.run(insert.format("log", "g % 9", first, first + 199), f"INSERT INTO t VALUES ({first})")
    catch_up(config)
    assert sum(chunks) == 2010
    assert len(chunks) > 5
    assert_equal(database, config, "log")
    assert_equal(database, config, "t")
