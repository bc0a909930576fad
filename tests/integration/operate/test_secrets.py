"""A planted password is in nothing that a run leaves behind, says, or shows to other users of the machine.

The job runs as users run it, with `--debug`, copies, captures and applies, and loses its server in the end.
The role has the grants of docs/operations/security.md. Some columns are called as the variables that hold
the password: Spark would put the password in the place of such a name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from pipeline.silver.write.writer_choice import WriterSetting
from tests.support.paths import ROOT
from tests.support.pipelines import BOTH_WRITERS
from tests.support.servers import Database, MakeServer

SECRET = "pl@nted:/?# $x %s3cr3t"
NEEDLE = b"s3cr3t"
VARIABLES = {"PGPASSWORD": SECRET, "SHOP_PASSWORD": SECRET, "SHOP_ESCAPED": quote(SECRET, safe="")}
NAME = "${env:PGPASSWORD}"
CONFIG = """\
pipeline: shop
source:
  conninfo: "host=127.0.0.1 port={port} dbname=postgres user=keeper password='${{SHOP_PASSWORD}}'"
  copying:
    conninfo: "postgresql://keeper:${{SHOP_ESCAPED}}@127.0.0.1:{port}/postgres"
storage:
  root: lake
silver:
  writer: {writer}
tables:
  - source: "sales.*"
"""


class ProcessList:
    """What every user of the machine can read of the running processes, polled repeatedly."""

    def __init__(self) -> None:
        self.lines: set[bytes] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ProcessList:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    self.lines.add((folder / "cmdline").read_bytes())
                except OSError:  # it has ended meanwhile
                    continue


def found_in(folder: Path, needle: bytes) -> list[str]:
    """Return the files that hold a text, in their names, as they are, or as their Parquet is read."""
    found = []
    for path in sorted(folder.rglob("*")):
        hits = needle in str(path.relative_to(folder)).encode()
        if path.is_file():
            hits |= needle in path.read_bytes()
            if path.suffix == ".parquet":
                hits |= needle in repr(pq.ParquetFile(path).read().to_pylist()).encode()
        if hits:
            found.append(str(path.relative_to(folder)))
    return found


def wait_until(is_done: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    deadline = time.monotonic() + 600
    while not is_done():
        assert process.poll() is None, f"the job ended before {what}"
        assert time.monotonic() < deadline, f"600 s without {what}"
        time.sleep(0.1)


@pytest.mark.promise("no password in the lake")
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no /proc to read")
@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_a_planted_secret_is_nowhere(make_server: MakeServer, tmp_path: Path, writer: WriterSetting) -> None:
    server = make_server()
    database = Database.of(server)
    literal = SECRET.replace("'", "''")
    database.run(
        f"CREATE ROLE keeper LOGIN REPLICATION PASSWORD '{literal}'",
        "CREATE SCHEMA sales",
        f'CREATE TABLE sales."{NAME}" (id int PRIMARY KEY, "{NAME}" text, plain text)',
        "GRANT USAGE ON SCHEMA sales TO keeper",
        "GRANT SELECT ON ALL TABLES IN SCHEMA sales TO keeper",
        f"INSERT INTO sales.\"{NAME}\" SELECT g, '{NAME}', 'canary-copied' FROM generate_series(1, 3) g",
        "CREATE PUBLICATION shop FOR ALL TABLES",
    )
    hba = server.data / "pg_hba.conf"
    hba.write_text("host all keeper all scram-sha-256\n" + hba.read_text())
    database.run("SELECT pg_reload_conf()")
    (tmp_path / "pipeline.yaml").write_text(CONFIG.format(port=server.port, writer=writer))
    (tmp_path / "events").mkdir()
    logs = tmp_path / "lake" / "silver" / "sales" / "$%7Benv%3APGPASSWORD%7D" / "_delta_log"

    def silver_says(text: str) -> bool:
        return any(text in path.read_text() for path in logs.glob("*.json"))

    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); "
        "from pipeline.cli.start import main; sys.exit(main())"
    )
    arguments = ["run", "--config", "pipeline.yaml", "--trigger", "continuous", "--debug"]
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": f"file://{tmp_path}/events",
        # for queries that run once
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    submit = " ".join(f"--conf {key}={value}" for key, value in settings.items())
    submit += ' --driver-java-options "-XX:TieredStopAtLevel=1"'
    environ = {
        **{key: value for key, value in os.environ.items() if "SPARK" not in key},
        **VARIABLES,
        "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
    }
    with ProcessList() as processes, (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(ROOT), *arguments],
            cwd=tmp_path,
            env=environ,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            # the statistics of data files have the least values
            wait_until(lambda: silver_says("canary-copied"), process, "the copy in silver")
            database.run(
                f'ALTER TABLE sales."{NAME}" ADD "${{env:SHOP_PASSWORD}}" text DEFAULT \'{NAME}\'',
                f'UPDATE sales."{NAME}" SET "{NAME}" = \'{NAME} too\' WHERE id = 1',
                f'UPDATE sales."{NAME}" SET id = 9 WHERE id = 2',
                f'DELETE FROM sales."{NAME}" WHERE id = 3',
                f"INSERT INTO sales.\"{NAME}\" VALUES (4, '{NAME}', 'canary-streamed', '{NAME}')",
            )
            wait_until(lambda: silver_says("canary-streamed"), process, "the changes in silver")
            assert silver_says("${env:SHOP_PASSWORD}")
            server.stop(mode="immediate")
            assert process.wait(90) == 1
        finally:
            process.kill()
            process.wait()
    said = (tmp_path / "output").read_bytes()
    # what is looked through is there, and the look finds what is there
    assert b"Traceback" in said
    assert b"\npgdelta: Lost the " in said
    assert any(b"--debug" in line for line in processes.lines)
    if writer == "spark":
        assert any(b"org.apache.spark.deploy.SparkSubmit" in line for line in processes.lines)
        assert [name for name in found_in(tmp_path, b"spark.eventLog.dir") if name.startswith("events/")]
    for canary in (b"canary-copied", b"canary-streamed"):
        folders = {name.split("/")[1] for name in found_in(tmp_path, canary)}
        assert {"bronze", "silver"} <= folders
    assert found_in(tmp_path, NEEDLE) == []
    assert [line for line in processes.lines if NEEDLE in line] == []
