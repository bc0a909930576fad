"""After a power failure at any moment: the slot is nowhere ahead of what is on disk.

Real ingest processes are recorded, system call by system call, and what they forced to disk is replayed:
`disk` has the rules by which something is durable, `replay` what bronze has to have.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.power.recording import Recording, compile_recorder
from tests.support.servers import Database, MakeServer
from tests.support.threads import wait_until

TABLES = (
    "CREATE TABLE items (id int PRIMARY KEY, name text)",
    "INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 5000) i",
    "CREATE TABLE marks (at pg_lsn PRIMARY KEY)",
)
CHANGES = (
    "INSERT INTO items SELECT coalesce(max(id), 0) + 1, 'new' FROM items",
    "UPDATE items SET name = name || '.' WHERE id % 500 = 0",
    "DELETE FROM items WHERE id % 701 = 0",
)
JOINING = (
    "CREATE TABLE joined (id int PRIMARY KEY, name text)",
    "INSERT INTO joined SELECT i, 'joined ' || i FROM generate_series(1, 3000) i",
)
LARGE = (
    "INSERT INTO joined SELECT i, repeat(md5(i::text), 4) FROM generate_series(10000, 40000) i",
    "UPDATE items SET name = 'large'",
)
ROUNDS = 6
PATIENCE = 300.0  # seconds


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled recorder."""
    return compile_recorder(tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def database(make_server: MakeServer) -> Database:
    """Give a server of its own, which streams large transactions."""
    server = make_server({"logical_decoding_work_mem": "64kB"})
    return Database.of(server)


@pytest.fixture
def recording(library: Path, database: Database, tmp_path: Path) -> Recording:
    """Give a lake in which every write is recorded."""
    (tmp_path / "disk").mkdir()
    folder = (tmp_path / "disk").resolve()
    return Recording(
        "power", database.conninfo, folder, tmp_path / "events", library, tmp_path / "pipeline.yaml"
    )


def is_reported(database: Database, lsn: str) -> bool:
    """Return whether the slot is beyond an LSN."""
    query = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = 'power' AND confirmed_flush_lsn > '{lsn}'"
    return bool(database.run(query))


def await_while_running(process: subprocess.Popen[str], is_true: Callable[[], object]) -> None:
    """Wait until a condition holds; fail where the process ends before it does."""
    wait_until(lambda: process.poll() is not None or is_true(), PATIENCE)
    assert process.poll() is None, process.communicate()[1]


def change(process: subprocess.Popen[str], database: Database, *statements: str) -> None:
    """Run statements, each in its own transaction, and wait until the slot is beyond them."""
    database.run(*statements)
    lsn = database.run("SELECT pg_current_wal_insert_lsn()::text")[0][0]
    database.run(f"INSERT INTO marks VALUES ('{lsn}')")
    await_while_running(process, lambda: is_reported(database, lsn))


def transact(database: Database, *statements: str, end: str = "COMMIT") -> None:
    database.run("BEGIN", *statements, end)


def copies_in(recording: Recording) -> int:
    """Return how many commits to bronze hold copied rows."""
    log = recording.lake / "bronze" / "changes" / "_delta_log"
    return sum("#copy/" in path.read_text() for path in log.glob("*.json"))


def work(recording: Recording, database: Database, *, syncs: bool) -> None:
    """Have an ingest meet everything: copies, small and large transactions, prepared ones, a new table."""
    recording.configure(copy="initial", two_phase=True)
    database.run(*TABLES)
    with recording.running(syncs=syncs) as process:
        await_while_running(process, lambda: copies_in(recording))
        for number in range(ROUNDS):
            change(process, database, CHANGES[number % len(CHANGES)])
        # it writes to no row that the others wait for
        transact(database, "INSERT INTO marks VALUES ('0/1')", end="PREPARE TRANSACTION 'one'")
        before = copies_in(recording)
        change(process, database, *JOINING)
        transact(database, *LARGE)
        change(process, database, "COMMIT PREPARED 'one'")
        await_while_running(process, lambda: copies_in(recording) > before)
        change(process, database, *CHANGES)


@pytest.mark.promise("power failures")
def test_at_no_cut_is_the_slot_ahead_of_what_is_on_disk(recording: Recording, database: Database) -> None:
    work(recording, database, syncs=True)
    verdict = recording.replay()
    print(f"sync on: {verdict}")
    assert (verdict.ahead[:3], verdict.torn) == ([], set())
    assert verdict.flushes > ROUNDS
    assert recording.versions > ROUNDS


@pytest.mark.spark
@pytest.mark.promise("power failures")
@pytest.mark.slow
def test_without_sync_the_replay_finds_cuts_ahead(recording: Recording, database: Database) -> None:
    work(recording, database, syncs=False)
    verdict = recording.replay()
    print(f"sync off: {verdict}")
    assert len(verdict.ahead) > verdict.cuts / 2
    assert len(verdict.torn) > ROUNDS


@pytest.mark.spark
@pytest.mark.promise("power failures")
@pytest.mark.slow
def test_the_sql_route(recording: Recording, database: Database) -> None:
    recording.configure(route="sql")
    database.run(*TABLES)
    recording.run()
    database.run(*CHANGES)
    recording.run()
    verdict = recording.replay()
    print(f"SQL route: {verdict}")
    assert (verdict.ahead[:3], verdict.torn) == ([], set())
    assert verdict.flushes


@pytest.mark.spark
@pytest.mark.promise("power failures")
@pytest.mark.slow
def test_a_commit_whose_writer_died_before_it_was_forced(recording: Recording, database: Database) -> None:
    """Kill ingest between the link of a log entry and the fsync of its folder; the next one relies on it."""
    recording.configure()
    database.run(*TABLES)
    recording.run(kill_at="bronze/changes/_delta_log/00000000000000000000.json")
    database.run(*CHANGES)
    recording.run(kill_at="bronze/relations/_delta_log/00000000000000000001.json")
    recording.run(kill_at=f"bronze/changes/_delta_log/{recording.versions:020}.json")
    recording.run()
    verdict = recording.replay()
    print(f"killed three times: {verdict}")
    assert (verdict.ahead[:3], verdict.torn) == ([], set())
    # The folders that ingest forces when it starts are what this rests on.
    without = recording.replay(forces_at_start=False)
    print(f"without what a start forces: {without}")
    assert without.ahead
