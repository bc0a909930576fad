"""Several pipelines write one silver table at the same time, and none loses a row or another's."""

import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable

from pipeline.apply.applier import Applier
from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.delta.native_commit import read_commit
from pipeline.delta.table import LakeTable
from pipeline.ingest.job import run_ingest
from tests.support.many_sources import AlikeSteps, assert_equal
from tests.support.paths import ROOT
from tests.support.processes import in_own_session
from tests.support.servers import Database
from tests.support.workload.tables import create_schema
from tests.support.workload.transactions import run_workload

SEED = 20_265
TABLES = ("documents", "journal", "items")
# captures and applies what is committed, until a file appears
LOOP = """
import pickle, sys
from pathlib import Path
from pipeline.apply.applier import Applier
from pipeline.ingest.job import run_ingest
config, end = pickle.loads(bytes.fromhex(sys.argv[1])), Path(sys.argv[2])
applier = Applier(None, config)
while not end.exists():
    run_ingest(config)
    summary = applier.apply_pending()
    assert summary.exit_code(strict=True) == 0, summary.tables
"""


@pytest.fixture
def shards(database: Database, tmp_path: Path) -> list[Config]:
    """Give two pipelines of one server with a folder of shared tables."""
    return [shard_of(database, tmp_path, name) for name in ("a", "b")]


def shard_of(database: Database, folder: Path, name: str, *, lake: str = "") -> Config:
    names = {"slot": f"{database.name}_{name}", "publication": f"{database.name}_{name}"}
    root = str(folder / f"lake_{lake or name}")
    config = database.config(root=root, create_publication="all", copy="never", **names)
    silver = replace(config.silver, shared_root=str(folder / "shared"))
    rules = tuple(TableRule(f"{name}_*.{table}", target="{table}") for table in TABLES)
    return replace(config, pipeline=f"shop-{name}", silver=silver, tables=rules)


@pytest.mark.promise("shared tables")
def test_two_processes_write_one_table(database: Database, shards: Sequence[Config], tmp_path: Path) -> None:
    print(f"PGDELTA_SEED={SEED}")
    rng = Random(SEED)
    end, shared = tmp_path / "end", tmp_path / "shared" / "documents"
    for config in shards:
        run_ingest(config)
    with database.connect() as source, ExitStack() as stack:
        schemas = {
            config.pipeline: [create_schema(source, rng, name=f"{name}_0")]
            for config, name in zip(shards, ("a", "b"), strict=True)
        }
        running = {c.pipeline: stack.enter_context(started(c, end)) for c in shards}
        victims = [shards[0], shards[1]]
        deadline = time.monotonic() + 600
        # they write at the same time, not one after the other
        while victims or sum(turns_of(shared)) < 5:
            assert time.monotonic() < deadline, turns_of(shared)
            for each in (schema for of in schemas.values() for schema in of):
                run_workload(source, rng, 1, schema=each, steps=AlikeSteps)
            if victims and len(turns_of(shared)) > 3 * (3 - len(victims)):
                victim = victims.pop()
                running[victim.pipeline].kill()
                running[victim.pipeline].wait()
                running[victim.pipeline] = stack.enter_context(started(victim, end))
            time.sleep(0.2)
        end.touch()
        for process in running.values():
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, output
        for config in shards:
            run_ingest(config)
            assert Applier(None, config).apply_pending().exit_code(strict=True) == 0
            assert_equal(source, config, schemas[config.pipeline], TABLES)


def started(config: Config, end: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-c", LOOP, pickle.dumps(config).hex(), str(end)]
    return in_own_session(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def turns_of(table: Path) -> list[bool]:
    """Return for each commit of rows to a shared table but the first whether another pipeline made it."""
    return [before != after for before, after in pairwise(writers_of(table))]


def writers_of(table: Path) -> Iterator[str]:
    """Yield the pipeline of each commit of rows to a shared table, as its transaction ids say."""
    for version in range(LakeTable(str(table)).version() + 1):
        for action in read_commit(table / "_delta_log", version) or ():
            if "txn" in action:
                yield action["txn"]["appId"].split(":")[1]


@pytest.mark.promise("shared tables")
def test_a_pipeline_has_one_lake(database: Database, shards: Sequence[Config], tmp_path: Path) -> None:
    first = shards[0]
    run_ingest(first)
    other = shard_of(database, tmp_path, "a", lake="other")
    other = replace(other, source=replace(other.source, slot=f"{first.source.slot}_other"))
    run_ingest(other)
    with database.connect() as source:
        source.execute("CREATE SCHEMA a_1")
        source.execute("CREATE TABLE a_1.items (id int PRIMARY KEY)")
        source.execute("INSERT INTO a_1.items VALUES (1)")
        for config in (first, other):
            run_ingest(config)
        assert Applier(None, first).apply_pending().exit_code(strict=True) == 0
        summary = Applier(None, other).apply_pending()
        [state] = summary.tables.values()
        assert "another lake whose pipeline is named shop-a too" in (state.failure or "")
        assert summary.exit_code(strict=False) == 1
        table = DeltaTable(str(tmp_path / "shared" / "items"))
        assert table.to_pyarrow_table().to_pylist()[0]["_source"] == "shop-a.a_1"
        assert table.to_pyarrow_table().num_rows == 1
