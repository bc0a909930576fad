"""Servers to which the database of a pipeline moves: filled by a dump, or by pg_upgrade."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pipeline.postgres.embedded import EmbeddedServer, find_binaries, run_as
from pipeline.protocol.lsn import LSN
from tests.support.pipelines import Pipeline
from tests.support.servers import Database


def dump_into(old: Database, new: Database) -> None:
    """Fill a database with a dump of another one, without publications."""
    tool = find_binaries()
    options = ["--no-publications", "--no-subscriptions"]
    dump = subprocess.run([tool / "pg_dump", *options, "-d", old.conninfo], capture_output=True, check=True)
    command = [str(tool / "psql"), "-q", "-X", "-v", "ON_ERROR_STOP=1", "-d", new.conninfo]
    subprocess.run(command, input=dump.stdout, capture_output=True, check=True)


def advance_wal(database: Database, lsn: LSN) -> None:
    """Let the WAL of a server pass an LSN."""
    while database.flush_lsn() <= lsn:
        database.run("SELECT pg_logical_emit_message(true, 'pgdelta test', 'x')", "SELECT pg_switch_wal()")


def database_of(server: EmbeddedServer, name: str) -> Database:
    """Create a database of a server."""
    Database(server, "postgres", server.conninfo).run(f"CREATE DATABASE {name}")
    return Database(server, name, server.conninfo_of(name))


@contextmanager
def moved(pipeline: Pipeline, database: Database) -> Iterator[Pipeline]:
    """Give the same pipeline with the database of another server."""
    source = replace(pipeline.config.source, conninfo=database.conninfo)
    config = replace(pipeline.config, source=source)
    with database.connect() as connection:
        yield replace(pipeline, database=database, config=config, source=connection)


def upgrade(old: EmbeddedServer, new: EmbeddedServer) -> None:
    """Fill a stopped server with the files of another stopped one by pg_upgrade."""
    folders = f"-b {old.binaries} -B {new.binaries} -d {old.data} -D {new.data}"
    program = f"{new.binaries / 'pg_upgrade'} -U postgres {folders} -p {old.port} -P {new.port}"
    run_as(new.account, ["sh", "-c", f"cd $(mktemp -d) && {program} -s $(pwd)"])
