"""Capture what real servers send for the scenarios: `python tests/support/captures/capture.py BIN_FOLDER …`.

Each folder holds the programs of one PostgreSQL (initdb, pg_ctl, postgres). For each, a server of its own is
started in a temporary folder and stopped again, and `postgres-<major>.json` next to this file is replaced:
the bytes of every message in hexadecimal, with what the server says of them elsewhere: its LSN and xid, the
commit time, the names of its relations and types. What was read live has no such LSN and xid. As root, the
server runs as the user `postgres`.
"""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[2]))

from pipeline.postgres.replication.walsender import Walsender, start_walsender  # noqa: E402
from pipeline.protocol.lsn import LSN  # noqa: E402
from tests.support.captures.scenario import Scenario, Step  # noqa: E402
from tests.support.captures.scenarios import SCENARIOS  # noqa: E402

SETTINGS = {
    "fsync": "off",
    "listen_addresses": "''",
    "max_prepared_transactions": "4",
    "max_replication_slots": "4",
    "max_wal_senders": "4",
    "track_commit_timestamp": "on",
    "wal_level": "logical",
}
PEEK = """
    SELECT lsn::text, xid::text::bigint, encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes(
        'capture', NULL, NULL, VARIADIC %s)
"""
PROTOCOLS = {14: ("2", "on"), 15: ("3", "on")}  # from 16 on: 4, parallel
COMMIT_TIMES = """
    SELECT xid::text, (extract(epoch FROM pg_xact_commit_timestamp(xid::text::xid) - '2000-01-01 00:00+00')
        * 1000000)::numeric(30,0)::bigint
    FROM unnest(%s::bigint[]) AS xid
"""
RELATIONS = """
    SELECT c.oid::text, n.nspname || '.' || c.relname
    FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
    WHERE relkind = 'r' AND n.nspname !~ '^(pg_|information_schema)'
"""
TYPES = """
    SELECT DISTINCT t.oid::text, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = relnamespace
    WHERE relkind = 'r' AND n.nspname !~ '^(pg_|information_schema)' AND attnum > 0
"""


