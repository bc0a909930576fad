"""A short life of a lake, for what has to hold with several stores, writers or releases of Spark.

It has copies, changes, a column that is added and one whose type is widened, reads as of a commit,
reconciliation, resyncs, a rebuild and maintenance; silver is compared with the source after each.
"""

from collections import Counter
from typing import Any

from pipeline.key_ranges import KeyRange
from pipeline.metadata.reconciliations import DIFFERENT, EQUAL
from pipeline.operate.maintain import run_maintenance
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.silver.read.as_of import AsOf, as_of
from pipeline.table_name import TableName
from pipeline.verify.reconcile import run_reconcile
from tests.support.injuries import injure
from tests.support.pipelines import Pipeline

TABLES = ("orders", "lines")
SOURCE = (
    "CREATE TABLE orders (id int PRIMARY KEY, item text, price numeric(10,2), tags text[], big text, n int)",
    "ALTER TABLE orders ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE lines (n int, v text)",
    "ALTER TABLE lines REPLICA IDENTITY FULL",
    "INSERT INTO orders SELECT g, 'no ' || g, g / 7.0, ARRAY['a', NULL], repeat('x', 3000) || g, g"
    " FROM generate_series(1, 300) g",
    "INSERT INTO lines SELECT g % 40, 'v' || g % 3 FROM generate_series(1, 500) g",
)
CHANGES = (
    "UPDATE orders SET price = price + 1 WHERE id <= 120",
    "UPDATE orders SET id = id + 100000 WHERE id <= 20",
    "DELETE FROM orders WHERE id BETWEEN 201 AND 207",
    "ALTER TABLE orders ADD COLUMN note text DEFAULT 'none'",
    "INSERT INTO orders SELECT g, 'late', g, NULL, NULL, g, 'some' FROM generate_series(5000, 5100) g",
    "DELETE FROM lines WHERE n < 5",
    "INSERT INTO lines SELECT 3, 'again' FROM generate_series(1, 7)",
)
# in a batch after the one that adds a column: its default is looked up before the table is rewritten
WIDER = (
    "ALTER TABLE orders ALTER n TYPE bigint",
    "UPDATE orders SET n = 10000000000 WHERE id = 5000",
)


def live(pipeline: Pipeline) -> None:
    """Let a new pipeline with table copies live its life."""
    pipeline.catch_up(*SOURCE)
    before = as_of(pipeline.session, pipeline.root)
    rows = rows_of(before)
    pipeline.catch_up(*CHANGES)
    pipeline.catch_up(*WIDER)
    pipeline.assert_equal(*TABLES)
    assert rows_of(as_of(pipeline.session, pipeline.root)) != rows
    assert rows_of(as_of(pipeline.session, pipeline.root, lsn=before.lsn)) == rows

    injure(pipeline, "orders", "UPDATE {} SET item = 'wrong' WHERE id BETWEEN 150 AND 160")
    injure(pipeline, "lines", "DELETE FROM {} WHERE n = 7")
    assert differing(pipeline) == set(TABLES)
    ranges = [KeyRange(("150",), ("160",))]
    run_resync(pipeline.config, ["public.orders"], key_ranges=ranges)
    run_resync(pipeline.config, ["public.lines"])
    pipeline.run("UPDATE lines SET v = 'after' WHERE n = 7", "UPDATE orders SET price = 1 WHERE id < 155")
    pipeline.catch_up()
    assert differing(pipeline) == set()

    run_rebuild(pipeline.config, ["public.orders"])
    run_maintenance(pipeline.config, by_spark=True)
    pipeline.run("UPDATE orders SET item = 'last' WHERE id > 250", "TRUNCATE lines")
    pipeline.catch_up("INSERT INTO lines VALUES (1, 'last')")
    pipeline.assert_equal(*TABLES)


def rows_of(silver: AsOf) -> dict[str, Counter[Any]]:
    """Return the rows of each table as of a commit, without values that are long."""
    frames = {table: silver[TableName("public", table)].drop("big") for table in TABLES}
    return {table: Counter(map(str, frame.collect())) for table, frame in frames.items()}


def differing(pipeline: Pipeline) -> set[str]:
    """Return the tables that reconciliation finds different; the others are equal."""
    verdicts = run_reconcile(pipeline.config, runs=True).verdicts
    assert {verdict.verdict for verdict in verdicts} <= {EQUAL, DIFFERENT}
    return {verdict.name.table for verdict in verdicts if verdict.verdict == DIFFERENT}
