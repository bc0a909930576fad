"""Run the DAG in a real Airflow: `python -m tools.airflow_run AIRFLOW`, called by `make airflow`.

AIRFLOW is the command of an environment of its own. Against an embedded server and a lake in a temporary
folder, `airflow dags test` must bring silver to its source; with a mistake in the configuration it must fail
at once, without another try. Airflow's own database is a file in that folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from pipeline.delta.spark.session import start_session
from pipeline.postgres.embedded import start_server
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.paths import ROOT

DAGS = ROOT / "conf" / "airflow"
CONFIG = """\
pipeline: shop
source: {{conninfo: "{conninfo}"}}
storage: {{root: "{folder}/lake"}}
"""
SOURCE = (
    "CREATE TABLE orders (id int PRIMARY KEY, item text, price numeric(10,2))",
    "CREATE PUBLICATION shop FOR TABLE orders",
    "SELECT pg_create_logical_replication_slot('shop', 'pgoutput')",
    "INSERT INTO orders SELECT g, 'item ' || g, g / 7.0 FROM generate_series(1, 1000) g",
    "DELETE FROM orders WHERE id <= 10",
)


def main(airflow: str) -> int:
    """Return 0 where the DAG did what it should, else 1; say which."""
    with tempfile.TemporaryDirectory(prefix="pgdelta-airflow-") as name:
        folder = Path(name)
        environ = {
            **os.environ,
            "AIRFLOW_HOME": str(folder / "home"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PGDELTA_CONFIG": str(folder / "pipeline.yaml"),
        }

        def run(*arguments: str) -> tuple[int, str]:
            done = subprocess.run(
                [airflow, *arguments], env=environ, capture_output=True, text=True, check=False
            )
            return done.returncode, done.stdout + done.stderr

        def run_dag(config: Path) -> tuple[int, str]:
            file = str(DAGS / "pgdelta_dag.py")
            return run(
                "dags", "test", "shop", "--dagfile-path", file, "--conf", json.dumps({"config": str(config)})
            )

        server = start_server(folder / "postgres")
        try:
            config = folder / "pipeline.yaml"
            config.write_text(CONFIG.format(conninfo=server.conninfo, folder=folder))
            mistaken = folder / "mistaken.yaml"
            mistaken.write_text("pipeline: shop\nstorrage: {}\n")
            with psycopg.connect(server.conninfo, autocommit=True) as connection:
                for statement in SOURCE:
                    connection.execute(statement)
                started = time.monotonic()
                for step in (("db", "migrate"), ("version",)):
                    code, said = run(*step)
                    if code:
                        return fail(f"airflow {' '.join(step)} ended with {code}", said)
                version = said.split()[-1]
                code, said = run_dag(mistaken)
                tries = re.findall(r"exited with return code (\d+)", said)
                if not code or tries != ["2", "2"]:  # of ingest and of apply
                    return fail("a mistake in the configuration did not fail at once and for good", said)
                code, said = run_dag(config)
                if code:
                    return fail(f"airflow dags test ended with {code}", said)
                spark = start_session("airflow")
                oracle.assert_silver_equals_source(
                    connection, spark, str(folder / "lake"), [TableName("public", "orders")]
                )
                spark.stop()
        finally:
            server.stop()
    print(
        f"Airflow {version}: the DAG ran, silver equals its source, and a mistake in the configuration is "
        f"not tried again ({time.monotonic() - started:.0f} s)"
    )
    return 0


def fail(sentence: str, said: str) -> int:
    """Print what Airflow said, then the sentence, and return 1."""
    print(said)
    print(f"FAILED: {sentence}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
