"""Silver folders that go away, come back from an older copy, or hold another table, while apply runs.

What is true at the end of each: silver equals the source, or the table is held with a sentence. A table that
is said to be current never lacks rows.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.apply import applier, planner
from pipeline.bronze.log import Bronze
from pipeline.config.config import Silver
from pipeline.delta.table import Lake, LakeTable
from pipeline.metadata.manifests import Manifests
from pipeline.silver.write.table import SilverTable
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline, with_writer
from tests.support.running import applying
from tests.support.servers import Database
from tests.support.threads import wait_until

CREATE = "CREATE TABLE {0} (id int PRIMARY KEY, body text)"
FIRST = "INSERT INTO {0} SELECT i, 'before ' || i FROM generate_series(1, 200) i"
AFTER = "INSERT INTO {0} VALUES (1000 + {1}, 'after')"
TABLES = ("t", "other")


@pytest.fixture(params=["with a copy", pytest.param("from the beginning", marks=pytest.mark.slow)])
def shop(request: pytest.FixtureRequest, make_pipeline: MakePipeline, database: Database) -> Pipeline:
    """Give a pipeline of two tables that silver shows: with copies of their rows, or all from the stream."""
    is_copied = request.param == "with a copy"
    if is_copied:
        with database.connect() as source:
            for table in TABLES:
                source.execute(CREATE.format(table).encode())
                source.execute(FIRST.format(table).encode())
    shop = make_pipeline(create_publication="all", copy="initial" if is_copied else "never")
    if not is_copied:
        shop.ingest()
        shop.run(*(s.format(table) for table in TABLES for s in (CREATE, FIRST)))
    shop.catch_up()
    shop.catch_up(*(AFTER.format(table, 0) for table in TABLES))
    return shop


def is_shown(shop: Pipeline, table: str, is_behind: bool = False) -> bool:
    """Say whether the newest manifest has all of bronze, and has a table as current, or as behind."""
    lake = Lake(shop.root, shop.spark)
    manifest, captured = Manifests(lake).last(), Bronze(lake, shop.config.pipeline).captured_offset()
    entry = manifest and manifest.by_name.get(TableName("public", table))
    assert captured is not None
    return bool(manifest and entry and manifest.lsn == captured.lsn and entry.is_behind == is_behind)


def wait_until_shown(shop: Pipeline, table: str, is_behind: bool = False) -> None:
    """Wait until the newest manifest has all of bronze; say what it has where that takes too long."""
    deadline = time.monotonic() + 240
    while not is_shown(shop, table, is_behind):
        manifest = Manifests(Lake(shop.root, shop.spark)).last()
        assert time.monotonic() < deadline, f"{manifest} {shop.events(table)}"
        time.sleep(0.5)  # each look is a job of the same Spark


def remove(shop: Pipeline) -> None:
    shutil.rmtree(shop.path("silver", "public", "t"))


def put_back(shop: Pipeline) -> None:
    folder = shop.path("silver", "public", "t")
    shutil.rmtree(folder)
    shutil.copytree(shop.path("older"), folder)


def cover(shop: Pipeline) -> None:
    folder = shop.path("silver", "public", "t")
    shutil.rmtree(folder)
    shutil.copytree(shop.path("silver", "public", "other"), folder)


@contextmanager
def applying_despite(shop: Pipeline, harm: Callable[[Pipeline], None], is_restarted: bool) -> Iterator[None]:
    """Apply continuously, with the harm done before the run begins or once it has applied a change."""
    if is_restarted:
        harm(shop)
    with applying(shop):
        if not is_restarted:
            shop.ingest(AFTER.format("t", 11))
            wait_until_shown(shop, "t")
            harm(shop)
        yield


@pytest.mark.spark
@pytest.mark.promise("silver folders that lack rows")
@pytest.mark.parametrize(
    ("harm", "is_restarted"),
    [
        pytest.param(remove, False, marks=pytest.mark.slow),
        pytest.param(remove, True, marks=pytest.mark.slow),
        pytest.param(put_back, False, marks=pytest.mark.slow),
        (put_back, True),
    ],
)
def test_a_table_whose_folder_lacks_rows_is_built_again(
    shop: Pipeline, harm: Callable[[Pipeline], None], is_restarted: bool
) -> None:
    shutil.copytree(shop.path("silver", "public", "t"), shop.path("older"))
    shop.catch_up(AFTER.format("t", 10))
    with applying_despite(shop, harm, is_restarted):
        shop.ingest(AFTER.format("t", 12))
        wait_until_shown(shop, "t")
    shop.assert_equal(*TABLES)
    kinds = [kind for kind, sentence in shop.events("t") if "It is rebuilt from bronze." in sentence]
    assert kinds == ["evolved"]
    shop.catch_up(AFTER.format("t", 13))
    shop.assert_equal(*TABLES)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.promise("silver folders that lack rows")
@pytest.mark.parametrize("harm", [pytest.param(remove, marks=pytest.mark.slow), put_back])
def test_a_damaged_table_without_new_changes_is_found_and_rebuilt_too(
    shop: Pipeline, harm: Callable[[Pipeline], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "POLL_SECONDS", 0.5)
    monkeypatch.setattr(applier, "RETRY_SECONDS", 0.5)
    shutil.copytree(shop.path("silver", "public", "t"), shop.path("older"))
    shop.catch_up(AFTER.format("t", 10))
    with applying(shop):
        shop.ingest(AFTER.format("other", 10))
        wait_until_shown(shop, "other")
        harm(shop)
        wait_until(lambda: any("rebuilt from bronze" in sentence for _, sentence in shop.events("t")))
    shop.assert_follows(*TABLES)


@pytest.mark.spark
@pytest.mark.promise("silver folders that lack rows")
@pytest.mark.parametrize(
    "is_restarted",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["amid a run", "between runs"],
)
def test_a_folder_with_another_table_is_held_and_left_alone(shop: Pipeline, is_restarted: bool) -> None:
    with applying_despite(shop, cover, is_restarted):
        shop.ingest(AFTER.format("t", 12), AFTER.format("other", 12))
        wait_until_shown(shop, "t", is_behind=True)
    shop.assert_equal("other")
    held = [sentence for kind, sentence in shop.events("t") if kind == "held"]
    assert ["contains another table than the one that pgdelta wrote" in sentence for sentence in held] == [
        True
    ]
    ids = {row.id for row in shop.frame("silver", "public", "t").select("id").collect()}
    assert 1012 not in ids, "nothing was written to it"
    remove(shop)
    shop.assert_follows(*TABLES)


@pytest.mark.promise("silver folders that lack rows")
def test_a_folder_that_goes_away_at_the_moment_of_the_write_is_found(
    shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = SilverTable.apply
    harmed: list[bool] = []

    def harm_and_apply(table: SilverTable, *arguments: Any) -> Any:
        if table.name == TableName("public", "t") and not harmed:
            harmed.append(True)
            remove(shop)
        return apply(table, *arguments)

    monkeypatch.setattr(SilverTable, "apply", harm_and_apply)
    shop.ingest(AFTER.format("t", 10))
    shop.apply()
    assert harmed
    shop.assert_follows(*TABLES)


@pytest.mark.promise("silver folders that lack rows")
@pytest.mark.parametrize(
    ("writer", "method"),
    [pytest.param("spark", "append", marks=pytest.mark.slow), ("native", "commit")],
)
def test_an_append_to_a_deleted_table_does_not_create_it_without_old_rows(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, writer: WriterSetting, method: str
) -> None:
    pipeline = make_pipeline(create_publication="all", copy="never")
    pipeline = replace(pipeline, config=replace(pipeline.config, silver=Silver(writer=writer)))
    pipeline.ingest()
    pipeline.catch_up("CREATE TABLE t (body text)", "INSERT INTO t SELECT i FROM generate_series(1, 50) i")
    write = getattr(LakeTable, method)
    harmed: list[bool] = []

    def harm_and_write(table: LakeTable, *arguments: Any, **options: Any) -> Any:
        if table.path.endswith("public/t") and not harmed:
            harmed.append(True)
            remove(pipeline)
        return write(table, *arguments, **options)

    pipeline.ingest("INSERT INTO t VALUES ('after')")
    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, method, harm_and_write)
        pipeline.apply()
    assert harmed
    pipeline.assert_follows("t")


@pytest.mark.promise("copies that lost rows")
def test_a_rebuild_requires_all_rows_of_its_copy(make_pipeline: MakePipeline, database: Database) -> None:
    database.run(CREATE.format("t"), FIRST.format("t"))
    pipeline = make_pipeline(create_publication="all", copy="initial")
    pipeline.catch_up()
    DeltaTable(str(pipeline.path("bronze", "changes"))).delete("op = 'R' AND ordinal % 2 = 0")
    remove(pipeline)
    pipeline.ingest(AFTER.format("t", 1))
    summary = pipeline.apply()
    assert summary.exit_code(strict=False) == 1 or summary.tables[TableName("public", "t")].held
    assert not pipeline.path("silver", "public", "t", "_delta_log").exists()
    sentences = [sentence for kind, sentence in pipeline.events("t") if kind == "resync"]
    assert any("bronze has only 100 of the 200 rows" in sentence for sentence in sentences), sentences


@pytest.mark.slow
@pytest.mark.spark
def test_a_creation_by_spark_that_was_cut_off_is_repeated(make_pipeline: MakePipeline) -> None:
    pipeline = with_writer(make_pipeline(create_publication="all"), "spark")
    pipeline.ingest()
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    # what Delta makes before the first commit
    pipeline.path("silver", "public", "t", "_delta_log", "_staged_commits").mkdir(parents=True)
    pipeline.assert_follows("t")
