"""Both jobs with a lake on an object store, without Spark."""

from itertools import islice

import pytest

from pipeline.delta.table import Lake
from pipeline.key_ranges import KeyRange
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.stores.lakes import StorePipeline


@pytest.mark.slow
def test_copies_and_changes_are_equal(store_pipeline: StorePipeline) -> None:
    store_pipeline.catch_up(*ORDERS, *LINES, *LOG, *FILL)
    store_pipeline.assert_orders_equal()
    store_pipeline.catch_up(*CHANGE)
    store_pipeline.assert_orders_equal()
    store_pipeline.catch_up(
        "TRUNCATE lines", "ALTER TABLE orders ADD COLUMN more int", "UPDATE orders SET more = 1"
    )
    store_pipeline.assert_orders_equal()
    store_pipeline.assert_equal("orders", "id", "more")


def test_a_copy_made_again_of_all_or_some_keys_takes_the_place_of_the_rows(
    store_pipeline: StorePipeline,
) -> None:
    store_pipeline.catch_up(*ORDERS, *LINES, *LOG, *FILL, "ALTER TABLE orders ADD COLUMN more int DEFAULT 7")
    before = set(Lake(store_pipeline.config.storage).table("silver", "public", "orders").snapshot().files)
    run_resync(store_pipeline.config, ["public.orders"])
    store_pipeline.catch_up(*CHANGE, "UPDATE orders SET more = 1 WHERE id = 5")
    store_pipeline.lose_machine()
    store_pipeline.assert_orders_equal()
    store_pipeline.assert_equal("orders", "id", "more")
    table = Lake(store_pipeline.config.storage).table("silver", "public", "orders")
    assert before.isdisjoint(table.snapshot().files)
    assert run_rebuild(store_pipeline.config, ["public.orders"]).exit_code(strict=True) == 0
    store_pipeline.assert_orders_equal()
    store_pipeline.assert_equal("orders", "id", "more")
    assert not [each.name for each in store_pipeline.store.list("_pgdelta/rebuilds")]

    version = table.version()
    run_resync(store_pipeline.config, ["public.orders"], key_ranges=[KeyRange(("4",), ("15",))])
    store_pipeline.catch_up("UPDATE orders SET more = 2 WHERE id IN (5, 16)")
    store_pipeline.assert_orders_equal()
    store_pipeline.assert_equal("orders", "id", "more")
    made = islice(table.newest_commits(), table.version() - version)
    assert "Overwrite" in [each["operationParameters"].get("mode") for each in made]
