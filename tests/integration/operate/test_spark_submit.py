"""The jobs as a scheduler starts them: `spark-submit jobs/x.py --config …` and `python jobs/x.py …`.

Nothing else on the line, from a working directory that is not the checkout, and with a PATH that has Java and
the system's own commands only. Spark gives what a job says on stderr out on stdout: under `spark-submit` the
sentences are there.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.paths import ROOT
from tests.support.servers import Database

LAUNCHERS = {"spark-submit": Path(sys.executable).parent / "spark-submit", "python": Path(sys.executable)}
CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
storage:
  root: lake
"""

pytestmark = pytest.mark.postgres
by_python = pytest.mark.parametrize(
    "launcher", ["python", pytest.param("spark-submit", marks=pytest.mark.slow)]
)


def run_job(launcher: str, job: str, folder: Path, *arguments: str) -> tuple[int, list[str], list[str]]:
    """Run a job in `folder` and return its exit code, its closing lines, and its other output."""
    java = shutil.which("java")
    assert java is not None
    environ = {key: value for key, value in os.environ.items() if "SPARK" not in key and "PYTHON" not in key}
    environ.pop("COLUMNS", None)  # a scheduler has no terminal
    environ["PATH"] = os.pathsep.join([str(Path(java).parent), "/usr/bin", "/bin"])
    environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # short lives
    command = [str(LAUNCHERS[launcher]), str(ROOT / "jobs" / f"{job}.py"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    out, err = done.stdout.splitlines(), done.stderr.splitlines()
    # the JVM's own lines about a module that Spark asks for, and its options
    said = [line for line in err if not re.search("incubator|JDK_JAVA_OPTIONS", line)]
    if launcher == "spark-submit":
        assert said == []
        said = [line for line in out if line.startswith("pgdelta: ")]
        out = [line for line in out if line not in said]
    return done.returncode, out, said


def write_config(folder: Path, name: str, conninfo: str) -> str:
    """Write a configuration whose lake lies in the working directory, and return its name there."""
    (folder / "pipeline.yaml").write_text(CONFIG.format(name=name, conninfo=conninfo), encoding="utf-8")
    return "pipeline.yaml"


@pytest.mark.promise("jobs need nothing else")
def test_jobs_need_nothing_on_the_line(database: Database, tmp_path: Path) -> None:
    config = write_config(tmp_path, database.name, database.conninfo)
    database.run("CREATE TABLE orders (id int PRIMARY KEY, item text, price numeric(10,2), tags text[])")

    code, out, err = run_job("python", "ingest", tmp_path, "--config", config)
    copied = "copied public.orders"
    said = [line.partition(":")[0] for line in (*err, *out[:-3])]
    assert (code, said) == (0, [copied, copied])  # at the time, and in the end
    assert out[-3].startswith(f"ingest {database.name}: 0 changes")
    assert out[-1] == "pgdelta apply writes the copied rows to silver"

    database.run(
        "INSERT INTO orders SELECT g, 'item ' || g, g / 7.0, ARRAY['a', NULL] FROM generate_series(1, 500) g",
        "UPDATE orders SET id = id + 1000 WHERE id <= 10",
        "DELETE FROM orders WHERE id BETWEEN 20 AND 29",
    )
    code, out, err = run_job("python", "ingest", tmp_path, "--config", config, "--trigger", "available-now")
    assert (code, err) == (0, [])
    assert out[0].startswith(f"ingest {database.name}: 520 changes of 3 transactions")
    confirmed = (
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = current_database()"
    )
    assert (
        out[1]
        == f"bronze is complete up to {database.run(confirmed)[0][0]}, acknowledged to slot {database.name}"
    )

    code, out, err = run_job("spark-submit", "apply", tmp_path, "--config", config)
    assert (code, err) == (0, [])
    assert out[0].startswith(f"apply {database.name}: 520 changes to 1 table")
    with database.connect() as connection:
        oracle.assert_silver_equals_source(
            connection, None, str(tmp_path / "lake"), [TableName("public", "orders")]
        )


@by_python
def test_a_failure_is_one_sentence_and_exit_code_1(launcher: str, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        conninfo = f"host=127.0.0.1 port={closed.getsockname()[1]} dbname=shop user=shop"
        config = write_config(tmp_path, "shop", conninfo)
        code, out, err = run_job(launcher, "ingest", tmp_path, "--config", config)
    assert (code, out, len(err)) == (1, [], 1)
    assert err[0].startswith("pgdelta: ")
    assert "127.0.0.1" in err[0]


@by_python
def test_a_mistake_in_the_configuration_is_one_sentence_and_exit_code_2(
    launcher: str, tmp_path: Path
) -> None:
    (tmp_path / "pipeline.yaml").write_text("pipeline: shop\nstorrage: {}\n")
    code, out, err = run_job(launcher, "apply", tmp_path, "--config", "pipeline.yaml")
    assert (code, out, len(err)) == (2, [], 1)
    assert err[0].startswith("pgdelta: pipeline.yaml:2: ")
