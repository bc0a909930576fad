"""The rule of a column follows it also if it is renamed before the first change of its table."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from pipeline.config.config import Config
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.ingest.job import run_ingest
from tests.support.bronze.rows import bronze_rows
from tests.support.running import ingesting
from tests.support.servers import Database
from tests.support.threads import wait_until

RULES = ColumnRules(exclude=("ssn",), mask={"mail": None})


def protected(database: Database, tmp_path: Path, **source: Any) -> Config:
    """Return a configuration that leaves out one column and masks another, of any table."""
    config = database.config(root=str(tmp_path / "lake"), create_publication="all", **source)
    return replace(config, tables=(TableRule("public.*", columns=RULES),))


def rows(config: Config) -> list[list[str | None]]:
    return [row["new"] for row in bronze_rows(config, "changes")]


@pytest.mark.sample(2)
@pytest.mark.parametrize("copy", ["never", "initial"])
@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_a_column_that_is_renamed_between_runs(
    database: Database, tmp_path: Path, copy: Literal["never", "initial"], route: str
) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, ssn text, mail text)", "CREATE TABLE u (id int)")
    config = protected(database, tmp_path, copy=copy, route=route)
    run_ingest(config)
    database.run(
        "ALTER TABLE t RENAME ssn TO ssn_old",
        "ALTER TABLE t RENAME mail TO mail_old",
        "INSERT INTO t VALUES (1, 'SECRET', 'SECRET')",
    )
    run_ingest(config)
    assert rows(config) == [["1", None]]
    recorded = len(bronze_rows(config, "relations"))
    run_ingest(config)
    assert len(bronze_rows(config, "relations")) == recorded, "nothing is recorded twice"


@pytest.mark.quick
def test_a_table_that_joins_a_run(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.table_copy.coordinator.POLL_SECONDS", 0.2)
    database.run("CREATE TABLE first (id int PRIMARY KEY)")
    config = protected(database, tmp_path)
    with ingesting(config):
        relations = Path(config.storage.root, "bronze/relations/_delta_log/00000000000000000000.json")
        wait_until(lambda: relations.exists() and bronze_rows(config, "relations"))
        database.run("CREATE TABLE t (id int PRIMARY KEY, ssn text, mail text)")
        wait_until(lambda: any(row["table_name"] == "t" for row in bronze_rows(config, "relations")))
        database.run("ALTER TABLE t RENAME ssn TO n", "INSERT INTO t VALUES (1, 'SECRET', 'SECRET')")
        wait_until(lambda: rows(config))
    assert rows(config) == [["1", None]]


def test_a_locked_table_is_described_later(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, ssn text)", "CREATE TABLE u (id int PRIMARY KEY)")
    config = protected(database, tmp_path)
    run_ingest(replace(config, tables=(TableRule("public.*"),)))  # a slot cannot be created meanwhile
    with database.connect() as other, other.transaction():
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        run_ingest(config)
        assert {row["table_name"] for row in bronze_rows(config, "relations")} == {"u"}
    run_ingest(config)
    assert {row["table_name"] for row in bronze_rows(config, "relations")} == {"t", "u"}
