"""Passwords that a program prints: every session uses it, also after the password has changed."""

from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from pipeline.config.load import load_config
from pipeline.errors import SourceError
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.connection import connect, connect_replication
from pipeline.postgres.replication.slot_status import WalEnd, read_source_status
from pipeline.table_name import TableName
from pipeline.verify.reconcile import run_reconcile
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.running import continuous
from tests.support.servers import Database, MakeServer, restart
from tests.support.threads import wait_until

ROLE = "keeper"
FIRST, SECOND = "pl@nted '1\\'", "plänted 2"
_HBA = """\
host all         postgres all trust
host all         all      all scram-sha-256
host replication all      all scram-sha-256
"""
_FILE = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
  password_command: [sh, -c, 'echo >> "$1"; cat "$0"', "{password}", "{calls}"]
  route: {route}
storage:
  root: "{root}"
"""


@dataclass
class Guarded:
    """A server that requires a password from `ROLE`, and the file in which a program finds it."""

    database: Database
    folder: Path

    @property
    def password(self) -> Path:
        return self.folder / "password"

    def change(self, password: str) -> None:
        """Change the password of the role, and what the program prints."""
        with self.database.connect() as connection:
            connection.execute("SET password_encryption = 'scram-sha-256'")
            connection.execute(sql.SQL("ALTER ROLE keeper PASSWORD {}").format(password))
        self.password.write_text(password + "\n", encoding="utf-8")

    def calls(self) -> int:
        """Return how often the program ran."""
        return len((self.folder / "calls").read_text().splitlines())

    def write(self, route: str) -> Path:
        """Write the configuration of a pipeline that reads as the role."""
        file = self.folder / "pipeline.yaml"
        file.write_text(
            _FILE.format(
                name="shop",
                conninfo=self.database.server.conninfo_of("postgres", ROLE),
                password=self.password,
                calls=self.folder / "calls",
                route=route,
                root=self.folder / "lake",
            ),
            encoding="utf-8",
        )
        return file


@pytest.fixture
def guarded(make_server: MakeServer, tmp_path: Path) -> Guarded:
    server = make_server()
    database = Database.of(server)
    database.run(
        f"CREATE ROLE {ROLE} LOGIN REPLICATION SUPERUSER",
        "CREATE TABLE items (id int PRIMARY KEY, name text)",
        "INSERT INTO items SELECT g, 'item ' || g FROM generate_series(1, 500) g",
    )
    (server.data / "pg_hba.conf").write_text(_HBA)
    restart(server, {})
    return Guarded(database, tmp_path)


def pipeline_of(guarded: Guarded, make_pipeline: MakePipeline, route: str) -> Pipeline:
    made = make_pipeline(database=guarded.database)
    return replace(made, config=load_config(guarded.write(route)))


@pytest.mark.parametrize("route", ["walsender", pytest.param("sql", marks=pytest.mark.slow)])
def test_every_session_gets_a_password_from_the_program(
    guarded: Guarded, make_pipeline: MakePipeline, route: str
) -> None:
    guarded.change(FIRST)
    life = pipeline_of(guarded, make_pipeline, route)
    assert [check for check in run_checks(life.config) if not check.ok] == []
    checked = guarded.calls()
    assert checked >= (2 if route == "walsender" else 1)
    life.catch_up()
    copied = guarded.calls()
    assert copied >= checked + 4  # ingest, its stream, the snapshot and its readers
    life.run("UPDATE items SET name = name || '!' WHERE id % 3 = 0")
    guarded.change(SECOND)
    life.assert_follows("items")
    before = guarded.calls()
    assert read_source_status(life.config).slot is not None
    assert run_reconcile(life.config, runs=True).exit_code(strict=True) == 0
    assert guarded.calls() > before + 1
    planted = [
        file
        for file in (guarded.folder / "lake").rglob("*")
        if file.is_file() and any(secret.encode() in file.read_bytes() for secret in (FIRST, SECOND))
    ]
    assert planted == []


def test_a_password_that_changes_during_ingest_is_used_by_later_sessions(
    guarded: Guarded, make_pipeline: MakePipeline
) -> None:
    guarded.change(FIRST)
    life = pipeline_of(guarded, make_pipeline, "walsender")
    with continuous(life) as running:
        wait_until(lambda: TableName("public", "items") in running.copied or running.error)
        guarded.change(SECOND)
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(guarded.database.server.conninfo_of("postgres", ROLE), password=FIRST)
        # the session of the catalog ends, so that the next Relation message needs another one
        life.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'keeper'"
            " AND backend_type = 'client backend'",
            "ALTER TABLE items ADD COLUMN price numeric(10, 2) DEFAULT 7",
            "INSERT INTO items VALUES (501, 'later', 1.5)",
            "CREATE TABLE parts (id int PRIMARY KEY, name text)",
            "INSERT INTO parts SELECT g, 'part ' || g FROM generate_series(1, 100) g",
        )
        wait_until(lambda: TableName("public", "parts") in running.copied or running.error)
    assert running.error is None
    life.assert_follows("items", "parts")


def test_a_wrong_password_names_the_program_and_never_the_password(guarded: Guarded) -> None:
    guarded.change(FIRST)
    config = load_config(guarded.write("walsender"))
    guarded.password.write_text("another s3cr3t", encoding="utf-8")
    for opened in (connect, connect_replication):
        with pytest.raises(SourceError) as caught:
            opened(config.source.conninfo)
        sentence = str(caught.value)
        assert "password authentication failed" in sentence
        assert sentence.endswith(
            "Correct the program of source.password_command, or the password of the role."
        )
        assert "s3cr3t" not in sentence
        assert caught.value.__cause__ is None
    guarded.password.unlink()
    [check] = run_checks(config)
    assert (check.ok, check.name) == (False, "connection")
    assert "The program sh of source.password_command failed with exit code 1." in check.sentence


def test_the_end_of_the_wal_is_polled_with_the_program(guarded: Guarded) -> None:
    guarded.change(FIRST)
    log_end = WalEnd(load_config(guarded.write("walsender")).source.conninfo, interval=0.1)
    try:
        wait_until(lambda: log_end.lsn is not None)
    finally:
        log_end.close()


def test_a_server_of_copies_has_its_own_program(guarded: Guarded, make_pipeline: MakePipeline) -> None:
    guarded.change(FIRST)
    guarded.database.run("CREATE ROLE copier LOGIN SUPERUSER PASSWORD 'other'")
    life = pipeline_of(guarded, make_pipeline, "walsender")
    copying = replace(
        life.config.source.copying,
        conninfo=guarded.database.server.conninfo_of("postgres", "copier"),
        password_command=("echo", "wrong"),
    )
    wrong = replace(life.config, source=replace(life.config.source, copying=copying))
    failed = {check.name: check for check in run_checks(wrong) if not check.ok}
    assert set(failed) == {"copy source"}
    assert "source.copying.password_command" in failed["copy source"].sentence
    copying = replace(copying, password_command=("echo", "other"))
    right = replace(life.config, source=replace(life.config.source, copying=copying))
    assert [check for check in run_checks(right) if not check.ok] == []
    life = replace(life, config=right)
    life.assert_follows("items")
