"""The stored lake of each release is opened, continued and reconciled by this one."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pipeline.apply.job import run_apply
from pipeline.config.config import Config
from pipeline.ingest.job import run_ingest
from pipeline.metadata.reconciliations import EQUAL, UNPROVEN
from pipeline.report.status import read_status
from pipeline.table_name import TableName
from pipeline.verify.audit import run_audit
from pipeline.verify.reconcile import run_reconcile
from tests.support import oracle
from tests.support.jobs import Load
from tests.support.modes.oracle import assert_equals_model
from tests.support.paths import ROOT
from tests.support.pipelines import MakePipeline, with_writer
from tests.support.processes import in_own_session
from tests.support.release_lakes import ARCHIVES, ReleaseLake
from tests.support.running import CONFIG
from tests.support.seeds import seed_of_run
from tests.support.servers import Database
from tests.support.workload.tables import create_schema

pytestmark = pytest.mark.postgres
MIRRORS = ("customers", "orders", "lines", "visits")
MODES = {"sessions": "soft_delete", "prices": "history", "journal": "append"}
HELD = "readings"
BATCHES = 15  # of each run under load
CHANGES = (
    "UPDATE customers SET remark = 'of this release', id = id + 50000 WHERE id BETWEEN 70 AND 75",
    "ALTER TABLE customers RENAME name TO title",
    "INSERT INTO customers (id, title, late) VALUES (900, 'new', 'too')",
    "DELETE FROM orders WHERE id > 100000",
    "ALTER TABLE orders ADD COLUMN checked bool DEFAULT true",
    "UPDATE orders SET quantity = quantity + 6000000000 WHERE line = 1",
    "DELETE FROM lines WHERE ctid = (SELECT min(ctid) FROM lines)",
    "UPDATE prices SET amount = amount + 0.25 WHERE id < 10",
    "DELETE FROM prices WHERE id = 11",
    "INSERT INTO prices VALUES (36, 1, '2026-03-01')",
    "DELETE FROM sessions WHERE who LIKE 'who 1%'",
    "INSERT INTO sessions SELECT md5(g::text)::uuid, 'back', NULL FROM generate_series(5, 15, 10) g",
    "DELETE FROM journal WHERE id = 300",
    "UPDATE readings SET value = -value WHERE id > 20",
    "INSERT INTO visits VALUES (2, '2026-01-03', 'january')",
    "CREATE TABLE added (id int PRIMARY KEY, v text)",
    "INSERT INTO added VALUES (1, 'one')",
)


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> ReleaseLake:
    return ReleaseLake.unpack(request.param, tmp_path / "release")


@pytest.fixture
def source(lake: ReleaseLake, tmp_path: Path) -> Iterator[Database]:
    server = lake.start_server(tmp_path / "server")
    yield lake.make_source(server)
    server.stop()


def assert_equal(config: Config, source: Database, *mirrors: str) -> None:
    """Assert that all tables are as their modes say, and some as the source is."""
    root = config.storage.root
    with source.connect() as connection:
        names = [TableName("public", name) for name in mirrors]
        oracle.assert_silver_equals_source(connection, None, root, names, ignore_left_columns=True)
        for name, mode in MODES.items():
            assert_equals_model(connection, root, config.pipeline, mode, TableName("public", name))
    oracle.bronze_has_no_duplicates(None, root)


def states(config: Config) -> dict[str, str]:
    return {each.name.table: each.state for each in read_status(config).tables}


@pytest.mark.quick
@pytest.mark.promise("lakes of earlier releases")
def test_a_lake_of_a_release_is_continued(lake: ReleaseLake, source: Database) -> None:
    config = lake.config(source)
    assert run_apply(config).exit_code(strict=False) == 0
    assert_equal(config, source, *MIRRORS)
    assert states(config)[HELD] == "refused"

    rules = [replace(rule, misfits={}) if rule.misfits else rule for rule in config.tables]
    config = replace(config, tables=tuple(rules))
    source.run(*CHANGES)
    assert run_ingest(config).exit_code(strict=True) == 0
    assert run_apply(config).exit_code(strict=True) == 0
    assert_equal(config, source, *MIRRORS, HELD, "added")
    assert set(states(config).values()) == {"current"}
    found = {each.name.table: each.verdict for each in run_reconcile(config, runs=True).verdicts}
    assert found.pop("journal") == UNPROVEN  # a log of changes, which has a model
    assert set(found) == {*MIRRORS, *MODES, HELD, "added"} - {"journal"}
    assert set(found.values()) == {EQUAL}
    assert run_audit(config).exit_code(strict=True) == 0


@pytest.mark.slow
@pytest.mark.promise("lakes of earlier releases")
def test_releases_take_turns_on_a_lake_under_load(
    lake: ReleaseLake, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    """Each run is a process of a release's own code, which a signal ends in the middle of the load."""
    released = lake.checkout(tmp_path / "released")
    seed = seed_of_run()
    life = make_pipeline("load.*", copy="initial", create_publication="all")
    schema = create_schema(life.source, Random(seed), name="load")
    file = tmp_path / "continued.yaml"
    text = CONFIG.format(name=life.database.name, conninfo=life.database.conninfo, root=life.root)
    text = text.replace("copy: never", "copy: initial")
    file.write_text(text + "silver:\n  writer: native\ntables:\n  - source: load.*\n")
    load = Load(life.database, schema, Random(seed + 1))
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        for code in (released, ROOT, released, ROOT):
            run_for_a_while(code, file, life.path("_pgdelta", "manifests", "_delta_log"))
    finally:
        load.stop.set()
        thread.join()
    assert load.error is None
    life = with_writer(life, "native")
    life.catch_up()
    print(f"PGDELTA_SEED={seed}: {load.transactions} transactions of the load")
    oracle.assert_silver_equals_source(life.source, None, life.root, schema.names)
    oracle.bronze_has_no_duplicates(None, life.root)
    assert {each.verdict for each in run_reconcile(life.config, runs=True).verdicts} == {EQUAL}
    assert run_audit(life.config).exit_code(strict=True) == 0


def run_for_a_while(code: Path, config: Path, log: Path) -> None:
    """Run both jobs by the code in a folder until they have applied some batches, and stop them."""

    def batches() -> int:
        return max((int(each.stem) for each in log.glob("0*.json") if each.stem.isdigit()), default=0)

    command = [
        sys.executable,
        "-m",
        "pipeline.cli",
        "run",
        "--trigger",
        "continuous",
        "--config",
        str(config),
    ]
    environ = {key: value for key, value in os.environ.items() if "SPARK" not in key}
    environ["PYTHONPATH"] = str(code)
    begun = batches()
    with in_own_session(command, cwd=code, env=environ, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        deadline = time.monotonic() + 300
        while batches() < begun + BATCHES:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.stderr.read()
