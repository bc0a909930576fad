"""Servers to which the database of a pipeline moves, filled by a dump or by pg_upgrade, and killed moves."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.apply import job as applying
from pipeline.bronze.copies import Copies
from pipeline.bronze.writer import BronzeWriter
from pipeline.ingest import job as ingesting
from pipeline.operate import move_source
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
    Database.of(server).run(f"CREATE DATABASE {name}")
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


def debian_binaries(major: int, folder: Path) -> Path:
    """Return the folder of Debian's server binaries of a major, with all tools; skip if there are none.

    They are those of this machine, or of Debian's package, unpacked into `folder`.
    """
    inside = Path("usr", "lib", "postgresql", str(major), "bin")
    if not (Path("/") / inside / "pg_upgrade").exists():
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            pytest.skip(f"there is no PostgreSQL {major} with its tools, and no apt-get to download one")
        command = ["apt-get", "download", f"postgresql-{major}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        packages = list(folder.glob("*.deb"))
        if not packages:
            pytest.skip(f"PostgreSQL {major} cannot be downloaded: {done.stderr[-200:]}")
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), str(folder)], check=True)
        return folder / inside
    return Path("/") / inside


class Killed(BaseException):
    """The end of a process in a test."""


@contextmanager
def killed(owner: object, name: str, *, is_after: bool) -> Iterator[None]:
    """Let the process end before or after its main thread first calls a function."""
    function = getattr(owner, name)

    def call(*arguments: object, **options: object) -> object:
        if threading.current_thread() is not threading.main_thread():
            return function(*arguments, **options)
        if is_after:
            function(*arguments, **options)
        raise Killed

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(owner, name, call)
        yield
        pytest.fail(f"{name} was not called")


STEPS = (
    (ingesting, "run_ingest"),
    (move_source, "ensure_publication"),
    (Copies, "request"),
    (move_source, "renew_slot"),
    (BronzeWriter, "record_copies"),
    (BronzeWriter, "land_gap"),
    (applying, "run_apply"),
    (move_source, "run_both"),
)
