"""The advice of *Protected columns* after an earlier version: a query finds leaks, steps remove them."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.bronze import protection
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.operate.maintain import run_maintenance
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from tests.support.files import places_of
from tests.support.native_pipelines import NativePipeline
from tests.support.paths import ROOT
from tests.support.servers import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECRET = "xyzzyLeaked"
RULES = ColumnRules(exclude=("ssn",))
SETUP = (
    "CREATE TABLE c (id int PRIMARY KEY, ssn text, name text)",
    "CREATE TABLE d (id int PRIMARY KEY, ssn text, name text)",
    f"INSERT INTO c VALUES (1, '{SECRET}', 'n')",
    f"INSERT INTO d VALUES (1, '{SECRET}', 'n')",
)
MIGRATION = (
    "BEGIN; ALTER TABLE c RENAME ssn TO ssn_old; ALTER TABLE c ADD ssn text;"
    " UPDATE c SET ssn = right(ssn_old, 2); ALTER TABLE c DROP COLUMN ssn_old; COMMIT",
    "UPDATE d SET name = 'm'",
)


def query(lake: str) -> str:
    """Return the query of the page."""
    page = (ROOT / "docs/guides/protected-columns.md").read_text(encoding="utf-8")
    return page.partition("```sql\n")[2].partition("```")[0].replace("/path/to/lake", lake)


@pytest.fixture
def leaked(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NativePipeline:
    """Give a lake as a version left it that went by names where the catalog was ahead."""
    database.run(*SETUP)
    pipeline = NativePipeline.make(database, tmp_path, TableRule("public.*", columns=RULES), copy="initial")
    with monkeypatch.context() as patch:
        # no number is known, and none is that of a protected column
        patch.setattr(
            protection, "possible_numbers", lambda names, *_: [[900 + i, 950 + i] for i in range(len(names))]
        )
        pipeline.catch_up(*MIGRATION)
    pipeline.catch_up("UPDATE c SET name = 'm'", "UPDATE d SET name = 'o'")
    assert places_of(tmp_path, SECRET)
    return pipeline


def maintain(pipeline: NativePipeline, hours: float) -> None:
    """Maintain as of so many hours from now."""
    run_maintenance(pipeline.config, clock=lambda: time.time() + hours * 3600)


@pytest.mark.slow
def test_the_query_finds_what_leaked_and_the_steps_remove_it(
    leaked: NativePipeline, spark: SparkSession, tmp_path: Path
) -> None:
    lake = leaked.config.storage.root
    found = spark.sql(query(lake)).collect()
    assert ("c", "ssn_old") in {(row["table_name"], row["name"]) for row in found}
    rules = replace(RULES, exclude=("ssn", "ssn_old"))
    leaked.set_rules(TableRule("public.*", columns=rules, retention=3600))
    run_resync(leaked.config, ["public.c"])
    leaked.catch_up()
    maintain(leaked, 1.5)
    maintain(leaked, 26)
    assert spark.sql(query(lake)).collect() == []
    assert {place.split("/")[1] for place in places_of(tmp_path, SECRET)} == {"silver"}
    shutil.rmtree(Path(lake, "silver/public/c"))
    run_rebuild(leaked.config, ["public.c"])
    assert places_of(tmp_path, SECRET) == []
    assert leaked.rows("c", "id", "name") == leaked.database.run("SELECT id, name FROM c")
    leaked.catch_up("UPDATE c SET name = 'z'")
    assert leaked.rows("c", "id", "name") == leaked.database.run("SELECT id, name FROM c")


def test_the_query_finds_nothing_where_nothing_leaked(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    database.run(*SETUP)
    pipeline = NativePipeline.make(database, tmp_path, TableRule("public.*", columns=RULES), copy="initial")
    pipeline.catch_up(*MIGRATION)
    pipeline.catch_up("UPDATE c SET name = 'm'", "ALTER TABLE d ADD note text", "UPDATE d SET note = 'o'")
    assert spark.sql(query(pipeline.config.storage.root)).collect() == []
