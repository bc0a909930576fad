"""`pgdelta ingest --http` as a process: pages of a real source while it captures, and their end."""

import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from pipeline.postgres.embedded import find_free_port
from tests.support.processes import in_own_session
from tests.support.running import CONFIG, ITEMS
from tests.support.servers import Database
from tests.support.threads import wait_until
from tests.support.web_pages import parse_page


def test_ingest_serves_pages_until_it_ends(database: Database, tmp_path: Path) -> None:
    database.run(ITEMS)
    text = CONFIG.format(name=database.name, conninfo=database.conninfo, root=tmp_path / "lake")
    (tmp_path / "pipeline.yaml").write_text(f"{text}tables: [{{source: 'public.*'}}]\n", encoding="utf-8")
    port = find_free_port()
    line = ["ingest", "--config", str(tmp_path / "pipeline.yaml"), "--trigger", "continuous"]
    command = [sys.executable, "-m", "pipeline.cli", *line, "--http", str(port)]

    def load(path: str) -> str:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            found: str = answer.read().decode()
            return found

    def is_up() -> bool:
        try:
            return "active" in parse_page(load("/")).by_id("slot").text
        except URLError:
            return False

    with in_own_session(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(is_up)
        database.run("INSERT INTO items VALUES (1, 'geheim')")
        wait_until(lambda: " 0.0\n" not in metric(load("/metrics"), "pgdelta_captured_changes_total"))
        pages = load("/") + load("/healthz") + load("/metrics")
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "geheim" not in pages + output + errors
    assert database.conninfo not in pages
    with pytest.raises(URLError):
        load("/healthz")


def metric(text: str, name: str) -> str:
    """Return the sample of a metric with its line end."""
    return next((f"{line}\n" for line in text.splitlines() if line.startswith(name)), " 0.0\n")
