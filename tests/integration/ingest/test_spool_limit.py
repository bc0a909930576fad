"""Ingest reads nothing more while what is staged has reached its limit and cannot be landed yet."""

import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from pipeline.bronze import spool as spool_module
from pipeline.bronze import writer
from pipeline.bronze.staged_files import FOLDERS
from pipeline.config.config import Copying
from pipeline.config.jobs import Ingest
from pipeline.delta.commit_files import commit_files
from pipeline.delta.data_files import DataFile
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, TxnKind
from pipeline.ingest import capture as capture_module
from pipeline.postgres.replication import walsender as walsender_module
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.running import continuous
from tests.support.threads import wait_until

LIMIT = 2 << 20
TABLE = "CREATE TABLE big (id int PRIMARY KEY, v text)"
ROWS = (
    "INSERT INTO big SELECT g, (SELECT string_agg(md5(g::text || i), '') FROM generate_series(1, 20) i) "
    "FROM generate_series({}, {}) g"
)


class HeldCommits:
    """Commits of one kind to bronze wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: TxnKind) -> None:
        self.is_waiting, self._free = threading.Event(), threading.Event()

        def hold(table: LakeTable, files: list[DataFile], *commits: TableCommit, **options: Any) -> None:
            if files and commits[0].txn.kind is kind:
                self.is_waiting.set()
                self._free.wait(120)
            commit_files(table, files, *commits, **options)

        monkeypatch.setattr(writer, "commit_files", hold)

    def let_go(self) -> None:
        self._free.set()


@pytest.fixture
def limited(make_pipeline: MakePipeline) -> Pipeline:
    pipeline = make_pipeline(
        copy="initial", create_publication="all", copying=Copying(range_size=256 << 10, connections=1)
    )
    pipeline = replace(pipeline, config=replace(pipeline.config, ingest=Ingest(spool_limit=LIMIT)))
    pipeline.run(TABLE)
    return pipeline


def staged(pipeline: Pipeline) -> int:
    """Return the bytes of files that wait for a commit."""
    size = 0
    for path in (path for folder in FOLDERS for path in pipeline.path("_pgdelta", folder).glob("*/*")):
        with suppress(FileNotFoundError):  # moved meanwhile
            size += path.stat().st_size
    return size


@pytest.mark.promise("bounded growth")
def test_the_stream_waits_for_a_commit_that_hangs(limited: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "_MEASURE_SECONDS", 0.0)
    monkeypatch.setattr(spool_module, "BYTE_LIMIT", 256 << 10)  # what is more is on disk
    monkeypatch.setattr(walsender_module, "BATCH_MESSAGES", 500)
    limited.ingest()
    held = HeldCommits(monkeypatch, TxnKind.OFFSET)
    with continuous(limited):
        limited.run(ROWS.format(1, 100))
        assert held.is_waiting.wait(30)
        for number in range(12):  # about 600 kB each
            limited.run(ROWS.format(1000 * number + 101, 1000 * number + 1000))
        assert LIMIT <= settled(limited) < 2 * LIMIT
        held.let_go()
        wait_until(lambda: limited.frame("bronze", "changes").where("op = 'I'").count() == 100 + 12 * 900)
    limited.assert_follows("big")


@pytest.mark.promise("bounded growth")
def test_the_stream_is_read_to_the_limit_while_a_transaction_is_written(
    limited: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "_MEASURE_SECONDS", 0.0)
    monkeypatch.setattr(spool_module, "BYTE_LIMIT", 128 << 10)
    monkeypatch.setattr(walsender_module, "BATCH_MESSAGES", 500)
    limited.ingest()
    is_writing, may_write, write = threading.Event(), threading.Event(), spool_module._write

    def hold(*arguments: Any) -> Any:
        is_writing.set()
        may_write.wait(120)
        return write(*arguments)

    monkeypatch.setattr(spool_module, "_write", hold)
    with continuous(limited):
        limited.run(ROWS.format(1, 1000))
        assert is_writing.wait(30)
        for number in range(1, 40):  # about 60 kB each
            limited.run(ROWS.format(1000 * number + 1, 1000 * number + 90))
        assert LIMIT <= settled(limited) < 2 * LIMIT
        may_write.set()
        wait_until(lambda: limited.frame("bronze", "changes").where("op = 'I'").count() == 1000 + 39 * 90)
    limited.assert_follows("big")


@pytest.mark.promise("bounded growth")
def test_a_copy_waits_for_a_commit_that_hangs(limited: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    limited.run(ROWS.format(1, 10_000))
    held = HeldCommits(monkeypatch, TxnKind.CHUNKS)
    with continuous(limited) as running:
        assert held.is_waiting.wait(30)
        assert LIMIT <= settled(limited) < 2 * LIMIT
        held.let_go()
        wait_until(lambda: TableName("public", "big") in running.copied)
    limited.assert_follows("big")


def settled(pipeline: Pipeline) -> int:
    """Return the size of what is staged once it does not grow any more."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < 3:
        time.sleep(0.2)
        if (size := staged(pipeline)) != before:
            before, since = size, time.monotonic()
    return before
