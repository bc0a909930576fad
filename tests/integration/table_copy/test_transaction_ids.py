"""A silver table records few transaction ids, however often it is copied again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipeline.delta.table import Lake
from pipeline.delta.txn import TxnId, TxnKind
from pipeline.operate.resync import run_resync
from tests.support.copies import FILL, ORDERS
from tests.support.pipelines import BOTH_WRITERS, MakePipeline, Pipeline, with_writer

if TYPE_CHECKING:
    from pipeline.silver.write.writer_choice import WriterSetting

pytestmark = pytest.mark.spark


def recorded(pipeline: Pipeline) -> dict[TxnKind, list[TxnId]]:
    """Return the transaction ids of the table `orders`, by kind."""
    found: dict[TxnKind, list[TxnId]] = {}
    for txn in TxnId.all_of(Lake(pipeline.config.storage.root).table("silver", "public", "orders").offsets()):
        found.setdefault(txn.kind, []).append(txn)
    return found


def copy_and_change(pipeline: Pipeline, number: int) -> None:
    """Copy the table, and change it before silver has the copy; the changes follow in the same batch."""
    pipeline.ingest()
    pipeline.catch_up(
        f"UPDATE orders SET n = n + {number} WHERE id % 7 = {number}",
        f"DELETE FROM orders WHERE id = {number}",
        f"UPDATE orders SET id = id + 5000 WHERE id = {100 + number}",
    )
    pipeline.assert_equal("orders")


@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_resyncs_that_changes_follow_leave_no_transaction_ids(
    make_pipeline: MakePipeline, writer: WriterSetting
) -> None:
    pipeline = with_writer(make_pipeline(copy="initial", create_publication="all"), writer)
    pipeline.run(*ORDERS, FILL.format(300))
    copy_and_change(pipeline, 1)
    first = recorded(pipeline)
    assert {kind: len(ids) for kind, ids in first.items()} == {TxnKind.OFFSET: 1, TxnKind.COPIED: 1}
    for number in range(2, 4):
        run_resync(pipeline.config, ["public.orders"])
        copy_and_change(pipeline, number)
        assert recorded(pipeline) == first
