"""Partitions that come and go under their root, and settings that change: an event, a copy, equal rows.

No message carries these changes; what keeps all rows must cause no event. `test_partition_bounds.py` has the
bounds of each kind and the policies.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pipeline.metadata.catalog import CatalogTable
from tests.support.pipelines import BOTH_WRITERS, MakePipeline, Pipeline, with_writer
from tests.support.running import continuous
from tests.support.servers import Database, database_of_each
from tests.support.threads import wait_until

if TYPE_CHECKING:
    from pipeline.silver.write.writer_choice import WriterSetting

FILL = "INSERT INTO sales SELECT i, 'v' || i FROM generate_series({}, {}) i"

database = database_of_each(13)


@pytest.fixture
def sales(database: Database, make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline of a table with two filled partitions and an empty one, published by its root."""
    pipeline = auto(make_pipeline("public.sales", copy="initial"))
    pipeline.catch_up(
        "CREATE TABLE sales (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE s1 PARTITION OF sales FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE s2 PARTITION OF sales FOR VALUES FROM (100) TO (200)",
        "CREATE TABLE s9 PARTITION OF sales FOR VALUES FROM (900) TO (1000)",
        FILL.format(1, 150),
        f"CREATE PUBLICATION {database.name} FOR TABLE sales WITH (publish_via_partition_root)",
    )
    pipeline.catch_up(FILL.format(151, 160))
    pipeline.assert_equal("sales")
    assert resyncs(pipeline) == settled(pipeline) == []
    return pipeline


