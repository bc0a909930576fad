"""Run dbt over a lake: `python -m tools.dbt_run DBT`, called by `make dbt`.

DBT is the command of an environment of its own, with dbt-duckdb. Against an embedded server and a lake in a
temporary folder, `dbt build` must parse what `pgdelta dbt-sources` wrote, read the tables and pass the tests;
`dbt source freshness` must warn about a lake that is a minute behind, and not about a table that only rests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from pipeline.postgres.embedded import start_server

CONFIG = """\
pipeline: shop
source: {{conninfo: "{conninfo}"}}
storage: {{root: "{folder}/the lake"}}
tables:
  - {{source: public.prices, mode: history}}
  - {{source: public.customers, mode: soft_delete}}
  - {{source: "*.*"}}
"""
SOURCE = (
    "CREATE TABLE orders (id int PRIMARY KEY, item text)",
    "COMMENT ON TABLE orders IS 'What was {{ bought }}'",
    'CREATE TABLE lines (order_id int, line int, "order" text, PRIMARY KEY (order_id, line))',
    "CREATE TABLE prices (sku text PRIMARY KEY, price int)",
    "CREATE TABLE customers (id int PRIMARY KEY)",
    'CREATE SCHEMA "Sales dept" CREATE TABLE "Order items" ("Item Id" int PRIMARY KEY)',
    "INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
    "INSERT INTO lines VALUES (1, 1), (1, 2), (2, 1)",
    "INSERT INTO prices VALUES ('a', 1)",
    "INSERT INTO customers VALUES (1), (2)",
)
CHANGES = ("UPDATE prices SET price = 2", "DELETE FROM customers WHERE id = 1")
PROJECT = {
    "dbt_project.yml": "name: shop\nprofile: lake\nmodel-paths: [models]\n",
    "profiles.yml": "lake: {target: duck, outputs: {duck: {type: duckdb, path: ':memory:',"
    " extensions: [delta, icu]}}}\n",
    "models/sold.sql": "select item, count(*) as lines from {{ source('public', 'orders') }} o\n"
    "join {{ source('public', 'lines') }} l on l.order_id = o.id group by item\n",
}
TESTS = 2 + 3 + 2 + 2 + 2  # of the keys, in the order of SOURCE
EXTENSIONS = (
    "import duckdb, duckdb_extensions as e; c = duckdb.connect();"
    " [e.import_extension(name, con=c) for name in ('delta', 'icu')]"
)


class Failed(Exception):
    """What did not happen."""


def main(dbt: str) -> int:
    """Return 0 where dbt found what it should, else 1; say which."""
    try:
        with tempfile.TemporaryDirectory(prefix="pgdelta-dbt-") as name:
            print(_run(dbt, Path(name)))
    except Failed as failure:
        print(f"FAILED: {failure}")
        return 1
    return 0


def _run(dbt: str, folder: Path) -> str:
    python, config, project = str(Path(dbt).with_name("python")), folder / "pipeline.yaml", folder / "project"
    for file, text in PROJECT.items():
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).write_text(text)
    environ = {**os.environ, "DBT_PROFILES_DIR": str(project), "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
    environ.pop("PYTHONPATH", None)

    def pgdelta(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "pipeline.cli", *arguments, "--config", str(config)],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def run_dbt(*arguments: str, result: str = "run_results.json") -> dict[str, str]:
        """Return the state of each node after a command."""
        done = subprocess.run([dbt, *arguments], env=environ, cwd=project, capture_output=True, text=True)
        file = project / "target" / result
        if not file.exists():
            raise Failed(
                f"dbt {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}"
            )
        found = {each["unique_id"]: each["status"] for each in json.loads(file.read_text())["results"]}
        file.unlink()
        return found

    def freshness(rule: str) -> dict[str, str]:
        ages = ("--warn-after", "1min", "--error-after", "9d")
        pgdelta("dbt-sources", "--into", str(project / "models" / "sources.yml"), "--freshness", rule, *ages)
        found = run_dbt("source", "freshness", result="sources.json")
        return {name.rsplit(".", 1)[-1]: state for name, state in found.items()}

    subprocess.run([python, "-c", EXTENSIONS], check=True)  # instead of a download by DuckDB
    server = start_server(folder / "postgres")
    try:
        config.write_text(CONFIG.format(conninfo=server.conninfo, folder=folder))
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            for statements in (SOURCE, CHANGES):
                for statement in statements:
                    connection.execute(statement)
                pgdelta("run")
            committed = time.monotonic()
            pgdelta("dbt-sources", "--into", str(project / "models" / "sources.yml"))
            built = run_dbt("build")
            if set(built.values()) != {"pass", "success"} or list(built.values()).count("pass") != TESTS:
                raise Failed(f"dbt build: {built}")
            time.sleep(max(0.0, 61 - (time.monotonic() - committed)))
            behind = freshness("applied")
            connection.execute("UPDATE orders SET item = 'c'")
            pgdelta("run")
            current, changed = freshness("applied"), freshness("changed")
    finally:
        server.stop()
    if set(behind.values()) != {"warn"} or set(current.values()) != {"pass"} or len(current) != 5:
        raise Failed(f"dbt source freshness: {behind}, then {current}")
    if {name for name, state in changed.items() if state == "pass"} != {"orders"}:
        raise Failed(f"dbt source freshness by changes: {changed}")
    return f"dbt: {TESTS} tests passed, and {len(current)} tables were as old as they are"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
