"""Capture what real servers send for the scenarios: `python tests/captures/capture.py BIN_FOLDER …`.

Each folder holds the programs of one PostgreSQL (initdb, pg_ctl, postgres). For each, a server of its own is
started in a temporary folder and stopped again, and `postgres-<major>.json` beside this file is written anew:
the bytes of every message in hexadecimal, with what the server says of them elsewhere: its LSN and xid, the
commit time, the names of its relations and types. As root, the server runs as the user `postgres`.
"""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))

from tests.captures.scenarios import SCENARIOS, Scenario  # noqa: E402

SETTINGS = {
    "fsync": "off",
    "listen_addresses": "''",
    "max_replication_slots": "4",
    "max_wal_senders": "4",
    "track_commit_timestamp": "on",
    "wal_level": "logical",
}
PEEK = """
    SELECT lsn::text, xid::text::bigint, encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes(
        'capture', NULL, NULL, 'proto_version', '1', 'publication_names', 'capture'{})
"""
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

    for statement in (*scenario.setup, "CREATE PUBLICATION capture FOR ALL TABLES"):
        run(statement)
    # What the types and tables were called before a scenario renames or alters them counts, too.
    relations, types = read_names(connection)
    run("SELECT pg_create_logical_replication_slot('capture', 'pgoutput')")
    for transaction in scenario.transactions:
        run(transaction)
    options = "".join(f", '{name}', '{value}'" for name, value in scenario.options.items())
    rows = connection.execute(PEEK.format(options).encode()).fetchall()
    xids = sorted({row[1] for row in rows if row[1]})
    commit_times = {text(xid): time for xid, time in connection.execute(COMMIT_TIMES.encode(), [xids])}
    new_relations, new_types = read_names(connection)
    run("SELECT pg_drop_replication_slot('capture')")
    return {
        "scenario": scenario.name,
        "relations": new_relations | relations,
        "types": new_types | types,
        "commit_times": commit_times,
        "messages": [{"lsn": text(lsn), "xid": xid, "data": text(data)} for lsn, xid, data in rows],
    }


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
