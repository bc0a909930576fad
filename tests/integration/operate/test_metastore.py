"""Jobs and an analyst as processes of their own, with a Hive metastore between them."""

import json
import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.processes import run_command
from tests.support.servers import Database

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
storage:
  root: lake
catalog:
  schema: "{{schema}}"
tables:
  - source: "*.*"
"""
SETTINGS = {
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.warehouse.dir": "warehouse",
    # for queries that run once
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
}
ANALYST = """\
import json, sys
from pipeline.delta.spark.session import start_session
spark = start_session("analyst")
print(json.dumps([[list(row) for row in spark.sql(query).collect()] for query in sys.argv[1:]]))
"""


def run(folder: Path, *command: str) -> str:
    """Run a process whose Spark has the embedded metastore of a folder, and return its output."""
    submit = " ".join(f"--conf {key}={value}" for key, value in SETTINGS.items())
    environ = {
        **{key: value for key, value in os.environ.items() if "SPARK" not in key},
        "PYSPARK_SUBMIT_ARGS": f'{submit} --driver-java-options "-XX:TieredStopAtLevel=1" pyspark-shell',
        "PYTHONPATH": str(ROOT),
    }
    done = run_command(sys.executable, *command, cwd=folder, env=environ, timeout=600)
    return done.stdout


def replicate(folder: Path) -> str:
    for job in ("ingest", "apply"):
        output = run(folder, str(ROOT / "jobs" / f"{job}.py"), "--config", "c.yaml", "--strict")
    return output


def query(folder: Path, *queries: str) -> list[Any]:
    answers: list[Any] = json.loads(run(folder, "-c", ANALYST, *queries))
    return answers


@pytest.mark.promise("names in the metastore")
def test_an_analyst_queries_tables_by_name(database: Database, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG.format(name=database.name, conninfo=database.conninfo))
    database.run(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.customers (id int PRIMARY KEY, name text)",
        'CREATE TABLE shop."Order items" (id int PRIMARY KEY, customer_id int)',
        "INSERT INTO shop.customers VALUES (1, 'Ada'), (2, 'Grace')",
        'INSERT INTO shop."Order items" VALUES (7, 1), (8, 1), (9, 2)',
    )
    assert "catalog: 2 tables registered, 0 removed" in replicate(tmp_path)
    items = "order_items_" + sha256(b"shop\0Order items").hexdigest()[:8]
    tables, counts = query(
        tmp_path,
        "SHOW TABLES IN shop",
        f"SELECT name, count(*) FROM shop.customers c JOIN shop.{items} i ON c.id = customer_id GROUP BY 1",
    )
    assert sorted(row[1] for row in tables) == ["customers", items]
    assert sorted(counts) == [["Ada", 2], ["Grace", 1]]
    # a run with nothing to apply opens no metastore
    log = tmp_path / "derby.log"
    log.unlink()
    run(tmp_path, str(ROOT / "jobs" / "apply.py"), "--config", "c.yaml", "--strict")
    assert not log.exists()
    database.run(
        "ALTER TABLE shop.customers ADD city text DEFAULT 'Rome'",
        "INSERT INTO shop.customers VALUES (3, 'Alan', 'Wien')",
        "DELETE FROM shop.customers WHERE id = 2",
        "CREATE TABLE shop.later (id int PRIMARY KEY)",
    )
    assert "catalog: 1 table registered, 0 removed" in replicate(tmp_path)
    found, later = query(
        tmp_path, "SELECT id, name, city FROM shop.CUSTOMERS ORDER BY id", "SELECT * FROM shop.later"
    )
    assert found == [[1, "Ada", "Rome"], [3, "Alan", "Wien"]]
    assert later == []
