"""Commands on a lake of this machine: no Spark and no JVM, and no package that takes long to import."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.bronze.copies import Copies
from pipeline.bronze.log import BronzeOffset
from pipeline.bronze.table_input import InputStart
from pipeline.delta.table import Lake
from pipeline.errors import LakeError
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from tests.support.native_lakes import NativeLake
from tests.support.paths import ROOT
from tests.support.processes import run_command

# what no command that answers needs: each takes as long to import as the command takes to read, or longer
_NEVER = (
    "pandas",
    "deltalake",
    "obstore",
    "prometheus_client",
    "pyarrow.dataset",
    "pipeline.bronze.columnar.decode",
    "pipeline.ingest.job",
    "pipeline.silver.write.file_committer",
    "pipeline.silver.write.native_target",
)
# nor a run with little to write, without a terminal
_RUN = ("pandas", "deltalake", "prometheus_client", "xml.etree.ElementTree", "rich")
_BINARY = "pipeline.protocol.binary.converters"
NOT_NEEDED = {
    "check": (*_NEVER, "duckdb", "pyarrow.compute"),
    "status": (*_NEVER, _BINARY, "psycopg", "asyncio", "pipeline.protocol.messages"),  # with --offline
    "plan": (*_NEVER, _BINARY),  # reads the names of the source's tables
    "as-of": (*_NEVER, _BINARY, "psycopg", "asyncio", "duckdb", "pipeline.bronze.log"),
    "audit": (*_NEVER, _BINARY, "psycopg", "asyncio"),
    "resync": (*_NEVER, _BINARY, "duckdb"),
    "maintain": ("pandas",),
    "optimize": ("pandas",),
    "apply": (*_RUN, "psycopg", "asyncio"),
}
QUIET = ("duckdb",)
"""What apply does not need either, if bronze has nothing new."""

# no program can be started, so no JVM either; Spark's packages cannot be imported
RUN = """
import sys
not_needed = sys.argv.pop(1).split(",")
for name in ("pyspark", "py4j", "delta"):
    sys.modules[name] = None
from pipeline.cli.main import main
code = main(sys.argv[1:])
sys.stdout.flush()
assert not sys.modules.keys() & set(not_needed), sys.modules.keys() & set(not_needed)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> NativeLake:
    found = NativeLake(tmp_path_factory.mktemp("without") / "lake", 5)
    found.insert(found.names[:2], 2000, 3)
    found.insert(found.names[1:3], 3000, 2)
    return found


def run(lake: NativeLake, *arguments: str, code: int = 0, also_not: tuple[str, ...] = ()) -> str:
    """Run a command where there is no Java; return what it prints."""
    config = str(lake.root.parent / f"{lake.root.name}.yaml")
    environment = {**os.environ, "PATH": "/nowhere"}
    for name in ("JAVA_HOME", "COLUMNS"):
        environment.pop(name, None)
    not_needed = ",".join((*NOT_NEEDED[arguments[0]], *also_not))
    command = [sys.executable, "-c", RUN, not_needed, *arguments, "--config", config]
    done = run_command(*command, code=code, cwd=ROOT, env=environment)
    return done.stdout


def as_json(lake: NativeLake, *arguments: str) -> Any:
    return json.loads(run(lake, *arguments, "--json"))


@pytest.mark.costly
def test_status(lake: NativeLake) -> None:
    found = as_json(lake, "status", "--offline")
    assert [table["state"] for table in found["tables"]] == ["current"] * 5
    assert found["captured"] == str(LSN(3008))
    inserts = {table["table"]: table["last_day"]["inserts"] for table in found["tables"]}
    assert inserts == {"t0000": 3, "t0001": 5, "t0002": 2, "t0003": 0, "t0004": 0}


@pytest.mark.costly
def test_status_of_one_table(lake: NativeLake) -> None:
    found = as_json(lake, "status", "public.t0001", "--offline")
    [table] = found["tables"]
    assert [column["name"] for column in table["columns"]] == ["id", "name", "_commit_lsn", "_commit_time"]
    assert table["columns"][0]["silver_type"] == "INT"


@pytest.mark.costly
def test_plan(lake: NativeLake) -> None:
    found = as_json(lake, "plan")
    assert {t["table"]: t["changes"]["I"] for t in found["tables"]} == {"t0000": 3, "t0001": 5, "t0002": 2}
    assert "MERGE INTO" in run(lake, "plan", "public.t0001", "--sql")


