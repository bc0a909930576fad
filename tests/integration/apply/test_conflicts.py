"""Foreign commits rewrite a silver table's files during a write: it is retried a few times."""

from typing import Any

import pytest
from delta.exceptions import ConcurrentAppendException, ConcurrentTransactionException

from pipeline import crash_steps
from pipeline.apply.applier import Applier
from pipeline.crash_steps import CrashStep
from pipeline.table_name import TableName
from tests.support.pipelines import Pipeline, succeeded

pytestmark = pytest.mark.spark


class Outrun:
    """Lets the next writes of silver tables fail, after what another writer does."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int, error: type[Exception], *first: Any) -> None:
        self.count = count

        def fail(step: CrashStep, moment: str) -> None:
            if (step, moment) == (CrashStep.WRITE_TABLE, "before") and self.count:
                self.count -= 1
                for act in first:
                    act()
                raise error("[DELTA_CONCURRENT_APPEND] files were added")

        patch.setattr(crash_steps, "observer", fail)


@pytest.fixture
def outrun(pipeline: Pipeline) -> Pipeline:
    """Give a pipeline whose table t has an update, a renamed column and an insert to come."""
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.catch_up("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 20) g")
    pipeline.ingest(
        "UPDATE t SET v = 'new' WHERE id < 5",
        "ALTER TABLE t RENAME v TO w",
        "INSERT INTO t VALUES (30, 'last')",
    )
    return pipeline


def optimize(pipeline: Pipeline) -> None:
    """Rewrite the table's files, as a foreign OPTIMIZE may at any time."""
    path = pipeline.path("silver", "public", "t")
    pipeline.session.sql(f"OPTIMIZE delta.`{path}`").collect()


def test_a_table_that_was_optimized_meanwhile_is_written_again(
    outrun: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    Outrun(monkeypatch, 1, ConcurrentAppendException, lambda: optimize(outrun))
    succeeded(Applier(outrun.spark, outrun.config).apply_pending())
    outrun.assert_equal("t")


@pytest.mark.slow
def test_a_table_with_a_conflict_in_each_attempt_fails_and_continues_later(
    outrun: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    outrunning = Outrun(monkeypatch, 4, ConcurrentAppendException)
    applier = Applier(outrun.spark, outrun.config)
    summary = applier.apply_pending()
    assert outrunning.count == 0
    failure = summary.tables[TableName("public", "t")].failure
    assert failure is not None
    assert failure.startswith(
        "Foreign commits (OPTIMIZE, ALTER TABLE, …) changed the silver table during each of 4 attempts"
    )
    assert summary.exit_code(strict=False) == 1
    assert applier.apply_pending().exit_code(strict=True) == 0
    outrun.assert_equal("t")


def test_another_apply_is_not_raced(outrun: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    outrunning = Outrun(monkeypatch, 2, ConcurrentTransactionException)
    summary = Applier(outrun.spark, outrun.config).apply_pending()
    assert outrunning.count == 1
    assert str(summary.tables[TableName("public", "t")].failure).startswith("Another apply wrote the table")


@pytest.mark.slow
def test_a_foreign_delete_during_the_write_fails_the_table_and_is_named(
    outrun: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = outrun.path("silver", "public", "t")

    def delete() -> None:
        outrun.session.sql(f"DELETE FROM delta.`{path}` WHERE id = 7").collect()

    Outrun(monkeypatch, 1, ConcurrentAppendException, delete)
    summary = Applier(outrun.spark, outrun.config).apply_pending()
    failure = str(summary.tables[TableName("public", "t")].failure)
    assert "A foreign commit (DELETE at version" in failure
