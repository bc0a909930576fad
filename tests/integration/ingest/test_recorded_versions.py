"""Each relation version that a change names is recorded, and rows are read by their own version."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.bronze import spool
from pipeline.config.config import Config
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.ingest.job import run_ingest
from tests.support.bronze.rows import bronze_rows
from tests.support.running import ingesting
from tests.support.servers import Database, MakeServer
from tests.support.threads import wait_until


def column(config: Config, table: str, name: str) -> list[Any]:
    return [row[name] for row in bronze_rows(config, table, name)]


def wait_for_changes(config: Config, count: int) -> None:
    wait_until(lambda: len(column(config, "changes", "op")) >= count)


@pytest.mark.sample(1)
@pytest.mark.parametrize("most", [65_536, 1])
def test_versions_that_open_streams_describe(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(spool, "MAX_RECORDED_IDS", most)
    database = Database.of(make_server({"logical_decoding_work_mem": "64kB"}))
    database.run(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in "abc"))
    config = database.config(root=str(tmp_path / "lake"), create_publication="all")
    run_ingest(config)
    with ingesting(config), database.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO b SELECT i, md5(i::text) FROM generate_series(1, 5000) i")
        for count, table in enumerate("ac", 1):
            database.run(f"INSERT INTO {table} VALUES (1)")
            wait_for_changes(config, count)
        session.execute("COMMIT")
        wait_for_changes(config, 5002)
    named, recorded = (set(column(config, table, "relation_version")) for table in ("changes", "relations"))
    assert named <= recorded


@pytest.mark.promise("protected columns")
def test_a_left_out_column_that_was_dropped_and_added_again(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, secret text, note text)")
    config = database.config(root=str(tmp_path / "lake"), create_publication="all")
    config = replace(config, tables=(TableRule("public.*", columns=ColumnRules(exclude=("secret",))),))
    run_ingest(config)
    insert = "INSERT INTO t (id, secret, note) VALUES ({0}, 'secret {0}', 'note {0}')"
    database.run(
        insert.format(1),
        "ALTER TABLE t DROP COLUMN secret",
        "ALTER TABLE t ADD COLUMN secret text",
        insert.format(2),
        "ALTER TABLE t DROP COLUMN secret",
    )
    run_ingest(config)
    assert column(config, "changes", "new") == [["1", "note 1"], ["2", "note 2"]]
