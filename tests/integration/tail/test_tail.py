"""`pgdelta tail` on live servers: what it shows, when it ends, and that no slot moves by it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import main
from pipeline.config.config import Protocol
from pipeline.postgres.connection import connect
from pipeline.postgres.replication.slot import Slot, read_slot
from pipeline.protocol.lsn import LSN
from tests.support.paths import ROOT
from tests.support.postgres.streams import both_routes, end_lsns, make_items, prepare, read_all, start
from tests.support.processes import ended
from tests.support.servers import Database
from tests.support.threads import wait_until

pytestmark = pytest.mark.postgres

BIG = "INSERT INTO item (id, name) SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g"
Tail = Callable[..., list[str]]


def slot_of(database: Database) -> Slot:
    with connect(database.conninfo) as connection:
        slot = read_slot(connection, database.name)
    assert slot is not None
    return slot


def make(database: Database, *statements: str, two_phase: bool = False) -> None:
    make_items(database)
    database.run(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    prepare(database.config(protocol=Protocol(two_phase=two_phase)))
    database.run(*statements)


def where(database: Database) -> list[str]:
    return ["--conninfo", database.conninfo, "--slot", database.name]


@pytest.fixture
def tail(database: Database, capsys: pytest.CaptureFixture[str]) -> Tail:
    """Give a function that shows what waits in the slot, or with the arguments given."""

    def run(*arguments: str, code: int = 0, on: Database = database) -> list[str]:
        ended = main.main(["tail", *where(on), "--no-follow", *arguments])
        said = capsys.readouterr()
        assert ended == code, said.err
        return (said.out if code == 0 else said.err).splitlines()

    return run


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Give the command as a process of its own; it is killed where the test did not end it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli.main", "tail", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ended(process):
        yield process


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """Read lines until one has the text."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    assert process.stderr is not None
    raise AssertionError(f"{text} never came: {process.stderr.read()}")


def wait_until_ready(process: subprocess.Popen[str], text: str = "acknowledges nothing") -> None:
    """Wait until the command has said what it reads."""
    assert process.stderr is not None
    said = process.stderr.readline()
    assert text in said


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> float:
    """Send a signal; return after how many seconds the process ended, with 0 and no message."""
    began = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return time.monotonic() - began


def bodies(lines: list[str]) -> list[str]:
    return [line[49:] for line in lines]


@both_routes
def test_it_shows_what_waits_in_the_slot_and_leaves_it_there(
    database: Database, tail: Tail, route: str
) -> None:
    make(database)
    before = slot_of(database)
    database.run(
        "INSERT INTO item (id, name) VALUES (1, 'it''s')",
        "SELECT pg_logical_emit_message(false, 'beat', 'x')",
        "UPDATE item SET id = 2",
    )
    for _ in range(2):
        lines = tail("--route", route)
        assert bodies(lines)[1:4] == [
            "  Relation public.item (id integer key, name text, price double precision,"
            " made timestamp with time zone) identity default",
            "  Insert public.item: id=1 name='it''s' price=NULL made=NULL",
            bodies(lines)[3],
        ]
        assert bodies(lines)[4:7] == [
            "Message 'beat' not transactional: 'x'",
            "Begin",
            "  Update public.item key: id=1 new: id=2 name='it''s' price=NULL made=NULL",
        ]
        assert len(lines) == 8
    after = slot_of(database)
    assert after.confirmed_flush_lsn == before.confirmed_flush_lsn
    assert not after.two_phase
    assert len(end_lsns(read_all(database, database.config(), "walsender"))) == 2


@pytest.mark.quick
def test_json_is_one_object_a_line(database: Database, tail: Tail) -> None:
    make(database, "INSERT INTO item (id, name) VALUES (1, repeat('x', 5000))")
    _, relation, insert, commit = [json.loads(line) for line in tail("--json")]
    assert [column["type"] for column in relation["columns"]][2] == "double precision"
    assert insert["new"] == {"id": "1", "name": "x" * 5000, "price": None, "made": None}
    assert LSN.parse(commit["end_lsn"]) > LSN.parse(insert["transaction"]["lsn"])