@pytest.mark.costly
def test_as_of(lake: NativeLake) -> None:
    found = as_json(lake, "as-of")
    assert [table["state"] for table in found["tables"]] == ["current"] * 5
    changed = as_json(lake, "as-of", "--since", found["cursor"])["tables"]
    assert [table["changed"] for table in changed] == [False] * 5
    changed = as_json(lake, "as-of", "--since", "0/0")["tables"]
    assert [(table["changed"], table["rows_changed"]) for table in changed] == [(True, 20)] * 5
    run(lake, "as-of", "--lsn", "0/1", code=1)


@pytest.mark.costly
def test_audit(lake: NativeLake) -> None:
    found = as_json(lake, "audit")
    assert found["whole"]
    assert (found["changes"], found["rows"]["complete_copies"]) == (10, 5)


@pytest.mark.costly
def test_apply(tmp_path: Path) -> None:
    lake = NativeLake(tmp_path / "lake", 2)
    lake.insert(lake.names, 2000, 2)
    assert run(lake, "apply").startswith("apply p: 4 changes to 2 tables;")
    assert run(lake, "apply", also_not=QUIET).startswith("apply p: 0 changes to 0 tables;")


def test_resync(lake: NativeLake) -> None:
    run(lake, "resync", "--table", "public.t0004")
    requests = Copies(Lake(str(lake.root))).read().open_requests
    assert [name for name in requests if name.table == "t0004"]


@pytest.mark.costly
def test_maintain(lake: NativeLake) -> None:
    planned = as_json(lake, "maintain", "--dry-run")
    assert planned["dry_run"]
    done = {table["table"]: table for table in as_json(lake, "maintain")["tables"]}
    assert {"bronze/changes", "_pgdelta/manifests", "public.t0000"} <= done.keys()
    assert not any(table["needs_spark"] or table["failure"] for table in done.values())
    assert as_json(lake, "audit")["whole"]


@pytest.mark.costly
@pytest.mark.promise("merged files")
def test_optimize(tmp_path: Path) -> None:
    lake = NativeLake(tmp_path / "lake", 2)
    for lsn in (2000, 3000):
        lake.insert(lake.names, lsn)
    tables = {table["table"]: table for table in as_json(lake, "optimize", "--vacuum")["tables"]}
    assert tables["bronze/changes"] == {
        "table": "bronze/changes",
        "added": 1,
        "removed": 2,
        "vacuumed": 0,
        "failure": None,
    }
    assert {"_pgdelta/manifests", "public.t0000", "public.t0001"} <= tables.keys()
    assert not any(table["failure"] for table in tables.values())
    count = len(tables)
    assert run(lake, "optimize").strip() == f"optimize p: {count} tables, {count} unchanged"
    assert as_json(lake, "audit")["whole"]


def test_check_and_schema(lake: NativeLake) -> None:
    assert "There is no Java on the PATH." in run(lake, "check", code=1)


def test_a_broken_log_is_reported_as_incomplete(tmp_path: Path) -> None:
    lake = NativeLake(tmp_path / "lake", 1)
    log = lake.bronze.changes.folder / "_delta_log"
    (log / f"{1:020d}.json").unlink()
    config = str(lake.root.parent / f"{lake.root.name}.yaml")
    command = [sys.executable, "-m", "pipeline.cli", "status", "--offline", "--config", config]
    done = run_command(*command, code=1, cwd=ROOT)
    assert "is not complete" in done.stderr


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_file_of_bronze_that_cannot_be_read_is_named(tmp_path: Path, is_damaged: bool) -> None:
    lake = NativeLake(tmp_path / "lake", 1)
    lake.insert(lake.names, 2000, 3)
    [file] = lake.bronze.changes.snapshot().files.keys() - set(lake.bronze.changes.snapshot(3).files)
    path = lake.bronze.changes.folder / file
    if is_damaged:
        content = bytearray(path.read_bytes())
        content[40:50] = b"0123456789"
        path.write_bytes(content)
    else:
        path.unlink()
    end = BronzeOffset(lake.bronze.changes.version(), LSN(2008))
    assert lake.bronze.survey(end, LSN(1008), {}) == {}
    why = lake.bronze.why_unread(lake.names[0], LSN(1008))
    assert re.match(rf"The file .*{file} .*is (damaged|missing)", why or "")
    assert lake.bronze.why_unread(lake.names[0], LSN(2008)) is None
    assert lake.bronze.why_unread(TableName("public", "other"), LSN(1008)) is None
    with pytest.raises(LakeError, match=rf"The file .*{file} .*is (damaged|missing)"):
        lake.bronze.survey_table(lake.names[0], InputStart(LSN(1008)), LSN(2008))
