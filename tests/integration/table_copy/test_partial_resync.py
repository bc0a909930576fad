"""A resync of the rows of some keys: silver equals the source, and nothing but these keys is written."""

import shutil
from dataclasses import replace

import pytest

from pipeline.errors import ConfigError
from pipeline.key_ranges import KeyRange
from pipeline.operate.resync import run_resync
from pipeline.report.status import read_status
from pipeline.silver.fold.fold import Fold
from pipeline.silver.fold.write import Write, WriteKind
from pipeline.silver.read.as_of import as_of
from pipeline.silver.write.native_target import NativeTarget
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from tests.support.lives import forbid_copies
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.servers import Database, MakeServer
from tests.support.unseen import unseen_commits

pytestmark = pytest.mark.spark

BIG = "(SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 90) j)"
ORDERS = (
    "CREATE TABLE orders (id int8 PRIMARY KEY, n int, big text)",
    "ALTER TABLE orders ALTER big SET STORAGE EXTERNAL",
    f"INSERT INTO orders SELECT i, i % 7, {BIG} FROM generate_series(1, 300) i",
)
OURS = "spark.databricks.delta.commitInfo.userMetadata"


def keys(first: object, last: object) -> KeyRange:
    return KeyRange((str(first),), (str(last),))


def injure(pipeline: Pipeline, table: str, statement: str) -> None:
    """Change a silver table as no one should, by commits that resemble ours."""
    path = f"delta.`{pipeline.path('silver', 'public', table)}`"
    pipeline.session.conf.set(OURS, '{"pgdelta": 1}')
    try:
        pipeline.session.sql(statement.format(path))
    finally:
        pipeline.session.conf.unset(OURS)


def resync(pipeline: Pipeline, table: str, *ranges: KeyRange) -> None:
    run_resync(pipeline.config, [f"public.{table}"], key_ranges=ranges)


def patches(pipeline: Pipeline) -> list[int]:
    """Return how many rows each complete partial resync has."""
    rows = pipeline.frame("bronze", "copies").where("state = 'complete'").collect()
    partial = pipeline.frame("bronze", "copies").where("key_ranges IS NOT NULL").collect()
    ids = {row.copy_id for row in partial}
    return [row.row_count for row in sorted(rows, key=lambda row: row.copy_id) if row.copy_id in ids]


