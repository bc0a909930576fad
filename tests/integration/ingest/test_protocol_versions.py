"""Whatever is requested of the server, bronze holds the same: streamed, prepared, or whole at the commit.

Protocol version 1 is the judge: its transactions come whole, in the order of their commits.
"""

from collections.abc import Callable
from random import Random

import pytest

from pipeline.config.config import Protocol
from pipeline.crash_steps import CrashStep
from pipeline.errors import GapError
from tests.support import oracle
from tests.support.fault_points import crash_at
from tests.support.pipelines import Crash, MakePipeline, crash
from tests.support.postgres.sessions import TABLES, Sessions, create_tables
from tests.support.servers import Database

RICH = Protocol(two_phase=True, written=frozenset({"two_phase"}))
STREAMED_SQL = Protocol(two_phase=True, streaming="on", written=frozenset({"two_phase", "streaming"}))


@pytest.mark.promise("every protocol version")
@pytest.mark.parametrize("seed", [31])
def test_every_protocol_lands_what_protocol_1_lands(
    make_pipeline: MakePipeline, database: Database, seed: int
) -> None:
    lanes = {
        "plain": make_pipeline(name="plain", protocol=Protocol(version=1), create_publication="all"),
        "rich": make_pipeline(name="rich", protocol=RICH),
        "sql": make_pipeline(name="sql", route="sql", protocol=STREAMED_SQL),
    }
    create_tables(database)
    for lane in lanes.values():
        lane.ingest()
    sessions = Sessions(database, Random(seed), has_two_phase=True)
    for number in range(360):
        sessions.step()
        if number % 120 == 119:
            # Streams are open and transactions prepared when a run ends: the next one goes on with them.
            lanes["rich"].ingest()
            lanes["sql"].ingest()
    sessions.finish()
    for lane in lanes.values():
        lane.ingest()
        oracle.bronze_has_no_duplicates(lane.spark, lane.root)
    streamed = database.run(
        "SELECT slot_name, stream_txns FROM pg_stat_replication_slots WHERE slot_name LIKE '%rich' "
        "OR slot_name LIKE '%sql'"
    )
    assert len(streamed) == 2
    assert all(count > 0 for _, count in streamed)
    expected = lanes["plain"].changes()
    assert len(expected) > 250
    assert lanes["rich"].frame("bronze", "changes").where("gid IS NOT NULL").count() > 0
    for name in ("rich", "sql"):
        assert lanes[name].changes() == expected, name
        assert lanes[name].frame("bronze", "prepared").count() == 0
    assert lanes["rich"].apply().exit_code(strict=True) == 0
    lanes["rich"].assert_equal(*TABLES, "filler")


@pytest.mark.spark
@pytest.mark.slow
def test_a_prepared_transaction_waits_for_its_end_in_the_lake(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(protocol=RICH, create_publication="all")
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.run("INSERT INTO t SELECT g, 'first' FROM generate_series(1, 5) g")

    pipeline.prepare(
        "it''s", "UPDATE t SET v = 'prepared' WHERE id < 3", "INSERT INTO t VALUES (10, 'prepared')"
    )
    pipeline.prepare("no", "DELETE FROM t WHERE id = 4")
    pipeline.prepare("empty", "SELECT * FROM t WHERE id = 5 FOR UPDATE")
    pipeline.catch_up("INSERT INTO t VALUES (20, 'after')")
    kept = pipeline.frame("bronze", "prepared").where("op <> 'P'").groupBy("gid").count().collect()
    assert sorted(map(tuple, kept)) == [("it's", 3), ("no", 1)]
    values = {row.id: row.v for row in pipeline.frame("silver", "public", "t").collect()}
    assert values == {**dict.fromkeys(range(1, 6), "first"), 20: "after"}

    pipeline.run("UPDATE t SET v = 'later' WHERE id = 3", "COMMIT PREPARED 'it''s'", "ROLLBACK PREPARED 'no'")
    pipeline.run("COMMIT PREPARED 'empty'")
    pipeline.prepare("it''s", "INSERT INTO t VALUES (11, 'the same name')")
    pipeline.catch_up("COMMIT PREPARED 'it''s'")
    pipeline.assert_equal("t")
    assert pipeline.frame("bronze", "prepared").count() == 0
    rows = pipeline.frame("bronze", "changes").where("gid IS NOT NULL").orderBy("commit_lsn", "ordinal")
    assert [(row.gid, row.op, row.ordinal) for row in rows.collect()] == [
        ("it's", "U", 0), ("it's", "U", 1), ("it's", "I", 2), ("it's", "I", 0),
    ]  # fmt: skip


@pytest.mark.promise("every protocol version")
def test_a_crash_before_the_offset_of_a_prepared_transaction_lands_it_once(
    make_pipeline: MakePipeline,
) -> None:
    pipeline = make_pipeline(protocol=RICH, create_publication="all")
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY)")
    steps: list[Callable[[], None]] = [
        lambda: pipeline.prepare("g", "INSERT INTO t VALUES (1)"),
        lambda: pipeline.run("COMMIT PREPARED 'g'"),
    ]
    for step in steps:
        step()
        with crash_at(CrashStep.COMMIT_BRONZE), pytest.raises(Crash):
            pipeline.ingest()
        pipeline.ingest()
    pipeline.assert_follows("t")
    assert pipeline.frame("bronze", "changes").count() == 1
    assert pipeline.frame("bronze", "prepared").count() == 0


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_a_crash_after_the_offset_of_an_end_leaves_no_prepared_transaction(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    pipeline = make_pipeline(protocol=RICH, route=route, create_publication="all")
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY)")
    for gid in ("yes", "no", "open"):
        pipeline.prepare(gid, f"INSERT INTO t VALUES ({len(gid)})")
    pipeline.ingest()
    pipeline.run("COMMIT PREPARED 'yes'", "ROLLBACK PREPARED 'no'")
    with monkeypatch.context() as patch:
        # between two named steps: bronze has the end, and the slot is not acknowledged
        patch.setattr("pipeline.bronze.prepared.PreparedTransactions.forget", crash)
        with pytest.raises(Crash):
            pipeline.ingest()
    pipeline.ingest()
    left = {row.gid for row in pipeline.frame("bronze", "prepared").collect()}
    pipeline.run("COMMIT PREPARED 'open'")
    assert left == {"open"}
    pipeline.assert_follows("t")
    assert pipeline.frame("bronze", "changes").count() == 2
    assert pipeline.frame("bronze", "prepared").count() == 0


@pytest.mark.spark
def test_prepared_transactions_that_were_removed_are_refused(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(protocol=RICH, create_publication="all")
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline.prepare("g", "INSERT INTO t VALUES (1)")
    pipeline.ingest()
    pipeline.session.sql(f"DELETE FROM delta.`{pipeline.root}/bronze/prepared`")
    pipeline.run("COMMIT PREPARED 'g'")
    with pytest.raises(GapError, match="0 of 1 prepared transactions"):
        pipeline.ingest()