def test_status_updates_and_keepalives_do_not_move_the_slot(database: Database) -> None:
    make(database)
    # The client's updates come every third of it, the server's keepalives after half.
    database.run(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '600ms'")
    before = slot_of(database).confirmed_flush_lsn
    with running(*where(database)) as process:
        wait_until_ready(process)
        for number in range(6):
            database.run(f"INSERT INTO item (id) VALUES ({number})", "SELECT pg_switch_wal()")
            time.sleep(0.4)
        line_with(process, "id=5")
        query = (
            "SELECT flush_lsn::text, reply_time > now() - interval '1 s' FROM pg_stat_replication"
            f" WHERE pid = {slot_of(database).active_pid} AND application_name = 'pgdelta tail'"
        )
        assert database.run(query) == [(str(before), True)]
        end(process)
    assert slot_of(database).confirmed_flush_lsn == before


@both_routes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_follows_until_a_signal_ends_it_at_once_with_0(
    database: Database, route: str, number: signal.Signals
) -> None:
    make(database)
    before = slot_of(database).confirmed_flush_lsn
    with running(*where(database), "--route", route) as process:
        wait_until_ready(process)
        for row in range(3):
            database.run(f"INSERT INTO item (id) VALUES ({row})")
            assert f"id={row} " in line_with(process, "Insert")
        assert slot_of(database).active_pid is None or route == "walsender"
        assert end(process, number) < 3
    assert slot_of(database).confirmed_flush_lsn == before


def test_a_signal_ends_tail_even_if_its_output_is_not_read(database: Database) -> None:
    make(database, BIG.replace("1000", "10000"))
    with running(*where(database), "--json") as process:
        wait_until_ready(process)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0


@pytest.mark.parametrize("statement", [BIG, "INSERT INTO item (id) VALUES (1)"])
def test_a_reader_that_closes_the_pipe_ends_it_quietly_with_0(database: Database, statement: str) -> None:
    make(database, statement)
    with running(*where(database)) as process:
        wait_until_ready(process)
        line_with(process, "Insert")
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(10) == 0


def test_large_transactions_are_shown_as_they_stream(database: Database, tail: Tail) -> None:
    make(database)
    insert = BIG.replace("1, 1000", "2001, 3000")
    database.run(f"BEGIN; {BIG}; SAVEPOINT a; {insert}; ROLLBACK TO a; COMMIT")
    lines = bodies(tail())
    assert lines[0] == "Stream Start first segment"
    assert "Stream Start next segment" in lines
    assert [line.split()[:2] for line in lines[-2:]] == [["Stream", "Abort"], ["Stream", "Commit"]]
    for arguments in (["--streaming", "off"], ["--protocol-version", "1"], ["--transactions"]):
        lines = bodies(tail(*arguments))
        assert (lines[0], len(lines)) == ("Begin", 1003)
    assert bodies(tail("--route", "sql", "--streaming", "on"))[0] == "Stream Start first segment"
    assert (
        slot_of(database).confirmed_flush_lsn
        < end_lsns(read_all(database, database.config(), "walsender"))[0]
    )


PREPARED = (
    "BEGIN; INSERT INTO item (id) VALUES (1); PREPARE TRANSACTION 'one'",
    "BEGIN; INSERT INTO item (id) VALUES (2); PREPARE TRANSACTION 'two'",
    "COMMIT PREPARED 'one'",
    "ROLLBACK PREPARED 'two'",
)


def run_prepared(database: Database) -> None:
    with database.connect() as connection:
        for statements in PREPARED:
            for statement in statements.split(";"):
                connection.execute(statement.encode())


@both_routes
@pytest.mark.parametrize("version", ["4", "1"])
def test_a_two_phase_slot_shows_prepared_transactions(
    database: Database, tail: Tail, route: str, version: str
) -> None:
    make(database, two_phase=True)
    run_prepared(database)
    lines = bodies(tail("--route", route, "--protocol-version", version))
    assert [" ".join(line.split()[:3]) for line in lines if not line.startswith(" ")] == [
        "Begin Prepare 'one'",
        "Prepare 'one' end",
        "Begin Prepare 'two'",
        "Prepare 'two' end",
        "Commit Prepared 'one'",
        "Rollback Prepared 'two'",
    ]
    only_committed = bodies(tail("--route", route, "--transactions"))
    assert [line for line in only_committed if "Insert" in line] == [
        "  Insert public.item: id=1 name=NULL price=NULL made=NULL"
    ]


@both_routes
def test_tail_does_not_make_a_slot_two_phase(
    database: Database, capsys: pytest.CaptureFixture[str], tmp_path: Path, route: str
) -> None:
    make(database)
    run_prepared(database)
    config = tmp_path / "pipeline.yaml"
    config.write_text(
        f"pipeline: {database.name}\n"
        f"source: {{conninfo: '{database.conninfo}', route: {route}, protocol: {{two_phase: true}}}}\n"
    )
    assert main.main(["tail", "--config", str(config), "--no-follow"]) == 0
    said = capsys.readouterr()
    assert [line.split()[0] for line in bodies(said.out.splitlines())] == [
        "Begin",
        "Relation",
        "Insert",
        "Commit",
    ]
    assert "two_phase" not in said.err
    assert not slot_of(database).two_phase


@pytest.mark.quick
@both_routes
def test_a_busy_slot_is_a_sentence_that_names_the_way_out(database: Database, tail: Tail, route: str) -> None:
    make(database)
    with closing(start(database.config())):
        pid = slot_of(database).active_pid
        database.run("INSERT INTO item (id) VALUES (1)")
        sentence = tail("--route", route, code=1)[-1]
    assert sentence == (
        f"pgdelta: Another session (process {pid}) reads the slot {database.name}, and only one can. Add"
        " --temporary to show what is committed from now on through a slot of its own."
    )


def slots(database: Database) -> list[tuple[Any, ...]]:
    query = "SELECT slot_name, temporary, confirmed_flush_lsn::text FROM pg_replication_slots"
    return database.run(f"{query} WHERE database = '{database.name}' ORDER BY temporary")


@pytest.mark.parametrize("kind", ["Begin", "Begin Prepare"])
def test_a_temporary_slot_shows_changes_during_a_pipeline_and_is_dropped(
    database: Database, kind: str
) -> None:
    make(database, "INSERT INTO item (id) VALUES (1)")
    arguments = ["--conninfo", database.conninfo, "--publication", database.name, "--temporary"]
    with closing(start(database.config())):
        before = slots(database)
        with running(*arguments, *(["--two-phase"] if kind == "Begin Prepare" else [])) as process:
            wait_until_ready(process, "a temporary slot from")
            assert [temporary for _, temporary, _ in slots(database)] == [False, True]
            with database.connect() as connection:
                connection.execute("BEGIN")
                connection.execute("INSERT INTO item (id) VALUES (2)")
                connection.execute("PREPARE TRANSACTION 'two'")
                connection.execute("COMMIT PREPARED 'two'")
            assert process.stdout is not None
            assert process.stdout.readline()[49:].startswith(kind)
            assert "id=2 " in line_with(process, "Insert")
            assert end(process) < 3
        wait_until(lambda: slots(database) == before, 120)


def test_waiting_for_a_temporary_slot_can_be_broken_off(database: Database) -> None:
    make(database)
    with database.connect() as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO item (id) VALUES (1)")
        arguments = ["--conninfo", database.conninfo, "--publication", database.name, "--temporary"]
        with running(*arguments) as process:
            wait_until_ready(process, "has waited 3.")
            assert end(process) < 3
        wait_until(lambda: len(slots(database)) == 1, 120)


@both_routes
def test_only_transactions_that_were_shown_whole_are_acknowledged(
    database: Database, tail: Tail, route: str
) -> None:
    make(database, "INSERT INTO item (id) VALUES (1)", "INSERT INTO item (id) VALUES (2)")
    first, second = end_lsns(read_all(database, database.config(), "walsender"))
    before = slot_of(database).confirmed_flush_lsn
    for limit, lsn in (("3", before), ("4", first), ("3", first), ("4", second)):
        lines = tail("--route", route, "--acknowledge", "--limit", limit)
        assert len(lines) == int(limit)
        assert slot_of(database).confirmed_flush_lsn == lsn
    assert tail("--route", route) == []


@both_routes
def test_everything_is_acknowledged_without_a_limit(database: Database, tail: Tail, route: str) -> None:
    make(
        database,
        "INSERT INTO item (id) VALUES (1)",
        BIG.replace("(1,", "(2,"),
        "SELECT pg_logical_emit_message(false, 'beat', 'x')",
    )
    assert len(tail("--route", route, "--acknowledge")) >= 1000
    assert [line[49:] for line in tail("--route", route)] in ([], ["Message 'beat' not transactional: 'x'"])


def test_acknowledging_what_bronze_needs_is_refused(
    database: Database, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make(database, "INSERT INTO item (id) VALUES (1)")
    config = tmp_path / "pipeline.yaml"
    text = f"pipeline: {database.name}\nsource: {{conninfo: '{database.conninfo}'}}\nstorage: {{root: %s}}\n"
    arguments = ["tail", "--config", str(config), "--no-follow"]
    before = slot_of(database).confirmed_flush_lsn
    (tmp_path / "the lake" / "bronze" / "changes" / "_delta_log").mkdir(parents=True)
    uri = f"{tmp_path.as_uri()}/the%20lake"
    for root, reason in (
        (f"{tmp_path}/the lake", "fills bronze at"),
        (uri, "fills bronze at"),
        ("s3a://bucket/lake", "cannot be checked from here"),
    ):
        config.write_text(text % root)
        assert main.main([*arguments, "--acknowledge"]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("pgdelta: --acknowledge is refused: ")
        assert reason in said.err
        assert main.main(arguments) == 0
        capsys.readouterr()
    assert slot_of(database).confirmed_flush_lsn == before
    config.write_text(text % (tmp_path / "another lake"))
    assert main.main([*arguments, "--acknowledge"]) == 0
    assert slot_of(database).confirmed_flush_lsn > before


@both_routes
def test_tail_ends_at_its_limit_or_at_its_until_lsn(database: Database, tail: Tail, route: str) -> None:
    make(
        database, "CREATE TABLE note (a int)", *(f"INSERT INTO item (id) VALUES ({row})" for row in range(3))
    )
    whole = tail("--route", route)
    assert len(whole) == 10
    for limit in (1, 4, 10):
        assert tail("--route", route, "--limit", str(limit)) == whole[:limit]
    first, *_ = end_lsns(read_all(database, database.config(), "walsender"))
    for arguments in (["--no-follow"], ["--follow"]):
        assert tail("--route", route, "--until-lsn", str(first), *arguments) == whole[:4]
    assert tail("--route", route, "--until-lsn", "0/1") == []


def test_a_table_can_be_chosen_and_values_left_out(database: Database, tail: Tail) -> None:
    make(
        database,
        "CREATE TABLE note (a text)",
        f"ALTER PUBLICATION {database.name} ADD TABLE note",
        "INSERT INTO item (id) VALUES (1)",
        "INSERT INTO note VALUES ('geheim')",
    )
    lines = bodies(tail("--table", "public.no*", "--no-values"))
    assert [line.split(" end ")[0] for line in lines] == [
        "Begin",
        "  Relation public.note (a text) identity default",
        "  Insert public.note: 1 column",
        "Commit",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--slot", "shop", "--temporary"], "--temporary creates a slot of its own. Remove --slot."),
        (["--temporary", "--publication", "p", "--route", "sql"], "--temporary needs a replication"),
        (
            ["--temporary", "--publication", "p", "--no-follow"],
            "--temporary shows what is committed from now",
        ),
        (["--temporary", "--publication", "p", "--acknowledge"], "A temporary slot ends with the command"),
        (["--temporary"], "No publication is named"),
        ([], "No slot is named"),
        (["--slot", "shop", "--two-phase"], "--two-phase would change the slot permanently"),
        (
            ["--slot", "shop", "--transactions", "--streaming", "on"],
            "--transactions shows committed transactions only",
        ),
        (
            ["--slot", "shop", "--acknowledge", "--table", "a.b"],
            "--acknowledge discards everything up to the last transaction",
        ),
        (
            ["--slot", "shop", "--acknowledge", "--transactions"],
            "--acknowledge discards everything up to the last transaction",
        ),
        (["--slot", "shop", "--table", "item"], "--table item is not schema.table"),
    ],
)
def test_an_invalid_command_line_is_refused_before_a_connection(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["tail", "--conninfo", "host=127.0.0.1 port=1", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"pgdelta: {sentence}")


def test_what_the_server_lacks_is_a_sentence(database: Database, tail: Tail) -> None:
    make_items(database)
    assert "does not exist" in tail(code=1)[-1]
    make_slot = f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')"
    database.run(make_slot)
    assert f"The publication {database.name} does not exist" in tail(code=1)[-1]
    assert "The publication nope does not exist" in tail("--publication", "nope", code=1)[-1]


def test_commits_are_never_made_to_wait_for_it(database: Database, tail: Tail) -> None:
    make(database, "INSERT INTO item (id) VALUES (1)")
    show = "SELECT current_setting('synchronous_standby_names')"

    def set_standbys(names: str) -> None:
        database.run(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", "SELECT pg_reload_conf()")
        wait_until(lambda: database.run(show) == [(names,)], 120)

    try:
        set_standbys("FIRST 1 (*)")
        assert "commits would wait for this command" in tail(code=1)[-1]
        assert len(tail("--route", "sql")) == 4
        set_standbys("other")
        assert len(tail()) == 4
    finally:
        set_standbys("")


@both_routes
def test_tail_reads_the_oldest_server_too(old_database: Database, tail: Tail, route: str) -> None:
    make_items(old_database)
    prepare(old_database.config())
    old_database.run("INSERT INTO item (id) VALUES (1)", "DELETE FROM item")
    before = slot_of(old_database).confirmed_flush_lsn
    whole = tail("--route", route, on=old_database)
    assert [line.split()[0] for line in bodies(whole)] == [
        *("Begin", "Relation", "Insert", "Commit"),
        *("Begin", "Delete", "Commit"),
    ]
    assert "needs PostgreSQL 14" in tail("--streaming", "on", code=1, on=old_database)[-1]
    assert slot_of(old_database).confirmed_flush_lsn == before
    assert tail("--route", route, "--acknowledge", on=old_database) == whole
    assert tail("--route", route, on=old_database) == []


def test_the_oldest_server_has_temporary_slots(old_database: Database) -> None:
    make_items(old_database)
    prepare(old_database.config())
    arguments = ["--conninfo", old_database.conninfo, "--publication", old_database.name, "--temporary"]
    with running(*arguments) as process:
        wait_until_ready(process, "a temporary slot from")
        old_database.run("INSERT INTO item (id) VALUES (2)")
        assert "id=2 " in line_with(process, "Insert")
        assert end(process) < 3