@pytest.fixture
def orders(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline whose silver shows two tables."""
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.catch_up(*ORDERS, "CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    return pipeline


@pytest.mark.promise("resyncs")
@pytest.mark.parametrize("writer", ["auto", pytest.param("spark", marks=pytest.mark.slow)])
def test_keys_are_copied_again_while_the_table_changes(
    orders: Pipeline, monkeypatch: pytest.MonkeyPatch, writer: WriterSetting
) -> None:
    orders = replace(
        orders, config=replace(orders.config, silver=replace(orders.config.silver, writer=writer))
    )
    injure(orders, "orders", "UPDATE {} SET n = -1, big = NULL WHERE id BETWEEN 10 AND 20 OR id = 250")
    injure(orders, "orders", "DELETE FROM {} WHERE id IN (30, 280)")
    columns = "n, big, _commit_lsn, _commit_time"
    injure(orders, "orders", f"INSERT INTO {{0}} SELECT 9000 + id, {columns} FROM {{0}} LIMIT 5")
    orders.run("UPDATE orders SET n = 50 WHERE id BETWEEN 5 AND 12", "DELETE FROM orders WHERE id = 20")
    resync(orders, "orders", keys(10, 20), keys(30, 30), keys(250, 280), KeyRange(("8000",), ()))
    orders.run("UPDATE orders SET id = id + 8000 WHERE id = 260", "INSERT INTO other VALUES (2)")
    with monkeypatch.context() as patch:
        forbid_copies(patch)
        orders.ingest()
    before = orders.version("orders")
    orders.apply()
    assert orders.version("orders") == before, "it waits for the snapshot, and the others do not"
    orders.assert_equal("other")
    shown = {table.name[1]: table for table in read_status(orders.config).tables}
    assert shown["orders"].state == "behind"
    assert shown["orders"].awaits_copy
    assert shown["orders"].sentence == "The next ingest copies the rows that it waits for."
    orders.catch_up("UPDATE orders SET n = n + 1 WHERE id BETWEEN 15 AND 40")
    assert patches(orders) == [10 + 1 + 30 + 1]
    assert as_of(orders.session, orders.root)[TableName("public", "orders")].count() == 299
    orders.catch_up(
        "UPDATE orders SET n = n + 1 WHERE id BETWEEN 1 AND 100", "UPDATE orders SET id = 20 WHERE id = 120"
    )
    orders.assert_equal("orders")
    # silver is in bronze alone
    shutil.rmtree(orders.path("silver", "public", "orders"))
    orders.apply()
    orders.assert_equal("orders")


@pytest.mark.promise("resyncs")
@pytest.mark.slow
@pytest.mark.parametrize("is_written", [False, True])
def test_a_crash_while_keys_are_put(
    orders: Pipeline, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    injure(orders, "orders", "DELETE FROM {} WHERE id BETWEEN 100 AND 200")
    resync(orders, "orders", keys(100, 200))
    orders.ingest("DELETE FROM orders WHERE id = 150")
    orders.ingest("INSERT INTO orders VALUES (150, 1)", "DELETE FROM orders WHERE id = 160")
    commit_rows = NativeTarget.commit_rows
    crashes = 0

    def crash(self: NativeTarget, write: Write, fold: Fold) -> None:
        nonlocal crashes
        is_partial = write.kind is WriteKind.REPLACE_KEYS
        crashes += is_partial
        if is_written or not is_partial:
            commit_rows(self, write, fold)
        if is_partial:
            raise OSError("gone")

    with monkeypatch.context() as patch:
        # only this write of the table, which its step does not tell from the others
        patch.setattr(NativeTarget, "commit_rows", crash)
        orders.apply()
    assert crashes
    orders.assert_follows("orders")
    assert patches(orders) == [100]


@pytest.mark.slow
def test_keys_of_several_columns_compare_by_bytes(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="never")
    publication = pipeline.config.source.publication
    pipeline.catch_up(
        f"CREATE PUBLICATION {publication} FOR ALL TABLES WITH (publish_via_partition_root = true)",
        "CREATE TABLE parts (region text, no int, day date, u uuid, v text, PRIMARY KEY (region, no, day)) "
        "PARTITION BY LIST (region)",
        "CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a', 'B', 'ä')",
        "CREATE TABLE parts_z (v text, u uuid, day date NOT NULL, no int NOT NULL, region text NOT NULL)",
        "ALTER TABLE parts ATTACH PARTITION parts_z DEFAULT",
        "INSERT INTO parts SELECT r, i, date '2020-01-01' + i, md5(i::text)::uuid, r || i "
        "FROM unnest(ARRAY['a', 'B', 'ä', 'Z', 'o''k', '']) r, generate_series(1, 10) i",
    )
    injure(pipeline, "parts", "UPDATE {} SET v = 'wrong'")
    resync(
        pipeline,
        "parts",
        KeyRange(("B", "9"), ("Z", "3", "2020-01-04")),  # two of B, three of Z: neither a nor ä lies between
        KeyRange(("",), ("",)),
        KeyRange(("o'k", "4", "2020-01-05"), ("o'k", "4", "2020-01-05")),
    )
    pipeline.catch_up()
    assert patches(pipeline) == [5 + 10 + 1]
    assert pipeline.frame("silver", "public", "parts").where("v = 'wrong'").count() == 60 - 16
    resync(pipeline, "parts", KeyRange((), ("o",)), KeyRange(("o",), ()))
    pipeline.catch_up()
    assert patches(pipeline)[1:] == [60]
    pipeline.assert_equal("parts")


@pytest.mark.slow
def test_key_ranges_that_cannot_be_copied_are_refused(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.catch_up(
        "CREATE TABLE moments (at timestamptz PRIMARY KEY, v text)",
        "INSERT INTO moments VALUES ('2020-01-01 00:00+00', 'a'), ('2021-01-01 00:00+00', 'b')",
        "CREATE TABLE bag (a int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
    )
    with pytest.raises(ConfigError, match=r"moments.*single keys"):
        resync(pipeline, "moments", keys("2020-01-01", "2022-01-01"))
    with pytest.raises(ConfigError, match="The range has 2 values, the key 1 column"):
        resync(pipeline, "moments", KeyRange(("a", "b"), ("a", "b")))
    with pytest.raises(ConfigError, match="no key"):
        resync(pipeline, "bag", keys(1, 2))
    with pytest.raises(ConfigError, match="matches 2"):
        resync(pipeline, "*", keys(1, 2))
    with pytest.raises(ConfigError, match="The type of a key column rejects the given value"):
        resync(pipeline, "moments", keys("noon", "noon"))
    injure(pipeline, "moments", "UPDATE {} SET v = 'wrong' WHERE v = 'b'")
    resync(pipeline, "moments", keys("2021-01-01 00:00:00+00", "2021-01-01 00:00:00+00"))
    pipeline.catch_up()
    assert patches(pipeline) == [1]
    pipeline.assert_equal("moments")


@pytest.mark.slow
def test_a_range_that_silver_cannot_compare_has_the_whole_table_copied(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.catch_up(
        "CREATE TABLE amounts (id numeric PRIMARY KEY, v text)",
        "INSERT INTO amounts VALUES (7, 'x'), (70, 'y')",
    )
    injure(pipeline, "amounts", "UPDATE {} SET v = 'wrong'")
    resync(pipeline, "amounts", keys("1e60", "1e70"), keys(7, 8))
    pipeline.catch_up()
    assert any("whole table" in sentence for kind, sentence in pipeline.events("amounts") if kind == "resync")
    pipeline.assert_follows("amounts")


@pytest.mark.slow
def test_a_foreign_commit_is_replaced_by_a_copy(orders: Pipeline) -> None:
    orders.session.sql(f"DELETE FROM delta.`{orders.path('silver', 'public', 'orders')}` WHERE id < 100")
    orders.ingest("UPDATE orders SET n = 9 WHERE id = 200")
    summary = orders.apply()
    assert summary.exit_code(strict=False) == 1
    assert any("pgdelta resync" in line for line in summary.lines())
    run_resync(orders.config, ["public.orders"])
    orders.assert_follows("orders")


@pytest.mark.promise("resyncs")
@pytest.mark.slow
def test_keys_are_copied_although_a_commit_is_not_visible_yet(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    """The place of the rows is before the snapshot, and they are put there all the same."""
    database = Database.of(make_server({"synchronous_standby_names": ""}))
    pipeline = make_pipeline(copy="initial", create_publication="all", database=database)
    pipeline.catch_up(*ORDERS)
    injure(pipeline, "orders", "UPDATE {} SET n = -1 WHERE id BETWEEN 100 AND 110")
    resync(pipeline, "orders", keys(100, 110))
    with unseen_commits(database, "UPDATE orders SET n = 77 WHERE id = 7", "DELETE FROM orders WHERE id = 8"):
        pipeline.ingest()
    pipeline.catch_up()
    assert patches(pipeline) == [11]
    assert not [event for event in pipeline.events("orders") if event[0] == "resync"]
    pipeline.assert_equal("orders")


@pytest.mark.slow
def test_transactions_that_ended_and_cannot_be_seen_yet(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    """What a snapshot of some keys lacks, and what it has of later transactions, is applied in order."""
    server = make_server({"synchronous_standby_names": ""})
    pipeline = make_pipeline(copy="initial", create_publication="all", database=Database.of(server))
    pipeline.catch_up(*ORDERS)
    injure(pipeline, "orders", "UPDATE {} SET n = -1, big = NULL WHERE id BETWEEN 100 AND 110")
    resync(pipeline, "orders", keys(100, 200))
    statements = (
        "UPDATE orders SET n = 77 WHERE id = 101",
        "UPDATE orders SET id = 1000 + id WHERE id = 102",  # out of the range
        "UPDATE orders SET id = 150000 + id WHERE id = 20",
    )
    with unseen_commits(pipeline.database, *statements):
        with pipeline.database.connect() as free:
            free.execute("SET synchronous_commit = local")
            free.execute("UPDATE orders SET n = 78 WHERE id = 104")
            free.execute("UPDATE orders SET id = 2000 + id WHERE id = 105")  # its old value was not sent
        pipeline.ingest()
        complete = pipeline.frame("bronze", "copies").where("key_ranges IS NOT NULL").collect()
        assert complete
    pipeline.catch_up()
    [(_, sentence)] = [event for event in pipeline.events("orders") if event[0] == "resync"]
    assert "missing" in sentence
    pipeline.assert_follows("orders")
