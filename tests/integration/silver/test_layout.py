"""Comments, properties and the change data feed of silver tables are what the configuration says."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from random import Random
from typing import Any

import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as DeltaRs
from pyspark.sql import Row

from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline, with_rules
from tests.support.seeds import seed_of_run
from tests.support.servers import writer_of_run

pytestmark = pytest.mark.spark

NAME = TableName("public", "t")
Rows = Counter[tuple[Any, ...]]
WHY = "silver.writer is spark" if writer_of_run() == "spark" else "the table has a change data feed"
ONE_WRITE = f"one write by Spark ({WHY})"


def described(pipeline: Pipeline) -> tuple[str | None, dict[str, str]]:
    """Return the comment and the properties of the table, as Spark reads them."""
    row = (
        DeltaTable.forPath(pipeline.session, str(pipeline.path("silver", "public", "t")))
        .detail()
        .collect()[0]
    )
    return row.description, dict(row.properties)


def manifests(pipeline: Pipeline) -> Manifest:
    found = Manifests(Lake(pipeline.root, pipeline.spark)).last()
    assert found is not None
    return found


def entry(pipeline: Pipeline) -> ManifestEntry:
    return manifests(pipeline).by_name[NAME]


def rows_at(pipeline: Pipeline, version: int) -> Rows:
    table = DeltaRs(str(pipeline.path("silver", "public", "t")), version=version)
    rows = table.to_pyarrow_table(columns=["id", "v"]).to_pylist()
    return Counter((row["id"], row["v"]) for row in rows)


def feed(pipeline: Pipeline, after: int, to: int) -> list[Row]:
    """Return the changes of some versions, as Spark reads them."""
    path = str(pipeline.path("silver", "public", "t"))
    reader = pipeline.session.read.format("delta").option("readChangeFeed", "true")
    changes = reader.option("startingVersion", after + 1).option("endingVersion", to).load(path)
    return changes.select("id", "v", "_change_type", "_commit_version").collect()


def net_changes(changes: Iterable[Row]) -> tuple[Rows, Rows]:
    """Return the rows that a feed removes and adds in the end: what it adds and removes again cancels out."""
    signed: Counter[tuple[Any, ...]] = Counter()
    kinds = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
    for row in changes:
        signed[row.id, row.v] += kinds[row._change_type]
    return Counter({k: -n for k, n in signed.items() if n < 0}), +signed


def statement(rng: Random, keys: range) -> str:
    key, value = rng.choice(keys), rng.randrange(1000)
    return rng.choice(
        (
            f"INSERT INTO t VALUES ({key}, 'v{value}') ON CONFLICT (id) DO UPDATE SET v = 'w{value}'",
            f"UPDATE t SET v = 'u{value}' WHERE id = {key}",
            f"UPDATE t SET id = id + 1000 WHERE id = {key} AND {key} + 1000 NOT IN (SELECT id FROM t)",
            f"DELETE FROM t WHERE id % 7 = {key % 7}",
        )
    )


@pytest.mark.promise("change data feed", "a change data feed")
def test_the_feed_of_two_versions_is_what_changed_between_their_lsns(make_pipeline: MakePipeline) -> None:
    rng = Random(seed_of_run())
    pipeline = with_rules(
        make_pipeline(create_publication="all", copy="initial"), TableRule("public.*", change_feed=True)
    )
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 30) i",
    )
    first = entry(pipeline)
    assert first.copied_version is not None  # the table's first rows are a copy
    assert described(pipeline)[1]["delta.enableChangeDataFeed"] == "true"
    versions = [first]
    for batch in range(2):
        for _ in range(rng.randrange(1, 4)):
            pipeline.transact(*(statement(rng, range(40)) for _ in range(rng.randrange(1, 12))))
        if batch == 0:
            pipeline.ingest("INSERT INTO t VALUES (5000, 'plan')")
            steps = [step for table in make_plan(pipeline.config).tables for step in table.steps]
            assert [step.cost for step in steps] == [ONE_WRITE]
        else:
            pipeline.run("TRUNCATE t", "INSERT INTO t VALUES (5, 'after')")
        pipeline.catch_up()
        versions.append(entry(pipeline))
    pipeline.assert_equal("t")
    assert {each.copied_version for each in versions} == {first.copied_version}
    rows = {each.version: rows_at(pipeline, each.version) for each in versions}
    changes = feed(pipeline, min(rows), max(rows))
    for since, to in combinations(rows, 2):
        old, new = rows[since], rows[to]
        between = (row for row in changes if since < row._commit_version <= to)
        assert net_changes(between) == (old - new, new - old)
    # copied rows and rebuilds are marked: their feed is no list of changes
    for make in (run_resync, run_rebuild):
        before = entry(pipeline)
        make(pipeline.config, ["public.t"])
        pipeline.catch_up("INSERT INTO t VALUES (2000, 'x') ON CONFLICT DO NOTHING")
        copied = entry(pipeline)
        assert copied.copied_version is not None
        assert before.version < copied.copied_version <= copied.version
    pipeline.catch_up("UPDATE t SET v = v || '.'")
    assert entry(pipeline).copied_version == copied.copied_version
    pipeline.assert_equal("t")


@pytest.mark.slow
@pytest.mark.promise("a change data feed")
def test_the_feed_is_enabled_and_disabled_later(make_pipeline: MakePipeline) -> None:
    made = make_pipeline(create_publication="all", copy="initial")
    made.catch_up("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    assert "delta.enableChangeDataFeed" not in described(made)[1]
    for is_on in (True, False):
        pipeline = with_rules(made, TableRule("public.*", change_feed=is_on))
        pipeline.ingest(f"UPDATE t SET v = '{is_on}'")
        [plan] = make_plan(pipeline.config).tables
        by_spark = [step.cost for step in plan.steps if step.is_write]
        assert by_spark == [ONE_WRITE]
        pipeline.apply()
        assert described(pipeline)[1]["delta.enableChangeDataFeed"] == str(is_on).lower()
    # enabled, written, disabled, written
    written = entry(pipeline).version - 2
    found = feed(pipeline, written - 1, written)
    assert [row.v for row in found if row._change_type == "update_postimage"] == ["True"]
    made.assert_equal("t")
