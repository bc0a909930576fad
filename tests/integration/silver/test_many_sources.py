"""Several schemas have one silver table: its rows with a `_source` equal those of that source."""

import shutil
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.apply.applier import Applier
from pipeline.config.config import Config, Storage
from pipeline.config.jobs import Maintenance
from pipeline.config.tables import SilverMode, TableRule
from pipeline.delta import native_commit
from pipeline.delta.table import LakeTable
from pipeline.ingest.job import run_ingest
from pipeline.maintenance.maintainer import Maintainer
from pipeline.silver.write.shared_tables import SharedTable
from tests.support.many_sources import AlikeSteps, assert_equal
from tests.support.pipelines import Crash, crash, succeeded
from tests.support.seeds import printed_rng, seed_of_run
from tests.support.servers import Database
from tests.support.workload.tables import create_schema
from tests.support.workload.transactions import run_workload

FIXED_SEED = 20_264
DAY = 86_400


def tenants_of(config: Config) -> Config:
    return replace(config, tables=(TableRule("tenant_*.*", target="{table}"),))


@pytest.mark.promise("shared tables")
@pytest.mark.parametrize("copy", ["initial", pytest.param("never", marks=pytest.mark.slow)])
@pytest.mark.parametrize("cuts", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_tenants_share_their_tables(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: str, cuts: int
) -> None:
    seed = FIXED_SEED if cuts == 3 else seed_of_run()
    prove(database, tmp_path, monkeypatch, seed, copy=copy, cuts=cuts)


@pytest.mark.promise("shared tables")
def test_each_mode_has_the_rows_of_its_sources(database: Database, tmp_path: Path) -> None:
    modes: tuple[SilverMode, ...] = ("soft_delete", "history", "append")
    config = database.config(root=str(tmp_path / "lake"), create_publication="all")
    rules = (TableRule(f"tenant_*.{mode}", target="{table}", mode=mode) for mode in modes)
    config = replace(config, tables=tuple(rules))
    run_ingest(config)
    with database.connect() as source:
        for tenant in ("tenant_a", "tenant_b"):
            source.execute(f"CREATE SCHEMA {tenant}".encode())
            for mode in modes:
                source.execute(f"CREATE TABLE {tenant}.{mode} (id int PRIMARY KEY, v text)".encode())
        for number in range(3):
            for statement in (
                "INSERT INTO tenant_a.{0} SELECT i, 'a' FROM generate_series(1, 4) i",
                "INSERT INTO tenant_b.{0} SELECT i, 'b' FROM generate_series(1, 4) i",
                "UPDATE tenant_b.{0} SET v = 'c', id = 10 WHERE id = 1",
                "DELETE FROM tenant_a.{0} WHERE id = 2",
                "TRUNCATE tenant_b.{0}" if number == 1 else "DELETE FROM tenant_b.{0}",
                "DELETE FROM tenant_a.{0}",
            ):
                for mode in modes:
                    source.execute(statement.format(mode).encode())
            run_ingest(config)
            assert Applier(None, config).apply_pending().exit_code(strict=True) == 0
            for mode in modes:
                shared, wanted = tmp_path / "lake" / "silver" / mode, Counter[str]()
                for tenant in ("tenant_a", "tenant_b"):
                    name = f"{config.pipeline}.{tenant}"
                    own = table_rows(shared / "_parts" / name, _source=name)
                    assert own, (tenant, mode)
                    wanted += own
                assert table_rows(shared) == wanted, mode


def table_rows(path: Path, **added: str) -> Counter[str]:
    """Return the rows of a table as texts, each with columns that are added."""
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return Counter(repr(sorted((row | added).items())) for row in rows)


def begin(database: Database, root: Path) -> Config:
    """Return the configuration of a lake whose shared table has a row 'a'."""
    config = tenants_of(database.config(root=str(root), create_publication="all"))
    run_ingest(config)
    database.run(
        "CREATE SCHEMA tenant_a",
        "CREATE TABLE tenant_a.t (id int PRIMARY KEY, v text)",
        "INSERT INTO tenant_a.t VALUES (1, 'a')",
    )
    run_ingest(config)
    Applier(None, config).apply_pending()
    return config


def write_and_crash(database: Database, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the row be 'b' in the source's table only."""
    database.run("UPDATE tenant_a.t SET v = 'b'")
    run_ingest(config)
    with monkeypatch.context() as patch, suppress(Crash):
        calls = iter((lambda *_: None, lambda *_: crash()))  # before and after the write
        patch.setattr(SharedTable, "show", lambda *_: next(calls)())
        Applier(None, config).apply_pending()


def values(root: Path, table: str = "t") -> list[str]:
    return [*DeltaTable(root / "silver" / table).to_pyarrow_table().column("v").to_pylist()]


def test_a_lake_that_moved_shows_what_was_written_before(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = begin(database, tmp_path / "lake")
    write_and_crash(database, config, monkeypatch)
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    Applier(None, replace(config, storage=Storage(str(tmp_path / "copy")))).apply_pending()
    assert (values(tmp_path / "copy"), values(tmp_path / "lake")) == (["b"], ["a"])


def test_a_table_with_another_target_leaves_the_shared_table(database: Database, tmp_path: Path) -> None:
    shared = begin(database, tmp_path)
    database.run(
        "CREATE SCHEMA tenant_b",
        "CREATE TABLE tenant_b.t (id int PRIMARY KEY, v text)",
        "INSERT INTO tenant_b.t VALUES (1, 'b')",
    )
    run_ingest(shared)
    Applier(None, shared).apply_pending()
    assert sorted(values(tmp_path)) == ["a", "b"]
    moved = replace(shared, tables=(TableRule("tenant_a.t", target="own"), *shared.tables))
    Applier(None, moved).apply_pending()
    assert (values(tmp_path), values(tmp_path, "own")) == (["b"], ["a"])
    shutil.rmtree(tmp_path / f"silver/t/_parts/{shared.pipeline}.tenant_a")
    assert values(tmp_path) == ["b"]
    Applier(None, shared).apply_pending()
    assert sorted(values(tmp_path)) == ["a", "b"]


def test_maintenance_keeps_what_the_shared_table_showed_longest(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = begin(database, tmp_path)
    shared = DeltaTable(tmp_path / "silver/t")
    write_and_crash(database, config, monkeypatch)
    later = time.time() + 5 * DAY
    with monkeypatch.context() as patch:
        patch.setattr(native_commit, "now_milliseconds", lambda: int(later * 1000))
        Applier(None, config).apply_pending()
    own = LakeTable(f"file:{tmp_path}/silver/t/_parts/{config.pipeline}.tenant_a")
    maintainer = Maintainer(Maintenance(), lambda: False, lambda: later + 4 * DAY)
    done = maintainer.maintain("t", own, is_own=False)
    assert done is None or (done.failure, done.removed_files) == (None, 0)
    assert shared.to_pyarrow_table().column("v").to_pylist() == ["a"]
    maintainer = Maintainer(Maintenance(), lambda: False, lambda: later + 8 * DAY)
    done = maintainer.maintain("t", own, is_own=False)
    assert done is not None
    assert (done.failure, done.removed_files) == (None, 1)
    assert values(tmp_path) == ["b"]


def prove(
    database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, copy: str, cuts: int
) -> None:
    rng = printed_rng(seed)
    config = tenants_of(database.config(root=str(folder / "lake"), create_publication="all", copy=copy))
    if copy == "never":
        run_ingest(config)
    with database.connect() as source:
        source.execute("CREATE TABLE other (v int)")
        schemas = [create_schema(source, rng, name=f"tenant_{n}") for n in range(3)]
        for _ in range(cuts):
            for schema in schemas:
                run_workload(source, rng, rng.randint(0, 6), schema=schema, steps=AlikeSteps)
            run_ingest(config)
            source.execute("INSERT INTO other VALUES (1)")  # a copy is applied once the stream is past it
            run_ingest(config)
            if rng.random() < 0.6:
                interrupt(config, rng, monkeypatch)
            succeeded(Applier(None, config).apply_pending())
            assert_equal(source, config, schemas)


def interrupt(config: Config, rng: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an apply end before or after a commit to a shared table."""
    show, left = SharedTable.show, [rng.randint(0, 8)]

    def show_or_crash(self: SharedTable, *arguments: Any) -> str | None:
        left[0] -= 1
        if left[0] == 0 and rng.random() < 0.5:
            crash()
        reason = show(self, *arguments)
        return crash() if left[0] == 0 else reason

    with monkeypatch.context() as patch:
        patch.setattr(SharedTable, "show", show_or_crash)
        with suppress(Crash):
            Applier(None, config).apply_pending()
