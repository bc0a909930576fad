"""Fifty transactions that stream at the same time: interleaved, of every end, in another order than begun.

Bronze is what protocol version 1 says of the same WAL; while they are open their rows are on disk, and after
their ends nothing is left there. Memory and open files are the same with five as with fifty.
"""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from pipeline.bronze import streamed_transactions as streams_module
from pipeline.config.config import Protocol
from tests.support import oracle
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.running import continuous
from tests.support.servers import Database, MakeServer
from tests.support.threads import wait_until
from tools.bench.capture import create_schema
from tools.bench.memory import measure_streams

COUNT = 50
TURNS = 6
WORK_MEMORY = {"logical_decoding_work_mem": "64kB"}
FILL = "INSERT INTO filler SELECT {}, repeat('x', 6800) FROM generate_series(1, 10)"  # more than 64 kB
ENDS = ("COMMIT", "COMMIT", "ROLLBACK", "COMMIT PREPARED", "ROLLBACK PREPARED")


class OpenTransactions:
    """Sessions with one transaction each; the rows of a transaction have its number."""

    def __init__(self, database: Database, rng: Random) -> None:
        self.committed: list[int] = []  # in the order of their commits
        self._rng = rng
        self._turns = 0
        self._sessions = [database.connect() for _ in range(COUNT)]
        for session in self._sessions:
            session.execute("BEGIN")

    def take_turns(self, count: int) -> None:
        """Let every session write more than the server keeps so many times, in an order of each round."""
        for turn in range(self._turns, self._turns + count):
            for number in self._rng.sample(range(COUNT), COUNT):
                session, first = self._sessions[number], 1000 * number
                how = self._rng.choice(("", "RELEASE s", "ROLLBACK TO s"))
                self._run(session, "SAVEPOINT s" if how else "SELECT 1")
                self._run(session, f"INSERT INTO t VALUES ({first + 10 * turn}, 'new')")
                self._run(session, FILL.format(number))
                self._run(session, f"UPDATE t SET id = id + 5 WHERE id = {first + 10 * turn}")
                self._run(session, f"UPDATE t SET v = v || ' {turn}' WHERE id = {first + 5}")
                self._run(session, how or "SELECT 1")
        self._turns += count

    def end(self, numbers: list[int]) -> None:
        """End transactions, or prepare them."""
        for number in numbers:
            end = ENDS[number % len(ENDS)]
            is_prepared = end.endswith("PREPARED")
            self._run(self._sessions[number], f"PREPARE TRANSACTION 'g{number}'" if is_prepared else end)
            if end == "COMMIT":
                self.committed.append(number)

    def decide(self, numbers: list[int]) -> None:
        """End those of the transactions that are prepared."""
        for number in numbers:
            end = ENDS[number % len(ENDS)]
            if end.endswith("PREPARED"):
                self._run(self._sessions[0], f"{end} 'g{number}'")
                if end.startswith("COMMIT"):
                    self.committed.append(number)

    def close(self) -> None:
        """End the sessions, and so whatever is open."""
        for session in self._sessions:
            session.close()

    def _run(self, session: psycopg.Connection[Any], statement: str) -> None:
        session.execute(statement.encode())


def lanes_of(make_pipeline: MakePipeline, database: Database, major: int) -> dict[str, Pipeline]:
    """Return a judge, and pipelines that stream: one all the time, the others in passes."""
    written = frozenset({"streaming", "two_phase"})
    prepares = major >= 15
    best = Protocol(streaming="parallel" if major >= 16 else "on", two_phase=prepares, written=written)
    protocols = {
        "judge": Protocol(version=1),
        "always": best,
        "passes": Protocol(streaming="on", written=written),
        "sql": replace(best, streaming="on"),
    }
    return {
        name: make_pipeline(
            name=name,
            database=database,
            route="sql" if name == "sql" else "walsender",
            protocol=protocol,
            create_publication="all",
        )
        for name, protocol in protocols.items()
    }


