"""Large transactions that the server cannot decode, or the catalog not describe, before their end."""

from __future__ import annotations

import pytest

from pipeline.bronze import streamed_transactions
from pipeline.config.config import Protocol
from tests.support.pipelines import MakePipeline
from tests.support.servers import Database, MakeServer
from tests.support.threads import wait_until

WORK_MEMORY = {"logical_decoding_work_mem": "64kB"}
FILL = "INSERT INTO filler SELECT {}, repeat('x', 6500) FROM generate_series(1, 20)"
FILLER = ("CREATE TABLE filler (n int, v text)", "ALTER TABLE filler ALTER v SET STORAGE PLAIN")


@pytest.mark.promise("every protocol version")
@pytest.mark.parametrize("major", [pytest.param(14, marks=pytest.mark.slow), None])
def test_a_truncate_that_is_rolled_back_is_read_without_streaming(
    make_pipeline: MakePipeline,
    make_server: MakeServer,
    caplog: pytest.LogCaptureFixture,
    major: int | None,
) -> None:
    database = Database.of(make_server(WORK_MEMORY, major=major))
    pipeline = make_pipeline(database=database, create_publication="all")
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY, v text)", *FILLER, "INSERT INTO t VALUES (1, 'a')")
    pipeline.transact(
        FILL.format(1),
        *("SAVEPOINT s", "TRUNCATE t", "INSERT INTO t VALUES (100, 'x')", FILL.format(2), "ROLLBACK TO s"),
        *("INSERT INTO t VALUES (101, 'y')", FILL.format(3)),
        *("TRUNCATE t", "INSERT INTO t VALUES (102, 'z')", FILL.format(4)),
    )
    with caplog.at_level("INFO"):
        pipeline.catch_up()
    assert "could not map file" in caplog.text
    assert "The run continues with streaming off." in caplog.text
    caplog.clear()
    pipeline.catch_up("UPDATE t SET v = 'later'")
    assert "streaming off" not in caplog.text
    pipeline.assert_equal("t", "filler")


@pytest.mark.promise("equal values")
def test_binary_values_of_a_type_that_is_not_visible_yet_wait(
    make_pipeline: MakePipeline, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_transactions, "STREAM_ROWS", 50)
    database = Database.of(make_server(WORK_MEMORY))
    protocol = Protocol(binary=True, written=frozenset({"binary"}))
    pipeline = make_pipeline(database=database, protocol=protocol, create_publication="all")
    pipeline.catch_up("CREATE TABLE other (id int PRIMARY KEY)")
    with database.connect() as session:
        for statement in (
            "BEGIN",
            "CREATE TYPE mood AS ENUM ('sad')",
            "CREATE TABLE moods (id int PRIMARY KEY, mood mood)",
            "INSERT INTO moods SELECT g, 'sad' FROM generate_series(1, 3000) g",
        ):
            session.execute(statement.encode())
        pipeline.catch_up("INSERT INTO other VALUES (1)")
        streamed = "SELECT sum(stream_txns) > 0 FROM pg_stat_replication_slots"
        wait_until(lambda: pipeline.database.run(streamed) == [(True,)])
        session.execute("COMMIT")
    pipeline.catch_up()
    pipeline.assert_equal("other", "moods")
