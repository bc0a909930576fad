"""A server that is newer than those of the tests: what can be imitated of PostgreSQL 19 with an older one."""

import logging
from pathlib import Path

import pytest

from pipeline.errors import NOTICES
from pipeline.ingest.job import run_ingest
from pipeline.postgres import connection
from pipeline.postgres.checks import source_checks
from pipeline.postgres.checks.source_checks import Check, run_checks
from tests.support.lives import FILL, TABLE
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import Database, MakeServer

TREE = (
    "CREATE TABLE tree (id int PRIMARY KEY) PARTITION BY LIST (id)",
    "CREATE TABLE tree_1 PARTITION OF tree FOR VALUES IN (1)",
    "INSERT INTO tree VALUES (1)",
)
# FOR ALL TABLES EXCEPT (TABLE hidden, tree): before 19, a publication for all tables has no such entries.
EXCEPT = (
    "INSERT INTO pg_publication_rel (oid, prpubid, prrelid)"
    " SELECT 90000 + c.oid::bigint % 9000, p.oid, c.oid FROM pg_publication p, pg_class c"
    " WHERE p.pubname = current_database() AND c.relname IN ('hidden', 'tree')"
)


@pytest.mark.parametrize("via_root", ["false", "true"])
def test_tables_that_all_tables_excludes_are_not_copied_but_named(
    database: Database, tmp_path: Path, via_root: str
) -> None:
    for name in ("seen", "hidden"):
        database.run(TABLE.format(name), FILL.format(name, 1, 9))
    database.run(*TREE)
    database.publish_all(database.name)
    database.run(f"ALTER PUBLICATION {database.name} SET (publish_via_partition_root = {via_root})", EXCEPT)
    pipeline = NativePipeline.make(database, tmp_path, copy="initial")
    pipeline.catch_up()
    assert sorted(path.name for path in (tmp_path / "lake/silver/public").iterdir()) == ["seen"]
    [found] = failures(pipeline, "published tables")
    assert "3 of 4 tables that the configuration matches: public.hidden, public.tree," in found.sentence
    assert f"The publication {database.name} excludes it (EXCEPT)." in found.sentence
    assert f'Run ALTER PUBLICATION "{database.name}" SET ALL TABLES with an EXCEPT that lacks it' in found.fix


def test_a_newer_server_is_named_by_check_and_by_the_run(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database.run(TABLE.format("a"))
    pipeline = NativePipeline.make(database, tmp_path)
    sentence = "newer than 17, the newest that this pgdelta was tested with"
    assert not any(sentence in check.sentence for check in run_checks(pipeline.config))
    monkeypatch.setattr(connection, "NEWEST_TESTED_MAJOR", 17)
    [named] = [check for check in run_checks(pipeline.config) if sentence in check.sentence]
    assert (named.name, named.ok) == ("server version", True)
    assert named.fix.startswith("Upgrade pgdelta")
    monkeypatch.setattr(NOTICES, "propagate", True)
    with caplog.at_level(logging.INFO, NOTICES.name):
        run_ingest(pipeline.config)
    assert sentence in caplog.messages[0]


def test_the_wal_level_is_that_which_the_slot_finds(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database.of(make_server({"wal_level": "replica"}))
    database.run(TABLE.format("a"))
    [failed] = [check for check in run_checks(database.config()) if check.name == "wal_level"]
    assert not failed.ok
    assert failed.fix.startswith("Run ALTER SYSTEM SET wal_level = logical")
    # a setting of 19 by another name
    newer = connection.WAL_LEVEL.replace("'effective_", "'newer.effective_")
    monkeypatch.setattr(source_checks, "WAL_LEVEL", newer)
    database.run("ALTER DATABASE postgres SET newer.effective_wal_level = 'replica'")
    [found] = [check for check in run_checks(database.config()) if check.name == "wal_level"]
    assert (found.ok, found.sentence) == (
        True,
        "wal_level is replica; for the slot it is logical (effective_wal_level).",
    )


def failures(pipeline: NativePipeline, name: str) -> list[Check]:
    return [check for check in run_checks(pipeline.config) if check.name == name and not check.ok]
