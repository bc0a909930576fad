"""Both jobs with a lake on an object store, without Spark."""

from __future__ import annotations

import pytest

from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.stores.lakes import StorePipeline

pytestmark = pytest.mark.postgres


def test_copies_and_changes_are_equal(store_pipeline: StorePipeline) -> None:
    store_pipeline.run(*ORDERS, *LINES, *LOG, *FILL)
    store_pipeline.catch_up()
    store_pipeline.assert_orders_equal()
    store_pipeline.run(*CHANGE)
    store_pipeline.catch_up()
    store_pipeline.assert_orders_equal()
    store_pipeline.run(
        "TRUNCATE lines", "ALTER TABLE orders ADD COLUMN more int", "UPDATE orders SET more = 1"
    )
    store_pipeline.catch_up()
    store_pipeline.assert_orders_equal()
    store_pipeline.assert_equal("orders", "id", "more")
