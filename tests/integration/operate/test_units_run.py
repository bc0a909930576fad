"""The commands of systemd's services, run as they are in the units."""

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

import pytest
from deltalake import DeltaTable

from tests.support.processes import ended
from tests.support.servers import Database
from tests.support.systemd_units import INSTALLED, command, values
from tests.support.threads import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PORT = "9187"


def installed_here(unit: str, port: int) -> list[str]:
    """Return a service's command, with this environment's program and a free port for metrics."""
    program, *arguments = command(unit)
    program = program.replace(f"{INSTALLED}/.venv/bin", str(Path(sys.executable).parent))
    return [program, *(argument.replace(f":{PORT}", f":{port}") for argument in arguments)]


def environment(unit: str, config: Path) -> dict[str, str]:
    """Return the environment that systemd gives a service, with another configuration."""
    given = dict(pair.split("=", 1) for pair in values(unit, "Environment"))
    assert set(given) == {"PGDELTA_CONFIG"}
    return {"PATH": os.environ["PATH"], "PGDELTA_CONFIG": str(config)}


def wait_for_copy(lake: Path) -> None:
    """Wait until bronze has the whole copy of the table."""
    copies = lake / "bronze" / "copies"
    wait_until(
        lambda: (
            DeltaTable.is_deltatable(str(copies))
            and "complete" in DeltaTable(copies).to_pyarrow_table().column("state").to_pylist()
        ),
        what="the table is not copied",
    )


def test_services_replicate_and_end_by_a_signal(database: Database, tmp_path: Path) -> None:
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, item text)",
        "INSERT INTO orders SELECT g, 'no ' || g FROM generate_series(1, 100) g",
    )
    config = tmp_path / "pipeline.yaml"
    config.write_text(
        f'pipeline: {database.name}\nsource: {{conninfo: "{database.conninfo}"}}\nstorage: {{root: lake}}\n'
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ingest, apply = "pgdelta-ingest.service", "pgdelta-apply.service"
    running = subprocess.Popen(
        installed_here(ingest, port), cwd=tmp_path, env=environment(ingest, config), stderr=subprocess.PIPE
    )
    with ended(running) as process:
        wait_for_copy(tmp_path / "lake")
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"pgdelta_captured_lsn" in answer.read()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=300)
        assert process.returncode == 0, log.decode()
    subprocess.run(
        installed_here(apply, port), cwd=tmp_path, env=environment(apply, config), check=True, timeout=600
    )
    rows = DeltaTable(tmp_path / "lake" / "silver" / "public" / "orders").to_pyarrow_table().to_pylist()
    found = Counter((row["id"], row["item"]) for row in rows)
    assert found == Counter(database.run("SELECT id, item FROM orders"))