def spooled(pipeline: Pipeline) -> list[Path]:
    """Return the files of transactions that are not in bronze."""
    return list(pipeline.path("_pgdelta", "staging").glob("*/*"))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("major", [14, 15, 16, 18])
def test_fifty_open_streams_are_in_bronze_what_they_are_in_protocol_1(
    make_pipeline: MakePipeline, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, major: int
) -> None:
    monkeypatch.setattr(streams_module, "STREAM_BYTES", 256 << 10)
    server = make_server({"max_prepared_transactions": "50", **WORK_MEMORY}, major=major)
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
    database = Database(server, "shop", server.conninfo_of("shop"))
    lanes = lanes_of(make_pipeline, database, major)
    always, source = lanes["always"], lanes["judge"].source
    lanes["judge"].run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE filler (number int, v text)",
        "ALTER TABLE filler ALTER v SET STORAGE PLAIN",
    )
    for lane in lanes.values():
        lane.ingest()

    def make_passes() -> None:
        for name in ("passes", "sql"):
            lanes[name].run(
                "INSERT INTO t SELECT max(id) + 1, 'between' FROM t WHERE id >= 100000 OR id = -1"
            )
            lanes[name].ingest()
            assert spooled(lanes[name]) == []

    rng = Random(major)
    lanes["judge"].run("INSERT INTO t VALUES (100000, 'at once')")
    transactions = OpenTransactions(database, rng)
    order = rng.sample(range(COUNT), COUNT)
    try:
        with continuous(always) as running:
            transactions.take_turns(TURNS // 2)
            make_passes()
            transactions.take_turns(TURNS // 2)
            make_passes()
            wait_until(lambda: len(spooled(always)) == COUNT)
            transactions.end(order[: COUNT // 2])
            make_passes()
            transactions.end(order[COUNT // 2 :])
            make_passes()
            transactions.decide(rng.sample(order, COUNT))
            # what a rollback says may not be on disk yet, and an idle server says nothing
            lanes["judge"].run("CHECKPOINT")
            end = database.flush_lsn()
            lanes["judge"].run("INSERT INTO t VALUES (-1, 'last')")
            wait_until(lambda: running.error or always.confirmed_lsn() >= end)
            wait_until(lambda: running.error or not spooled(always))
        assert running.error is None
    finally:
        transactions.close()
    for lane in lanes.values():
        lane.ingest()
        oracle.bronze_has_no_duplicates(lane.spark, lane.root)
    statistics = "SELECT stream_txns, stream_count FROM pg_stat_replication_slots WHERE slot_name = %s"
    streamed = source.execute(statistics, (always.config.source.slot,)).fetchone()
    assert streamed is not None
    assert streamed[0] >= COUNT
    assert streamed[1] >= COUNT * TURNS // 2
    expected = lanes["judge"].changes()
    fillers = [int(row["new"][0]) for row in expected if row["table_name"] == "filler"]
    assert list(dict.fromkeys(fillers)) == [n for n in transactions.committed if n in set(fillers)]
    assert transactions.committed != sorted(transactions.committed)
    for name, lane in lanes.items():
        assert lane.changes() == expected, name
    if major >= 15:
        for name in ("always", "sql"):
            assert lanes[name].frame("bronze", "prepared").count() == 0
    assert always.apply().exit_code(strict=True) == 0
    always.assert_equal("t", "filler")
    print(
        f"PostgreSQL {major}: {len(expected)} rows, {len(transactions.committed)} of {COUNT} committed; "
        f"{streamed[0]} streamed in {streamed[1]} pieces"
    )


@pytest.mark.spark
@pytest.mark.promise("bounded memory")
@pytest.mark.slow
def test_memory_and_open_files_do_not_grow_with_the_number_of_open_streams(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server({**WORK_MEMORY, "max_wal_size": "8GB"})
    create_schema(server)
    few, many = (measure_streams(server, tmp_path, count, 50_000) for count in (5, COUNT))
    print(few, many, sep="\n")
    assert many.data_mib - few.data_mib > 800
    assert many.python_mib - few.python_mib < 64
    assert many.files - few.files <= 4