def run_unprivileged(*command: str) -> None:
    """Run a program of PostgreSQL, which refuses root, and show what it says only if it fails."""
    user = "postgres" if os.geteuid() == 0 else None
    result = subprocess.run(command, user=user, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")


def capture(programs: Path) -> None:
    """Write the captures of the server whose programs these are."""
    folder = Path(tempfile.mkdtemp(prefix="capture-"))
    try:
        if os.geteuid() == 0:
            os.chown(folder, pwd.getpwnam("postgres").pw_uid, -1)
        data = str(folder / "data")
        options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
        run_unprivileged(
            str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C"
        )
        start = f"{options} -k {folder}"
        run_unprivileged(
            str(programs / "pg_ctl"), "-D", data, "-w", "-l", str(folder / "log"), "-o", start, "start"
        )
        try:
            write_captures(f"host={folder} user=postgres")
        finally:
            run_unprivileged(str(programs / "pg_ctl"), "-D", data, "-w", "-m", "fast", "stop")
    finally:
        shutil.rmtree(folder)


def write_captures(conninfo: str) -> None:
    """Run every scenario that the server can run, each in a database of its own."""
    with psycopg.connect(f"{conninfo} dbname=postgres", autocommit=True) as admin:
        version = admin.info.server_version
        captures = []
        for scenario in SCENARIOS:
            if not scenario.since <= version // 10000 <= scenario.until:
                continue
            encoding = scenario.encoding
            admin.execute(f"CREATE DATABASE scenario TEMPLATE template0 ENCODING '{encoding}'".encode())
            database = f"{conninfo} dbname=scenario client_encoding={encoding}"
            if version >= 140000:
                admin.execute("ALTER DATABASE scenario SET logical_decoding_work_mem = '64kB'")
            with psycopg.connect(database, autocommit=True) as connection:
                captures.append(run_scenario(connection, scenario))
            admin.execute("DROP DATABASE scenario")
    path = HERE / f"postgres-{version // 10000}.json"
    path.write_text(json.dumps({"server_version": version, "captures": captures}, indent=1) + "\n")
    print(f"{path.name}: {len(captures)} captures from server version {version}")


def run_scenario(connection: psycopg.Connection[Any], scenario: Scenario) -> dict[str, object]:
    """Run one scenario and return what the server sent and what its catalog says."""

    def run(statement: str) -> None:
        connection.execute(statement.encode("utf-8", "surrogateescape"))

    is_filled = any("TABLE filler" in statement for statement in scenario.setup)
    published = "FOR TABLE t" if is_filled else "FOR ALL TABLES"
    for statement in (*scenario.setup, f"CREATE PUBLICATION capture {published}"):
        run(statement)
    # What the types and tables were called before a scenario renames or alters them counts, too.
    relations, types = read_names(connection)
    run("SELECT pg_create_logical_replication_slot('capture', 'pgoutput')")
    rows = read_live(connection, scenario) if scenario.is_live else read_afterwards(connection, scenario)
    xids = sorted({row["xid"] for row in rows if row["xid"]})
    found = connection.execute(COMMIT_TIMES.encode(), [xids])
    commit_times = {text(xid): time for xid, time in found if time is not None}
    new_relations, new_types = read_names(connection)
    run("SELECT pg_drop_replication_slot('capture')")
    return {
        "scenario": scenario.name,
        "relations": new_relations | relations,
        "types": new_types | types,
        "commit_times": commit_times,
        "messages": rows,
    }


def read_afterwards(connection: psycopg.Connection[Any], scenario: Scenario) -> list[dict[str, Any]]:
    """Run the transactions and peek at what they make the slot send."""
    with sessions(connection) as run:
        for step in scenario.transactions:
            run(step)
    # a rollback alone is not written out at once
    connection.execute("CHECKPOINT")
    pairs = [word for pair in plugin_options(connection, scenario).items() for word in pair]
    rows = connection.execute(PEEK.encode(), [pairs]).fetchall()
    return [{"lsn": text(lsn), "xid": xid, "data": text(data)} for lsn, xid, data in rows]


def read_live(connection: psycopg.Connection[Any], scenario: Scenario) -> list[dict[str, Any]]:
    """Run the transactions while a replication session reads, each step after what the last one sent."""
    info = connection.info
    options = plugin_options(connection, scenario)
    messages: list[bytes] = []
    conninfo = f"host={info.host} user=postgres dbname={info.dbname}"
    stream = start_walsender(conninfo, "capture", "capture", options=options)
    try:
        with sessions(connection) as run:
            for step in scenario.transactions:
                run(step)
                connection.execute("CHECKPOINT")
                messages += read_to_the_end(connection, stream)
    finally:
        stream.close()
    while connection.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone():
        time.sleep(0.05)
    return [{"lsn": None, "xid": None, "data": message.hex()} for message in messages]


def read_to_the_end(connection: psycopg.Connection[Any], stream: Walsender) -> list[bytes]:
    """Read until the stream has passed what is written now."""
    row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    end = LSN.parse(row[0]) if row else LSN(0)
    messages: list[bytes] = []
    while stream.received_lsn < end:
        stream.ping()
        messages += stream.read(0.2)
    return messages


def plugin_options(connection: psycopg.Connection[Any], scenario: Scenario) -> dict[str, str]:
    """Return what pgoutput is asked for."""
    version, streaming = "1", None
    if scenario.is_streamed:
        version, streaming = PROTOCOLS.get(connection.info.server_version // 10000, ("4", "parallel"))
    options = {"proto_version": version, "publication_names": "capture", **scenario.options}
    return options if streaming is None else {**options, "streaming": streaming}


@contextmanager
def sessions(connection: psycopg.Connection[Any]) -> Iterator[Callable[[Step], None]]:
    """Give a function that runs a step in its session; the first one is the connection itself."""
    with ExitStack() as stack:
        numbered = {1: connection}

        def run(step: Step) -> None:
            number, statement = (1, step) if isinstance(step, str) else step
            if number not in numbered:
                another = psycopg.connect(connection.info.dsn, autocommit=True)
                numbered[number] = stack.enter_context(another)
            numbered[number].execute(statement.encode("utf-8", "surrogateescape"))

        yield run


def read_names(connection: psycopg.Connection[Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of the tables and of their columns' types, by oid."""
    relations = {text(oid): text(name) for oid, name in connection.execute(RELATIONS.encode()).fetchall()}
    return relations, {text(oid): text(name) for oid, name in connection.execute(TYPES.encode()).fetchall()}


def text(value: str | bytes) -> str:
    """Return a value of a connection that has no encoding, and gives bytes, as text."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        capture(Path(argument).resolve())
