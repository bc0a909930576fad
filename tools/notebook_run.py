"""Execute a notebook and judge what it shows: `python -m tools.notebook_run NOTEBOOK`, for `make notebook`.

It reads the demo's lake where there is one, else a small lake that is made here from an embedded server. The
notebook's file stays as it is, without outputs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import psycopg
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from pipeline.config.load import load_config
from pipeline.delta.spark.session import start_session
from pipeline.operate.run import run_both
from pipeline.postgres.embedded import start_server
from tests.support.paths import ROOT

DEMO = ROOT / ".demo" / "lake"
CONFIG = """\
pipeline: shop
source: {{conninfo: "{conninfo}"}}
storage: {{root: "{folder}/lake"}}
"""
TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, item text, price numeric(10,2), note text)",
    "CREATE TABLE visits (page text, day date)",
    "CREATE PUBLICATION shop FOR TABLE orders, visits",
    "SELECT pg_create_logical_replication_slot('shop', 'pgoutput')",
)
LOAD = (
    "INSERT INTO orders SELECT g, 'item ' || g, g / 7.0 FROM generate_series(1, 1000) g",
    "INSERT INTO visits SELECT 'page ' || g % 10, current_date FROM generate_series(1, 200) g",
    "UPDATE orders SET price = price + 1 WHERE id <= 100",
    "UPDATE orders SET id = id + 10000 WHERE id BETWEEN 50 AND 60",
    "ALTER TABLE orders ADD COLUMN channel text",
    "UPDATE orders SET channel = 'web' WHERE id <= 20",
    "INSERT INTO visits VALUES ('page of the future', '20000-01-01')",
    "DELETE FROM orders WHERE id > 990",
)


@contextmanager
def small_lake() -> Iterator[str]:
    """Give a lake with a few tables, changes of every kind, an event and a misfit."""
    with tempfile.TemporaryDirectory(prefix="pgdelta-notebook-") as name:
        folder = Path(name)
        server = start_server(folder / "postgres")
        spark = start_session("notebook")
        try:
            (folder / "pipeline.yaml").write_text(CONFIG.format(conninfo=server.conninfo, folder=folder))
            config = load_config(folder / "pipeline.yaml")
            with psycopg.connect(server.conninfo, autocommit=True) as connection:
                for statement in TABLES:
                    connection.execute(statement)
                for half in (LOAD[:3], LOAD[3:]):
                    for statement in half:
                        connection.execute(statement)
                        time.sleep(0.3)
                    run_both(config, spark=spark)
        finally:
            spark.stop()
            server.stop()
        yield f"{folder}/lake"


def execute(notebook: Path, root: str) -> int:
    """Execute the notebook on a lake and return 0 where every cell ran and it shows its plot and tables."""
    os.environ["PGDELTA_ROOT"] = root
    document = nbformat.reads(notebook.read_text(encoding="utf-8"), as_version=4)
    if any(cell.get("outputs") for cell in document.cells):
        print(f"FAILED: {notebook} is committed with outputs; clear them")
        return 1
    started = time.monotonic()
    client = NotebookClient(document, timeout=600, resources={"metadata": {"path": str(notebook.parent)}})
    try:
        client.execute()
    except CellExecutionError as error:
        print(error)
        return 1
    outputs = [output for cell in document.cells for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    plots, tables = kinds.count("image/png"), kinds.count("text/html")
    for output in outputs:
        print(output.get("text") or output.get("data", {}).get("text/plain", ""))
    if plots < 1 or tables < 5:
        print(f"FAILED: {plots} plots and {tables} tables in the outputs")
        return 1
    print(f"{notebook}: {plots} plot, {tables} tables ({time.monotonic() - started:.0f} s, lake {root})")
    return 0


def main(notebook: Path) -> int:
    """Execute on the demo's lake or a small one."""
    if (DEMO / "_pgdelta" / "manifests").exists():
        return execute(notebook, str(DEMO))
    with small_lake() as root:
        return execute(notebook, root)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
