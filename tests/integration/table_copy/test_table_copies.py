"""Rows from before the slot: silver equals the source, whatever happens at the source meanwhile."""

import json
import shutil
from typing import Any

import pytest

from pipeline.apply.applier import Applier
from pipeline.bronze.log import Bronze
from pipeline.bronze.writer import BronzeWriter
from pipeline.config.config import Copying
from pipeline.delta.table import Lake
from pipeline.delta.txn import TableCommit, TxnKind
from pipeline.operate.resync import run_resync
from pipeline.postgres.connection import Connection
from pipeline.postgres.snapshot.export import COPY_SESSIONS, SourceSnapshot, begin_under
from pipeline.progress import IngestSummary
from pipeline.protocol.lsn import LSN
from pipeline.report.status import read_status
from pipeline.table_copy import attempts as attempts_module
from pipeline.table_copy import coordinator as copying_module
from pipeline.table_copy.attempts import MAX_REWRITES
from pipeline.table_copy.candidates import CopyCandidates
from pipeline.table_copy.reader_pool import ReaderPool
from tests.support.copies import BAG, FILL, FILL_BAG, ORDERS, load, stop_after
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.servers import Database, MakeServer
from tests.support.threads import in_threads, wait_until
from tests.support.unseen import unseen_commits


@pytest.fixture
def copying(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline that begins with copies, of chunks of four pages."""
    return make_pipeline(copy="initial", copying=Copying(range_size=32 << 10), create_publication="all")


def copies(pipeline: Pipeline, table: str) -> list[tuple[str, int | None]]:
    """Return (state, chunks before) of what was recorded of a table's copies, in order."""
    rows = (
        pipeline.frame("bronze", "copies").where(f"table_name = '{table}'").orderBy("recorded_at").collect()
    )
    return [(row.state, row.chunks_before) for row in rows]


@pytest.mark.quick
def test_rows_from_before_the_slot_are_copied(copying: Pipeline) -> None:
    copying.run(*ORDERS, FILL.format(5000), *BAG, FILL_BAG)
    summary = copying.ingest(
        "CREATE TABLE empty (id int PRIMARY KEY, note text)",
        "CREATE TABLE log (at timestamptz, line text)",
        "INSERT INTO log SELECT now(), 'line ' || i FROM generate_series(1, 100) i",
        "INSERT INTO log VALUES ('infinity', 'does not fit')",
    )
    assert {name[1]: copy.rows_landed for name, copy in summary.copies.items()} == {
        "orders": 5000,
        "bag": 20000,
        "empty": 0,
        "log": 101,
    }
    applier = Applier(copying.spark, copying.config)
    applier.apply_pending()
    versions = [copying.version(table) for table in ("orders", "bag", "empty", "log")]
    applier.apply_pending()  # in the same process there is nothing more to do
    copying.apply()  # nor in another
    assert versions == [copying.version(table) for table in ("orders", "bag", "empty", "log")]
    assert copying.frame("silver", "public", "empty").count() == 0
    [misfit] = copying.frame("_pgdelta", "misfits").collect()
    assert (misfit.table_name, misfit.column_name, misfit.raw_text) == ("log", "at", "infinity")
    copying.assert_equal("orders", "bag", "empty")
    copying.catch_up(
        "UPDATE orders SET n = 99 WHERE id <= 10",
        "DELETE FROM orders WHERE id BETWEEN 11 AND 20",
        "UPDATE orders SET id = id + 100000 WHERE id BETWEEN 21 AND 30",
        "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = 1 LIMIT 3)",
        "INSERT INTO empty VALUES (1, 'one')",
    )
    copying.assert_equal("orders", "bag", "empty")
    # silver is in bronze alone
    before = copying.frame("silver", "public", "orders").drop("_commit_time").collect()
    shutil.rmtree(copying.path("silver", "public", "orders"))
    copying.apply()
    after = copying.frame("silver", "public", "orders").drop("_commit_time").collect()
    assert sorted(map(repr, before)) == sorted(map(repr, after))


@pytest.mark.slow
@pytest.mark.spark
def test_chunks_land_under_the_epoch_of_their_run(copying: Pipeline) -> None:
    copying.ingest(*ORDERS, FILL.format(2000))
    copying.ingest(*BAG, FILL_BAG)
    history = copying.session.sql(f"DESCRIBE HISTORY delta.`{copying.path('bronze', 'changes')}`")
    said = [json.loads(row.userMetadata) for row in history.orderBy("version").collect()]
    epochs = [facts["epoch"] for facts in said if facts.get("operation") == "copy"]
    assert epochs == sorted(epochs)
    assert set(epochs) == {1, 2}


@pytest.mark.promise("copies under load")
def test_a_copy_under_load(copying: Pipeline) -> None:
    copying.run(*ORDERS, FILL.format(4000), *BAG, FILL_BAG)
    with load(copying, 1):
        copying.ingest()
        copying.apply()
    copying.assert_follows("orders", "bag")
    assert copies(copying, "orders") == [("reading", 0), ("complete", None)]


@pytest.mark.promise("interrupted copies")
def test_a_copy_that_was_cut_off_continues(copying: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    copying.run(*ORDERS, FILL.format(4000), *BAG, FILL_BAG)
    with monkeypatch.context() as patch, load(copying, 2):
        stop_after(patch, 4)
        summary = copying.ingest()
    assert summary.exit_code(strict=False) == 1
    assert "OSError" in (summary.copy_failure or "")
    assert copying.apply().tables == {}  # waiting
    status = read_status(copying.config)
    assert {table.name[1]: table.state for table in status.tables} == {"bag": "copying", "orders": "copying"}
    with load(copying, 3):
        copying.ingest()
    copying.catch_up()
    states = copies(copying, "orders")
    assert [state for state, _ in states[:2]] == ["reading", "reading"]
    assert states[1][1]  # some of it was not read again
    # a transaction may end just while the second snapshot is taken: then the two do not fit together
    began_again = [state for state, _ in states[2:]] == ["abandoned", "reading", "complete"]
    assert began_again or [state for state, _ in states[2:]] == ["complete"]
    abandoned = copying.frame("bronze", "copies").where("state = 'abandoned' AND table_name = 'orders'")
    why = [row.sentence for row in abandoned.collect()]
    assert began_again == any("while a snapshot was taken" in sentence for sentence in why)
    # rows without a key cannot be matched: they are read again
    assert "abandoned" in [state for state, _ in copies(copying, "bag")]
    copying.catch_up()  # where a row moved, one more copy
    copying.assert_follows("orders", "bag")


def test_copies_of_a_table_share_one_transaction_id(
    copying: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying.catch_up(*ORDERS, FILL.format(4000))
    changes = Lake(copying.config.storage.root).table("bronze", "changes")
    recorded = set(changes.offsets())
    for number in range(3):
        run_resync(copying.config, ["public.orders"])
        copying.run(f"UPDATE orders SET n = n + 1 WHERE id % 7 = {number}")
        with monkeypatch.context() as patch:
            stop_after(patch, 2 + number)
            copying.ingest()
        copying.assert_follows("orders")
    states = copies(copying, "orders")
    assert [state for state, _ in states] == ["reading", "complete", *["reading", "reading", "complete"] * 3]
    counts = [count or 0 for state, count in states if state == "reading"]
    assert [end - begin for begin, end in zip(counts[1::2], counts[2::2], strict=True)] == [2, 3, 4]
    assert set(changes.offsets()) == recorded


def test_a_copy_whose_chunks_an_earlier_version_counted_begins_again(
    copying: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying.run(*ORDERS, FILL.format(4000))
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        copying.ingest()
    [copy_id] = {row.copy_id for row in copying.frame("bronze", "copies").collect()}
    bronze = Bronze(Lake(copying.config.storage.root), copying.config.pipeline)
    BronzeWriter(bronze, {}).commit([], TableCommit(bronze.txn.of(TxnKind.COPY_CHUNKS, copy_id), LSN(4)))
    copying.catch_up()
    states = [state for state, _ in copies(copying, "orders")]
    assert states == ["reading", "abandoned", "reading", "complete"]
    copying.assert_equal("orders")


@pytest.mark.spark
@pytest.mark.promise("interrupted copies")
@pytest.mark.slow
def test_a_row_that_moves_to_pages_that_were_read(copying: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    copying.run(
        *ORDERS,
        "ALTER TABLE orders SET (autovacuum_enabled = off)",
        FILL.format(4000),
        "DELETE FROM orders WHERE id < 400",
        "VACUUM orders",
    )
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        copying.ingest()
    # new versions are where the first rows were, and their long values are not sent
    moved = "SELECT id FROM orders WHERE n = -1 AND (ctid::text::point)[0] < 4 AND big IS NOT NULL"
    copying.run("UPDATE orders SET n = -1 WHERE id BETWEEN 1500 AND 1600")
    lost = len(copying.source.execute(moved).fetchall())
    assert lost > 10
    copying.catch_up()
    assert any(kind == "resync" for kind, _ in copying.events("orders"))
    assert copying.frame("silver", "public", "orders").where("n = -1 AND big IS NULL").count() > lost
    copying.assert_follows("orders")
    assert [state for state, _ in copies(copying, "orders")] == [
        "reading", "reading", "complete", "reading", "complete",
    ]  # fmt: skip


@pytest.mark.spark
@pytest.mark.promise("copies under load")
@pytest.mark.slow
def test_a_transaction_that_ended_and_cannot_be_seen_yet(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    """Its commit record waits for a synchronous standby: decoded it is already, visible it is not."""
    server = make_server({"synchronous_standby_names": ""})
    pipeline = make_pipeline(copy="initial", create_publication="all", database=Database.of(server))
    pipeline.ingest()  # a slot cannot be made while transactions wait
    pipeline.run(*ORDERS, FILL.format(100), *BAG, FILL_BAG)
    statements = (
        "UPDATE orders SET n = -5, id = id + 1000 WHERE id < 10",
        "DELETE FROM bag WHERE a = 3",
        "INSERT INTO orders VALUES (77777, 1)",
    )
    with unseen_commits(pipeline.database, *statements):
        with pipeline.database.connect() as free:
            free.execute("SET synchronous_commit = local")
            assert free.execute("SELECT count(*) FROM orders WHERE n = -5").fetchone() == (0,)
        pipeline.ingest()
        complete = pipeline.frame("bronze", "copies").where("state = 'complete'").collect()
        assert {row.table_name: len(row.invisible_commits) for row in complete} == {"orders": 2, "bag": 1}
    pipeline.assert_follows("orders", "bag")


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_that_is_rewritten_during_its_copy_is_copied_again(
    copying: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying.run(*ORDERS, FILL.format(2000))
    is_done = False

    def begin_and_rewrite(connection: Connection, snapshot: SourceSnapshot) -> None:
        nonlocal is_done
        begin_under(connection, snapshot)
        if not is_done:
            is_done = True
            copying.run("ALTER TABLE orders ALTER n TYPE bigint")

    monkeypatch.setattr("pipeline.postgres.snapshot.read_table.begin_under", begin_and_rewrite)
    copying.catch_up()
    assert [state for state, _ in copies(copying, "orders")] == [
        "reading",
        "abandoned",
        "reading",
        "complete",
    ]
    copying.assert_equal("orders")


def test_a_table_that_is_rewritten_each_time_is_held_and_copied_later(
    copying: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying.run(*ORDERS, FILL.format(2000), "CREATE TABLE calm (id int PRIMARY KEY)")

    def begin_and_rewrite(connection: Connection, snapshot: SourceSnapshot) -> None:
        begin_under(connection, snapshot)
        copying.run("VACUUM FULL orders")

    monkeypatch.setattr(attempts_module, "_REWRITE_SECONDS", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.postgres.snapshot.read_table.begin_under", begin_and_rewrite)
        summary = copying.ingest()
    assert summary.exit_code(strict=False) == 1
    states = [state for state, _ in copies(copying, "orders")]
    assert states == ["reading", "abandoned"] * MAX_REWRITES
    assert [state for state, _ in copies(copying, "calm")] == ["reading", "complete"]
    [(kind, sentence)] = copying.events("orders")
    assert kind == "held"
    assert "5 times in a row" in sentence
    copying.assert_follows("orders", "calm")


@pytest.mark.spark
@pytest.mark.promise("copies under load")
@pytest.mark.slow
def test_columns_that_change_while_the_table_waits(
    copying: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying.run(*ORDERS, FILL.format(1000), *BAG, FILL_BAG)
    land = ReaderPool._land_in_order

    def land_and_alter(self: ReaderPool, tables: Any) -> None:
        monkeypatch.setattr(ReaderPool, "_land_in_order", land)
        land(self, tables)
        copying.run(
            "ALTER TABLE orders ADD COLUMN state text DEFAULT 'open'",
            "UPDATE orders SET state = 'paid' WHERE id < 10",
            "ALTER TABLE bag ADD COLUMN c int DEFAULT 7",
            "DELETE FROM bag WHERE a = 1",
        )

    monkeypatch.setattr(ReaderPool, "_land_in_order", land_and_alter)
    copying.catch_up()
    copying.assert_follows("orders", "bag")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_a_copy_of_the_oldest_server_by_either_route(
    make_pipeline: MakePipeline, old_database: Database, route: str
) -> None:
    pipeline = make_pipeline(
        database=old_database,
        copy="initial",
        copying=Copying(range_size=32 << 10),
        create_publication="all",
        route=route,
    )
    pipeline.catch_up(*ORDERS, FILL.format(1000), *BAG, FILL_BAG)
    pipeline.assert_equal("orders", "bag")
    pipeline.catch_up("UPDATE orders SET id = -id WHERE id < 10", "DELETE FROM bag WHERE a = 3")
    pipeline.assert_equal("orders", "bag")


def test_a_session_that_is_lost_between_two_polls_is_no_failure(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying_module, "POLL_SECONDS", 0.5)
    pipeline = make_pipeline(copy="never", create_publication="all")
    polls: list[int] = []
    failures: set[str | None] = set()
    poll = CopyCandidates.poll

    def counted(candidates: CopyCandidates) -> Any:
        found = poll(candidates)
        polls.append(len(polls))
        return found

    monkeypatch.setattr(CopyCandidates, "poll", counted)

    def remember(summary: IngestSummary) -> None:
        failures.add(summary.copy_failure)

    with in_threads(
        lambda stop: pipeline.ingest(trigger="continuous", stop=stop, progress=remember),
    ):
        wait_until(lambda: polls)
        ended = pipeline.source.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = %s",
            (COPY_SESSIONS,),
        ).fetchall()
        assert {*ended} == {(True,)}
        count = len(polls)
        wait_until(lambda: len(polls) > count + 1)
        pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        wait_until(lambda: pipeline.path("bronze", "relations").exists() and failures)
    assert failures == {None}
