"""A table that is emptied while it is compared: what the snapshot saw of it was read before."""

from typing import Any

import pytest

from pipeline.config.tables import TableRule
from pipeline.metadata.reconciliations import EQUAL, UNPROVEN
from pipeline.silver.compare.clone import PinnedVersion, SnapshotCloner, TableAtSnapshot
from pipeline.verify import reconcile
from pipeline.verify.reconcile import run_reconcile
from tests.support.injuries import injure
from tests.support.pipelines import MakePipeline, Pipeline


@pytest.fixture
def emptied(make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Give a pipeline whose table is emptied as soon as silver is brought to the snapshot."""
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.catch_up("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 20) i")
    bring = SnapshotCloner.table_at_snapshot

    def empty(
        self: SnapshotCloner, pinned: PinnedVersion, rule: TableRule, **options: Any
    ) -> TableAtSnapshot:
        pipeline.run("TRUNCATE t")
        return bring(self, pinned, rule, **options)

    monkeypatch.setattr(SnapshotCloner, "table_at_snapshot", empty)
    monkeypatch.setattr(reconcile, "_ATTEMPTS", 1)
    return pipeline


@pytest.mark.promise("reconcile")
def test_a_table_that_is_emptied_meanwhile_is_compared(emptied: Pipeline) -> None:
    emptied.run("UPDATE t SET v = 'changed' WHERE id = 1")
    (found,) = run_reconcile(emptied.config, runs=True).verdicts
    assert (found.verdict, found.source_rows, found.pending) == (EQUAL, 20, 1)


@pytest.mark.spark
@pytest.mark.slow
def test_differing_rows_of_an_emptied_table_are_not_guessed(emptied: Pipeline) -> None:
    injure(emptied, "t", "UPDATE {} SET v = 'wrong' WHERE id = 2")
    (found,) = run_reconcile(emptied.config, runs=True).verdicts
    assert found.verdict == UNPROVEN
    assert "truncated" in (found.sentence or "")
