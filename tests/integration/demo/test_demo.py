"""The demo, as a stranger runs it, and its parts that need neither server nor Spark."""

import fcntl
import json
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.demo import demo
from pipeline.demo.demo import run_demo
from pipeline.demo.shop import MINIMUM, TABLES, Load, create_shop
from pipeline.errors import ConfigError
from pipeline.protocol.lsn import LSN
from tests.support.processes import ended
from tests.support.servers import Database
from tests.support.threads import wait_until

PGDELTA = Path(sys.executable).parent / "pgdelta"


def start_demo(root: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(PGDELTA), "demo", "--root", str(root), "--json", *arguments],
        cwd=root.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def is_running(server: Path) -> bool:
    """Return whether a server still has its data folder: it removes this file last."""
    return (server / "data" / "postmaster.pid").exists()


def assert_ended_well(root: Path, told: dict[str, Any]) -> str:
    """Assert that a demo ended with every table equal and without its server; return its query's output."""
    assert told["ok"]
    assert [table["table"] for table in told["tables"]] == list(TABLES)
    assert all(table["equal"] and table["source_rows"] > 0 for table in told["tables"])
    assert told["counts"].keys() == MINIMUM.keys()
    assert all(told["counts"][kind] >= least for kind, least in MINIMUM.items())
    assert not is_running(root / "server")
    query = shlex.split(told["query"])
    answer = subprocess.run(query, cwd=root.parent, capture_output=True, text=True, timeout=300, check=True)
    assert answer.stderr == ""
    return answer.stdout


@pytest.mark.postgres
def test_the_demo_without_spark_ends_with_every_table_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_PIPELINE", f"{demo._PIPELINE}silver: {{{{writer: native}}}}\n")
    monkeypatch.chdir(tmp_path)  # its query names pgdelta by a path from there
    root = tmp_path / "demo"
    assert run_demo(str(root), 3, as_json=True, stop=threading.Event()) == 0
    assert "paid" in assert_ended_well(root, json.loads(capfd.readouterr().out))


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.slow
def test_the_demo_ends_with_every_table_equal(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    process = start_demo(root, "--seconds", "3")
    with ended(process):
        out, err = process.communicate(timeout=900)
    assert (process.returncode, err) == (0, "")
    assert "paid" in assert_ended_well(root, json.loads(out))


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_with_the_demo_however_that_ends(tmp_path: Path, number: signal.Signals) -> None:
    root = tmp_path / "demo"
    process = start_demo(root, "--seconds", "600")
    with ended(process):
        wait_until(lambda: (root / "lake" / "silver" / "shop" / "orders").exists(), 300)
        process.send_signal(number)
        out, err = process.communicate(timeout=70)
    assert err == ""
    if number == signal.SIGTERM:
        told = json.loads(out)
        assert told["stopped"]
        assert process.returncode == (0 if told["ok"] else 1)
    wait_until(lambda: not is_running(root / "server"), 120)


@pytest.mark.quick
@pytest.mark.postgres
def test_the_load_counts_the_rows_that_the_server_changed(database: Database) -> None:
    with database.connect() as connection:
        create_shop(connection)
        load = Load(connection)
        load.open_shop()
        load.run(0, threading.Event())
        assert load.has_minimum
        before = load.close_shop()
        assert load.lag_of(before) == (0.0, 0)
        assert load.lag_of(LSN(before - 1))[1] == 1
        for table in TABLES:
            assert database.run(f"SELECT count(*) FROM shop.{table}") == [(load.rows[table],)]
        # out of line, and so not sent unless it changed
        sizes = (
            "SELECT min(length(description)), pg_relation_size(reltoastrelid) FROM shop.products, pg_class"
        )
        [(least, size)] = database.run(
            f"{sizes} WHERE oid = 'shop.products'::regclass GROUP BY reltoastrelid"
        )
        assert least > 2048
        assert size > 300 * least


@pytest.mark.quick
def test_a_folder_that_no_demo_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    with pytest.raises(ConfigError, match="not the folder of an earlier demo"):
        run_demo(str(tmp_path), 1, as_json=True, stop=threading.Event())
    assert (tmp_path / "lake").exists()


def test_a_folder_where_a_demo_runs_is_refused(tmp_path: Path) -> None:
    with (tmp_path / ".pgdelta-demo").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="Another demo is running"):
            run_demo(str(tmp_path), 1, as_json=True, stop=threading.Event())
