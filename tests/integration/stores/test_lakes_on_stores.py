"""Both jobs and the commands without Spark: on HDFS, and on servers with Azure's and Google's protocols."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.jobs import BronzeLog
from pipeline.config.storage import Storage
from pipeline.delta.locks import lock_apply
from pipeline.delta.store.lease import LeaseHeldError
from pipeline.delta.store.mirror import use_store
from pipeline.delta.store.open_store import open_store
from pipeline.delta.store.probe import probe
from pipeline.delta.table import Lake
from pipeline.operate.maintain import run_maintenance
from pipeline.operate.resync import run_resync
from pipeline.verify.audit import run_audit
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.pipelines import succeeded
from tests.support.races.stores import race
from tests.support.servers import Database
from tests.support.stores.cloud import AZURE
from tests.support.stores.hdfs import Hdfs
from tests.support.stores.lakes import StorePipeline

pytestmark = pytest.mark.postgres
HDFS = pytest.param("hdfs", marks=[pytest.mark.spark, pytest.mark.slow])
GOOGLE = pytest.param("google", marks=pytest.mark.slow)
on_stores = pytest.mark.parametrize("place", [AZURE, GOOGLE, HDFS], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Storage:
    """Give the root of a server, and its options."""
    if request.param != "hdfs":
        found: Storage = request.getfixturevalue(request.param)
        return found
    hdfs: Hdfs = request.getfixturevalue("hdfs")
    return Storage(hdfs.url)


@pytest.fixture
def pipeline(place: Storage, database: Database) -> Iterator[StorePipeline]:
    root = f"{place.root}/{database.name}"
    config = database.config(root=root, options=place.options, create_publication="all", copy="initial")
    with database.connect() as source:
        yield StorePipeline(replace(config, bronze=BronzeLog(retention=3600)), source)


@on_stores
def test_the_store_is_as_the_lake_needs_it(place: Storage, tmp_path: Path) -> None:
    store = open_store(f"{place.root}/requests", place.options)
    assert probe(store) is None
    lease = store.entry("lease")
    first = lease.create(b"1")
    assert first
    assert lease.create(b"2") is None
    assert lease.replace(b"2", first)
    assert lease.replace(b"3", first) is None
    (tmp_path / "here").write_bytes(bytes(range(256)) * 50_000)
    store.upload(tmp_path / "here", "data/a file, 100 %")
    store.copy("data/a file, 100 %", "data/copy")
    store.delete(["data/nothing", "data/a file, 100 %", "data/nothing else"])
    store.download("data/copy", tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    assert [each.name for each in store.list("data")] == ["data/copy"]
    assert [each.name.partition("/")[0] for each in store.list(after="data/copy")] == ["lease"]


@pytest.mark.promise("HDFS")
@pytest.mark.parametrize(
    "place", [AZURE, GOOGLE, pytest.param("hdfs", marks=pytest.mark.spark)], indirect=True
)
def test_copies_changes_and_repairs_are_equal(pipeline: StorePipeline) -> None:
    pipeline.catch_up(*ORDERS, *LINES, *LOG, *FILL)
    pipeline.assert_orders_equal()
    pipeline.run(*CHANGE)
    pipeline.lose_machine()
    pipeline.catch_up()
    pipeline.assert_orders_equal()
    pipeline.run("TRUNCATE lines", "ALTER TABLE orders ADD COLUMN more int", "UPDATE orders SET more = 1")
    pipeline.catch_up()
    pipeline.assert_orders_equal()
    pipeline.assert_equal("orders", "id", "more")
    run_resync(pipeline.config, ["public.orders"])
    pipeline.catch_up()
    for number in range(2):
        pipeline.catch_up(f"UPDATE orders SET more = {number} WHERE id % 4 = {number % 4}")
    later = time.time() + 40 * 86_400
    summary = succeeded(run_maintenance(pipeline.config, clock=lambda: later))
    assert summary.compaction.removed_rows > 0
    pipeline.lose_machine()
    pipeline.assert_orders_equal()
    assert run_audit(pipeline.config).exit_code(strict=True) == 0


@on_stores
def test_one_apply_at_a_time_holds_the_lease(pipeline: StorePipeline) -> None:
    pipeline.ingest(*ORDERS, *LINES, *LOG, *FILL)
    applier = Applier(None, pipeline.config)
    with lock_apply(applier.lake, pipeline.config.pipeline):
        with pytest.raises(LeaseHeldError), lock_apply(Lake(pipeline.config.storage), "another"):
            pass
        applier.apply_pending()
    pipeline.assert_orders_equal()


@on_stores
def test_no_commit_is_lost(place: Storage) -> None:
    storage = Storage(f"{place.root}/race", place.options)
    use_store(storage.root, storage.options)
    race(storage, 30)