def auto(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with table copies after events, also of what was rewritten."""
    silver = replace(pipeline.config.silver, resync="auto", rewrites="event")
    return replace(pipeline, config=replace(pipeline.config, silver=silver))


def resyncs(pipeline: Pipeline, table: str = "sales") -> list[str]:
    if not pipeline.path("_pgdelta", "events").exists():
        return []
    return [sentence for kind, sentence in pipeline.events(table, rewrites=True) if kind == "resync"]


def settled(pipeline: Pipeline) -> list[str]:
    """Return the sentences about partitions whose range was settled."""
    if not pipeline.path("_pgdelta", "events").exists():
        return []
    ends = "Silver's rows within these bounds become those of the source."
    return [sentence for kind, sentence in pipeline.events("sales") if sentence.endswith(ends)]


def catch_up_twice(pipeline: Pipeline) -> None:
    """Record the event and request the copy, then copy."""
    pipeline.catch_up()
    pipeline.catch_up()


CHANGES = {
    "attach": (
        ["CREATE TABLE s3 (LIKE sales INCLUDING ALL)", "INSERT INTO s3 VALUES (250, 'attached')"],
        "ALTER TABLE sales ATTACH PARTITION s3 FOR VALUES FROM (200) TO (300)",
        "s3 was attached and may have had rows",
    ),
    "detach": ([], "ALTER TABLE sales DETACH PARTITION s1", "s1 was dropped, detached or made unlogged"),
    "drop": ([], "DROP TABLE s2", "s2 was dropped, detached or made unlogged"),
    "truncate": ([], "TRUNCATE s1", "s1 was truncated"),
}


@pytest.mark.sample(1)
@pytest.mark.promise("partitions and settings", "partitions that come and go")
@pytest.mark.parametrize("writer", BOTH_WRITERS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_no_message_carries_is_an_event_and_a_copy(
    sales: Pipeline, change: str, writer: WriterSetting
) -> None:
    pipeline = with_writer(sales, writer)
    before, statement, expected = CHANGES[change]
    pipeline.catch_up(*before, statement, "INSERT INTO sales VALUES (950, 'later')")
    [sentence] = settled(pipeline)
    assert expected in sentence
    pipeline.assert_equal("sales")
    pipeline.catch_up("UPDATE sales SET v = 'goes on' WHERE id % 7 = 0")
    pipeline.assert_equal("sales")
    assert (len(settled(pipeline)), resyncs(pipeline)) == (1, [])


@pytest.mark.promise("partitions and settings")
def test_truncated_and_filled_again_is_an_event(sales: Pipeline) -> None:
    sales.catch_up("TRUNCATE s1", FILL.format(50, 60))
    assert "s1 was truncated" in settled(sales)[0]
    sales.assert_equal("sales")


def test_created_and_attached_with_rows_in_one_transaction_is_an_event(sales: Pipeline) -> None:
    sales.transact(
        "CREATE TABLE s3 (LIKE sales INCLUDING ALL)",
        "INSERT INTO s3 VALUES (250, 'before it was a partition')",
        "ALTER TABLE sales ATTACH PARTITION s3 FOR VALUES FROM (200) TO (300)",
    )
    sales.catch_up()
    assert "s3 was attached" in settled(sales)[0]
    sales.assert_equal("sales")


@pytest.mark.promise("partitions and settings")
def test_detached_changed_and_attached_again_is_an_event(sales: Pipeline) -> None:
    sales.catch_up(
        "ALTER TABLE sales DETACH PARTITION s1",
        "DELETE FROM s1",
        "ALTER TABLE sales ATTACH PARTITION s1 FOR VALUES FROM (0) TO (100)",
    )
    assert "s1 was detached and attached again" in settled(sales)[0]
    sales.assert_equal("sales")


def test_partitions_below_a_partition_are_followed(sales: Pipeline) -> None:
    sales.catch_up(
        "CREATE TABLE s4 PARTITION OF sales FOR VALUES FROM (300) TO (400) PARTITION BY RANGE (id)",
        "CREATE TABLE s41 PARTITION OF s4 FOR VALUES FROM (300) TO (350)",
        FILL.format(300, 340),
    )
    sales.catch_up(FILL.format(341, 345), "VACUUM FULL s41")
    assert resyncs(sales) == []
    sales.assert_equal("sales")
    sales.catch_up(
        "ALTER TABLE sales ADD COLUMN added text DEFAULT 'it''s' NOT NULL",
        "ALTER TABLE sales ALTER added DROP NOT NULL, ALTER added DROP DEFAULT",
        FILL.format(346, 348),
    )
    sales.assert_equal("sales")  # earlier rows have the default, which only the partitions have
    sales.catch_up("TRUNCATE s4")
    assert "s41 was truncated" in settled(sales)[0]
    sales.assert_equal("sales")


@pytest.mark.promise("partitions and settings")
def test_what_keeps_the_rows_causes_no_event(sales: Pipeline) -> None:
    role = f"owner_{sales.database.name}"
    sales.catch_up(
        "VACUUM FULL s1",
        "CLUSTER s2 USING s2_pkey",
        f"CREATE ROLE {role}",
        f"ALTER TABLE s1 OWNER TO {role}",
        "ALTER TABLE s2 RENAME TO s2_renamed",
        "CREATE INDEX ON sales (v)",
        "ANALYZE sales",
        "VACUUM FREEZE sales",
        # The pattern of daily partitions: created as such and filled; prepared and attached while empty.
        "CREATE TABLE s3 PARTITION OF sales FOR VALUES FROM (200) TO (300)",
        f"ALTER TABLE s3 OWNER TO {role}",
        FILL.format(200, 220),
        "CREATE TABLE s5 (LIKE sales INCLUDING ALL)",
        "ALTER TABLE sales ATTACH PARTITION s5 FOR VALUES FROM (500) TO (600)",
    )
    sales.catch_up(FILL.format(500, 510), "VACUUM FULL s1")
    assert resyncs(sales) == settled(sales) == []
    sales.assert_equal("sales")
    sales.run(f"REASSIGN OWNED BY {role} TO postgres", f"DROP ROLE {role}")


def test_a_truncate_of_the_root_is_published_and_causes_no_event(sales: Pipeline) -> None:
    sales.catch_up("TRUNCATE sales", FILL.format(1, 20))
    assert resyncs(sales) == []
    sales.assert_equal("sales")
    sales.catch_up("TRUNCATE sales")
    assert resyncs(sales) == []
    assert sales.frame("silver", "public", "sales").count() == 0


def test_a_partition_truncated_after_the_root_is_an_event(sales: Pipeline) -> None:
    sales.catch_up("TRUNCATE sales", FILL.format(1, 20), FILL.format(120, 130), "TRUNCATE s1")
    [sentence] = settled(sales)
    assert "s1 was truncated" in sentence
    assert "s2" not in sentence
    sales.assert_equal("sales")


def test_a_rewrite_that_may_have_been_a_truncate_is_an_event(sales: Pipeline) -> None:
    sales.catch_up("VACUUM FULL s9")  # without a row, it may have been truncated
    assert "s9 was truncated, or rewritten" in settled(sales)[0]
    sales.assert_equal("sales")


@pytest.mark.promise("partitions and settings")
def test_settings_that_changed_and_changed_back_are_an_event(sales: Pipeline) -> None:
    name = sales.config.source.publication
    operations = "insert, update, delete, truncate"
    sales.run(
        f"ALTER PUBLICATION {name} SET (publish = 'insert')",
        "DELETE FROM sales WHERE id < 20",
        f"ALTER PUBLICATION {name} SET (publish = '{operations}')",
    )
    catch_up_twice(sales)
    [sentence] = resyncs(sales)
    assert sentence.startswith("The settings or the owner of the publication")
    sales.assert_equal("sales")
    sales.run(f"COMMENT ON PUBLICATION {name} IS 'a comment'", "CREATE TABLE other (id int PRIMARY KEY)")
    sales.run(f"ALTER PUBLICATION {name} ADD TABLE other")
    catch_up_twice(sales)
    assert len(resyncs(sales)) == 1


def test_a_continuous_run_finds_a_detach_and_corrects_a_stale_session(
    sales: Pipeline,
) -> None:
    with continuous(sales) as running:
        sales.run("UPDATE sales SET v = 'seen' WHERE id = 1")
        wait_until(lambda: running.captured > 0)
        sales.run("ALTER TABLE sales DETACH PARTITION s1")
        wait_until(lambda: settled(sales))
        sales.run("UPDATE s1 SET v = 'not a row of sales' WHERE id = 1")
        threading.Event().wait(1)
    assert running.error is None
    sales.apply()
    catch_up_twice(sales)
    sales.run("INSERT INTO s1 VALUES (0, 'not a row of sales')")
    catch_up_twice(sales)
    sales.assert_equal("sales")


@pytest.mark.promise("partitions and settings")
def test_a_run_that_fails_before_the_record_finds_the_change_again(
    sales: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales.run("TRUNCATE s1")
    with monkeypatch.context() as patch:
        patch.setattr(CatalogTable, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        assert sales.ingest().exit_code(strict=False) == 1
    sales.catch_up("INSERT INTO sales VALUES (1, 'again')")
    sales.assert_equal("sales")
    assert set(settled(sales)) == {settled(sales)[0]}
