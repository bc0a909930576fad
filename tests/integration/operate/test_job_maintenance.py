"""Jobs maintain their tables while they write them: the same rows, few files, and no run that fails."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from pipeline.delta.checkpoints import write_checkpoint
from pipeline.delta.table import Lake
from pipeline.metadata.maintenance import Maintained, MaintenanceTable
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.verify.audit import run_audit
from tests.support.pipelines import BOTH_WRITERS, MakePipeline, Pipeline, with_writer

CHANGES = ("bronze", "changes")
SILVER = ("silver", "public", "t")


@pytest.fixture
def shop(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline that maintains each table after five commits."""
    shop = make_pipeline(create_publication="all")
    rules = replace(shop.config.maintenance, small_files=5, every=0)
    shop = replace(shop, config=replace(shop.config, maintenance=rules))
    shop.ingest()
    shop.run("CREATE TABLE t (id int PRIMARY KEY, body text)")
    shop.catch_up("INSERT INTO t SELECT n, 'x' FROM generate_series(1, 50) AS n")
    return shop


def recorded(shop: Pipeline) -> dict[str, Maintained]:
    return dict(MaintenanceTable(Lake(shop.root)).read())


def assert_sound(shop: Pipeline) -> None:
    shop.assert_equal("t")
    assert run_audit(shop.config).findings == ()


def edits(number: int) -> tuple[str, str]:
    return f"INSERT INTO t VALUES ({1000 + number}, 'new')", f"UPDATE t SET body = 'u{number}' WHERE id < 9"


@pytest.mark.promise("maintenance by jobs")
@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_scheduled_runs_keep_few_files(shop: Pipeline, writer: WriterSetting) -> None:
    shop = with_writer(shop, writer)
    captured = applied = 0
    for number in range(8):
        captured += shop.ingest(*edits(number)).maintenance.tables
        applied += shop.apply().maintenance.tables
    assert captured > 0
    assert applied > 0
    found = recorded(shop)
    assert {"bronze/changes", "_pgdelta/manifests"} <= found.keys()
    assert not any(row.is_failed for row in found.values())
    assert Lake(shop.root).table(*CHANGES).snapshot().file_count < 7
    assert Lake(shop.root).table(*SILVER).snapshot().file_count < 7
    assert_sound(shop)


@pytest.mark.promise("maintenance by jobs")
def test_continuous_runs_maintain_what_they_write(shop: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.maintenance.background._CHECK_SECONDS", 0.2)
    stop = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        capturing = pool.submit(shop.ingest, trigger="continuous", stop=stop)
        applying = pool.submit(shop.apply, trigger="continuous", stop=stop)
        try:
            end, number = time.monotonic() + 600, 0
            while time.monotonic() < end and not (capturing.done() or applying.done()):
                shop.run(*edits(number))
                number += 1
                time.sleep(0.8)
                done = recorded(shop)
                if number > 9 and {"bronze/changes", "public.t"} <= done.keys():
                    break
        finally:
            stop.set()
        captured, applied = capturing.result(), applying.result()
    assert captured.maintenance.tables > 0
    assert applied.maintenance.tables > 0
    assert not captured.maintenance.failures
    assert not applied.maintenance.failures
    assert applied.exit_code(strict=True) == 0, applied.lines()
    shop.catch_up()
    assert Lake(shop.root).table(*CHANGES).snapshot().file_count < number
    assert_sound(shop)


@pytest.mark.slow
@pytest.mark.spark
def test_apply_continues_when_the_version_of_its_query_has_left_the_log(shop: Pipeline) -> None:
    shop = replace(shop, starts_query=True)
    shop.catch_up(*edits(9))
    for number in range(3):
        shop.ingest(*edits(number))
    changes = Lake(shop.root).table(*CHANGES)
    write_checkpoint(changes.folder, changes.version())
    for path in (changes.folder / "_delta_log").glob("*.json"):
        if int(path.name[:20]) < changes.version():
            path.unlink()
    shop.run(*edits(4))
    assert shop.catch_up().exit_code(strict=True) == 0
    shop.run(*edits(5))
    assert shop.catch_up().exit_code(strict=True) == 0
    shop.assert_equal("t")


def test_the_log_of_every_own_table_is_short_from_birth(shop: Pipeline) -> None:
    shop.ingest(*edits(1))
    shop.apply(records_status=True)
    found = {}
    for folder in ("bronze", "_pgdelta"):
        for log in shop.path(folder).glob("*/_delta_log"):
            table = Lake(shop.root).table(folder, log.parent.name)
            found[f"{folder}/{log.parent.name}"] = table.snapshot().configuration
    assert {"bronze/changes", "bronze/relations", "_pgdelta/manifests", "_pgdelta/status"} <= found.keys()
    for name, properties in found.items():
        assert properties.get("pgdelta.logRetentionCommits") == "2000", name
        assert properties.get("delta.logRetentionDuration") == "interval 86400 seconds", name
    assert "pgdelta.logRetentionCommits" not in Lake(shop.root).table(*SILVER).snapshot().configuration
