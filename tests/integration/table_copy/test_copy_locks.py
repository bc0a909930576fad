"""What a round of copies holds back at the source: nothing but the table that is read at the moment."""

import threading
from contextlib import ExitStack
from typing import Any

import pytest

from pipeline.bronze.copy_states import Chunk
from pipeline.config.config import Copying
from pipeline.key_ranges import KeyRange
from pipeline.operate.resync import run_resync
from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.postgres.snapshot.read_table import CopyReader
from pipeline.table_copy.reader_pool import ReaderPool, TableCopy
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.threads import in_threads

LOCKED = """
SELECT c.relname, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE l.pid = %s AND n.nspname {} 'pg_catalog'
"""


class HeldRound:
    """Keeps a round open before it reads one table, with the table before it copied already."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held_table: str) -> None:
        self.is_there, self._go_on = threading.Event(), threading.Event()
        self.keeper_pid = 0
        self._held_table = held_table
        self._stage, self._keep = ReaderPool._stage, SnapshotKeeper.__init__
        held = self

        def stage(self: ReaderPool, reader: CopyReader, table: TableCopy, pages: Chunk) -> Any:
            if table.state.name[1] == held._held_table:
                held.is_there.set()
                assert held._go_on.wait(60)
            return held._stage(self, reader, table, pages)

        def keep(self: SnapshotKeeper, *arguments: Any, **options: Any) -> None:
            held._keep(self, *arguments, **options)
            held.keeper_pid = self.connection.info.backend_pid

        monkeypatch.setattr(ReaderPool, "_stage", stage)
        monkeypatch.setattr(SnapshotKeeper, "__init__", keep)

    def let_go(self) -> None:
        self._go_on.set()


def assert_free(pipeline: Pipeline, held: HeldRound, *statements: str) -> None:
    """Assert that, during an ingest, its snapshot's session locks nothing, and statements do not wait."""
    with in_threads(lambda stop: pipeline.ingest()), ExitStack() as stack:
        stack.callback(held.let_go)
        assert held.is_there.wait(60)
        locked = [
            pipeline.source.execute(LOCKED.format(operator).encode(), (held.keeper_pid,)).fetchall()
            for operator in ("<>", "=")
        ]
        assert locked == [[], []], "user tables, catalogs"
        pipeline.run("SET lock_timeout = '2s'", *statements)


@pytest.fixture
def pipeline(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline that copies by one reader, so that `a` is read whole before `b`."""
    pipeline = make_pipeline(copy="initial", copying=Copying(connections=1), create_publication="all")
    for table in ("a", "b"):
        pipeline.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, 'v' FROM generate_series(1, 500) i",
        )
    return pipeline


@pytest.mark.promise("no locks on other tables")
def test_a_table_that_is_copied_can_be_altered_while_others_are_read(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldRound(monkeypatch, "b")
    assert_free(pipeline, held, "VACUUM FULL a", "ALTER TABLE a ADD COLUMN w int DEFAULT 7")
    pipeline.catch_up("UPDATE a SET v = 'w' WHERE id = 15")  # it describes the new column
    pipeline.assert_equal("a", "b")


@pytest.mark.spark
@pytest.mark.promise("no locks on other tables")
@pytest.mark.slow
def test_a_table_can_be_altered_during_its_partial_resync_too(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.catch_up()
    for table in ("a", "b"):
        ranges = [KeyRange(("10",), ("20",))]
        run_resync(pipeline.config, [f"public.{table}"], key_ranges=ranges)
    held = HeldRound(monkeypatch, "b")
    assert_free(pipeline, held, "ALTER TABLE a ADD COLUMN w int DEFAULT 7")
    pipeline.catch_up("UPDATE a SET v = 'w' WHERE id = 15")  # it describes the new column
    pipeline.assert_equal("a", "b")
