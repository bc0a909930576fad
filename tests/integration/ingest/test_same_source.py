"""Which database and which slot a lake reads: a renamed database, two lakes of one name, settings of both."""

import re
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from shutil import rmtree

import psycopg
import pytest
from psycopg import sql

from pipeline.apply.job import run_apply
from pipeline.config.alerts import Alerting
from pipeline.errors import GapError, LakeError, SourceError
from pipeline.ingest.job import run_ingest
from pipeline.ingest.start_conditions import StartCheck
from pipeline.operate.machine_checks import check_pauses
from pipeline.postgres.publication import managed_comment
from pipeline.postgres.replication.slot_status import read_source_status
from pipeline.report.alert_rules import find_alerts
from pipeline.report.alerts import read_facts
from pipeline.verify.audit import run_audit
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import Database, MakeServer, with_older

pytestmark = pytest.mark.postgres

FOLLOWS = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication"
TABLE = "CREATE TABLE t (id int PRIMARY KEY)"


def rename(database: Database, name: str, to: str) -> None:
    """End the sessions of a database, and rename it."""
    with psycopg.connect(database.server.conninfo, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        while other.execute("SELECT FROM pg_stat_activity WHERE datname = %s", (name,)).fetchall():
            time.sleep(0.02)
        statement = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        other.execute(statement.format(sql.Identifier(name), sql.Identifier(to)))


def test_a_renamed_database_is_the_same_source(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.run(TABLE)
    shop = NativePipeline.make(database, tmp_path)
    shop.catch_up("INSERT INTO t VALUES (1)")
    name = f"{database.name}_renamed"
    rename(database, database.name, name)
    try:
        renamed = replace(database, name=name, conninfo=database.server.conninfo_of(name))
        source = replace(shop.config.source, conninfo=renamed.conninfo)
        later = NativePipeline(renamed, replace(shop.config, source=source))
        with caplog.at_level("INFO"):
            later.catch_up("INSERT INTO t VALUES (2)")
        assert f"The database {database.name} is now named {name}. Ingest continues with it." in caplog.text
        assert later.rows("t", "id") == [(1,), (2,)]
        assert run_audit(later.config).exit_code(strict=True) == 0
    finally:
        rename(database, name, database.name)
    with psycopg.connect(database.server.conninfo, autocommit=True) as other:
        other.execute(f"CREATE DATABASE {name}".encode())
    try:
        other_source = replace(source, conninfo=database.server.conninfo_of(name))
        with pytest.raises((GapError, SourceError)):
            run_ingest(replace(shop.config, source=other_source))
    finally:
        with psycopg.connect(database.server.conninfo, autocommit=True) as other:
            other.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("major", with_older(10))
def test_a_slot_that_another_lake_reads_is_refused(
    major: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    database = request.getfixturevalue("old_database" if major == 10 else "database")
    database.run(TABLE)
    made = {"create_publication": "configured"}  # by ingest, which marks it
    first = NativePipeline.make(database, tmp_path / "first", **made)
    first.catch_up("INSERT INTO t VALUES (1)")
    with pytest.raises(SourceError) as refused:
        NativePipeline.make(database, tmp_path / "second", **made)
    assert str(refused.value) == (
        f"The slot {database.name} has another reader, the lake in {first.config.storage.root}: what one of"
        " the two reads, the other never gets. Set another pipeline, or other names in source.slot and"
        " source.publication. If that lake is not used any more, run COMMENT ON PUBLICATION"
        f" \"{database.name}\" IS '{managed_comment(database.name)}', then run again."
    )
    first.catch_up("INSERT INTO t VALUES (2)")
    assert first.rows("t", "id") == [(1,), (2,)]
    other_slot = {"slot": f"{database.name}_2", "create_publication": "never"}
    NativePipeline.make(database, tmp_path / "third", **other_slot)  # of the same publication
    database.free_slot()
    database.run(f"SELECT pg_drop_replication_slot('{database.name}')")
    second = NativePipeline.make(database, tmp_path / "second", **made)
    second.catch_up("INSERT INTO t VALUES (3)")
    with pytest.raises(SourceError, match=r"has another reader, the lake in .*second"):
        first.ingest()
    assert first.database.run(FOLLOWS)[0][0].startswith(managed_comment(database.name))
    database.run(f'COMMENT ON PUBLICATION "{database.name}" IS NULL')
    with pytest.raises(GapError, match="ahead of bronze"):
        first.ingest()
    second.catch_up("INSERT INTO t VALUES (4)")
    assert second.rows("t", "id") == [(3,), (4,)]


@pytest.mark.promise("the audit finds every hole")
@pytest.mark.parametrize("table", ["changes", "relations", "copies"])
def test_a_lost_table_of_bronze_is_named_by_every_job(database: Database, tmp_path: Path, table: str) -> None:
    database.run(TABLE, "INSERT INTO t VALUES (0)")
    shop = NativePipeline.make(database, tmp_path, create_publication="configured", copy="initial")
    shop.catch_up("INSERT INTO t VALUES (1)")
    rmtree(tmp_path / "lake" / "bronze" / table)
    for job in (run_ingest, run_apply, run_audit):
        with pytest.raises(LakeError, match=rf"^Bronze has lost \S*/bronze/{table}\. Restore the lake"):
            job(shop.config)
    [check] = StartCheck(shop.config).checks()
    assert check.sentence.endswith(f"/bronze/{table}.")


@pytest.mark.promise("the audit finds every hole")
def test_a_lake_that_lost_bronze_is_not_taken_for_another_one(database: Database, tmp_path: Path) -> None:
    database.run(TABLE)
    shop = NativePipeline.make(database, tmp_path, create_publication="configured")
    shop.catch_up("INSERT INTO t VALUES (1)")
    rmtree(tmp_path / "lake" / "bronze")
    with pytest.raises(SourceError, match="which has lost bronze") as refused:
        shop.ingest()
    rmtree(tmp_path / "lake")  # what the sentence says
    [statement] = re.findall(r"SELECT \S+", str(refused.value))
    database.free_slot()
    database.run(statement.rstrip(","))
    shop.ingest()
    shop.catch_up("INSERT INTO t VALUES (2)")
    assert (2,) in shop.rows("t", "id")


def test_a_database_that_is_read_only_by_default_is_followed(database: Database, tmp_path: Path) -> None:
    database.run(TABLE, f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
    shop = NativePipeline.make(database, tmp_path)
    shop.catch_up("SET default_transaction_read_only = off", "INSERT INTO t VALUES (1)")
    assert shop.rows("t", "id") == [(1,)]


def test_a_timeout_of_idle_slots_is_named_before_it_passes(make_server: MakeServer, tmp_path: Path) -> None:
    database = Database.of(make_server({"idle_replication_slot_timeout": "1s"}))
    database.run(TABLE)
    shop = NativePipeline.make(database, tmp_path)
    time.sleep(1.0)
    shop.ingest("INSERT INTO t VALUES (1)")
    [check] = check_pauses(shop.config)
    assert not check.ok
    assert check.sentence.startswith("idle_replication_slot_timeout is 1.0 s, and ingest paused for ")
    time.sleep(1.0)
    status = read_source_status(shop.config)
    assert status.idle_timeout == timedelta(seconds=1)
    config = replace(shop.config, alerts=Alerting(on=("slot",)))
    [alert] = find_alerts(read_facts(config)).found
    assert alert.sentence == (
        "The slot postgres is lost unless a job reads it within 0.0 s: idle_replication_slot_timeout is"
        " 1.0 s. Run pgdelta ingest now, and then more often; or raise that setting."
    )
