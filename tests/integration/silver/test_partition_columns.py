"""What becomes of partition columns: values that no partition has, changes of columns, and of the rule."""

from collections import Counter
from typing import Any

import polars
import pytest
from deltalake import DeltaTable

from pipeline.config.tables import TableRule
from pipeline.delta.table import LakeTable
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.verify.reconcile import run_reconcile
from tests.support.pipelines import BOTH_WRITERS, MakePipeline, Pipeline, succeeded, with_rules, with_writer

pytestmark = pytest.mark.spark


def divided(
    make_pipeline: MakePipeline, writer: WriterSetting, *rules: TableRule, copy: str = "never"
) -> Pipeline:
    made = with_writer(make_pipeline(create_publication="all", copy=copy), writer)
    return with_rules(made, *rules)


def silver(pipeline: Pipeline, table: str = "t") -> LakeTable:
    return LakeTable(str(pipeline.path("silver", "public", table)))


def columns_of(pipeline: Pipeline, table: str = "t") -> tuple[str, ...]:
    return silver(pipeline, table).snapshot().partition_columns


def rows(pipeline: Pipeline, *columns: str) -> Counter[tuple[Any, ...]]:
    """Return the rows of the table, which Spark, polars and deltalake read alike."""
    path, names = str(pipeline.path("silver", "public", "t")), list(columns)
    by_spark = Counter(map(tuple, pipeline.session.read.format("delta").load(path).select(names).collect()))
    assert Counter(polars.read_delta(path).select(names).rows()) == by_spark
    table = DeltaTable(path).to_pyarrow_table(columns=names)
    assert Counter(tuple(row.values()) for row in table.to_pylist()) == by_spark
    return by_spark


@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_texts_that_no_partition_has_are_misfits(make_pipeline: MakePipeline, writer: WriterSetting) -> None:
    long = "é" * 94 + "//"  # 190 bytes once it is escaped
    pipeline = divided(
        make_pipeline,
        writer,
        TableRule("public.refusing", partition_by=("c",), misfits={"c": "error"}),
        TableRule("public.*", partition_by=("c",), misfits={"c": "text"}),
    )
    pipeline.ingest()
    assert len(long.encode()) + 4 == 194
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, c text)",
        "INSERT INTO t VALUES (1, ''), (2, NULL), (3, '__HIVE_DEFAULT_PARTITION__'), (4, 'NL'), (5, ' '),"
        f" (6, '{long}'), (7, '{long[4:]}'), (8, 'a/b%=é')",
        "CREATE TABLE bag (c text, n int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag VALUES ('', 1), (NULL, 1), ('x', 2), ('', 1)",
        "CREATE TABLE refusing (id int PRIMARY KEY, c text)",
        "INSERT INTO refusing VALUES (1, 'a')",
    )
    kept = {4: "NL", 5: " ", 7: long[4:], 8: "a/b%=é"}
    lost = {1: "", 3: "__HIVE_DEFAULT_PARTITION__", 6: long}
    wanted = Counter((key, kept.get(key), lost.get(key)) for key in range(1, 9))
    assert rows(pipeline, "id", "c", "c__text") == wanted
    misfits = pipeline.frame("_pgdelta", "misfits").where("table_name = 't'").collect()
    assert {row.raw_text for row in misfits} == {"", "__HIVE_DEFAULT_PARTITION__", long}
    pipeline.catch_up(
        "UPDATE t SET c = '' WHERE id = 4",
        "UPDATE t SET c = 'BE' WHERE id = 1",
        "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)",
        "UPDATE bag SET c = '' WHERE c = 'x'",
    )
    found = rows(pipeline, "id", "c", "c__text")
    assert found[4, None, ""] == found[1, "BE", None] == 1
    bag = LakeTable(str(pipeline.path("silver", "public", "bag"))).rows(["c", "n", "c__text"]).to_pylist()
    assert Counter(tuple(row.values()) for row in bag) == Counter(
        {(None, 1, None): 1, (None, 1, ""): 1, (None, 2, ""): 1}
    )
    succeeded(run_reconcile(pipeline.config, ["public.t"], runs=True))
    pipeline.ingest("INSERT INTO refusing VALUES (2, '')")
    summary = pipeline.apply()
    assert summary.exit_code(strict=False) == 0
    assert {kind for kind, _ in pipeline.events("refusing")} == {"refused"}


@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_a_key_that_no_partition_has_fails_its_table(
    make_pipeline: MakePipeline, writer: WriterSetting
) -> None:
    pipeline = divided(make_pipeline, writer, TableRule("public.*", partition_by=("c",)))
    pipeline.ingest()
    pipeline.catch_up(
        "CREATE TABLE t (c text PRIMARY KEY)", "ALTER TABLE t ADD v int", "INSERT INTO t VALUES ('a', 1)"
    )
    pipeline.ingest("INSERT INTO t VALUES ('', 2)")
    summary = pipeline.apply()
    assert summary.exit_code(strict=False) == 1
    assert any("leave that out of partition_by" in line for line in summary.lines())
    run_rebuild(with_rules(pipeline, TableRule("public.*")).config, ["public.t"])
    assert columns_of(pipeline) == ()
    pipeline.assert_equal("t")


@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_changed_partitions_are_planned_and_done_by_a_rebuild(
    make_pipeline: MakePipeline, writer: WriterSetting
) -> None:
    pipeline = divided(make_pipeline, writer, TableRule("public.*"))
    pipeline.ingest()
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b date)",
        "INSERT INTO t SELECT n, n % 3, DATE '2024-01-01' + n % 2 FROM generate_series(1, 30) n",
    )
    for columns in (("a",), ("b", "a"), ()):
        before = columns_of(pipeline)
        changed = with_rules(pipeline, TableRule("public.*", partition_by=columns))
        changed.catch_up("UPDATE t SET a = a + 1 WHERE id % 4 = 1")
        assert columns_of(changed) == before  # the table follows the source as it is
        changed.assert_equal("t")
        [plan] = make_plan(changed.config).tables
        [step] = plan.steps
        assert step.sentence.startswith("The table is divided "), step
        assert "pgdelta rebuild --table public.t" in step.sentence
        run_rebuild(changed.config, ["public.t"])
        assert columns_of(changed) == columns
        assert not make_plan(changed.config).tables
        changed.assert_equal("t")
        changed.catch_up("UPDATE t SET a = NULL WHERE id % 5 = 1", "DELETE FROM t WHERE id % 7 = 0")
        changed.assert_equal("t")


@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_partition_columns_are_renamed_widened_dropped_and_truncated(
    make_pipeline: MakePipeline, writer: WriterSetting
) -> None:
    rule = TableRule("public.*", partition_by=("c", "d"), dropped_columns="drop")
    pipeline = divided(make_pipeline, writer, rule)
    pipeline.ingest()
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, c smallint, d text, v text)",
        "INSERT INTO t SELECT n, n % 3, 'd' || n % 2, 'v' FROM generate_series(1, 12) n",
    )
    pipeline.catch_up("ALTER TABLE t ADD w int DEFAULT 7", "UPDATE t SET c = NULL WHERE id = 3")
    pipeline.assert_equal("t")
    pipeline.catch_up("ALTER TABLE t ALTER c TYPE bigint", "INSERT INTO t VALUES (100, 5000000000, 'd', 'v')")
    pipeline.assert_equal("t")
    pipeline.catch_up("ALTER TABLE t RENAME c TO renamed", "UPDATE t SET renamed = 1 WHERE id < 5")
    assert columns_of(pipeline) == ("renamed", "d")
    pipeline.assert_equal("t")
    pipeline.run("ALTER TABLE t DROP d", "INSERT INTO t VALUES (101, 1, 'v')", "DELETE FROM t WHERE id = 2")
    pipeline.catch_up()
    assert columns_of(pipeline) == ("renamed", "d")
    assert "Column d was dropped at the source. Silver keeps it" in str(pipeline.events("t"))
    found = silver(pipeline).rows(["id", "renamed", "d"]).to_pylist()
    assert {row["d"] for row in found if row["id"] == 101} == {None}
    assert {row["d"] for row in found if row["id"] == 1} == {"d1"}
    pipeline.catch_up("TRUNCATE t", "INSERT INTO t VALUES (1, 2, 'v')")
    assert silver(pipeline).rows(["id", "renamed", "d"]).to_pylist() == [{"id": 1, "renamed": 2, "d": None}]


@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_a_table_that_cannot_have_the_partitions_is_held(
    make_pipeline: MakePipeline, writer: WriterSetting
) -> None:
    pipeline = divided(make_pipeline, writer, TableRule("public.*", partition_by=("c",)))
    pipeline.ingest()
    pipeline.ingest(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE TABLE floats (id int PRIMARY KEY, c float8)",
        "INSERT INTO floats VALUES (1, 2)",
        "CREATE TABLE fine (id int PRIMARY KEY, c int)",
        "INSERT INTO fine VALUES (1, 2)",
    )
    summary = pipeline.apply()
    assert summary.exit_code(strict=False) == 0
    pipeline.assert_equal("fine")
    assert "partition_by in its rule names column c, which the table does not have" in str(
        pipeline.events("t")
    )
    assert "column c, whose type DOUBLE has values" in str(pipeline.events("floats"))
    # the rows from before the column have its default
    pipeline.run(
        "ALTER TABLE t ADD c int DEFAULT 5",
        "INSERT INTO t VALUES (2, 6)",
        "ALTER TABLE floats ALTER c TYPE int",
    )
    pipeline.run("INSERT INTO floats VALUES (2, 3)")
    run_resync(pipeline.config, ["public.floats"])
    pipeline.ingest()
    pipeline.catch_up("INSERT INTO fine VALUES (2, 2)")
    assert columns_of(pipeline) == columns_of(pipeline, "floats") == ("c",)
    pipeline.assert_equal("t", "floats", "fine")


@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_a_key_in_its_partition_is_searched_there_only(
    make_pipeline: MakePipeline, writer: WriterSetting
) -> None:
    pipeline = divided(make_pipeline, writer, TableRule("public.*", partition_by=("region",)), copy="initial")
    pipeline.catch_up(
        "CREATE TABLE t (region text, id uuid, v int, PRIMARY KEY (region, id))",
        "INSERT INTO t SELECT 'r' || n % 4, gen_random_uuid(), n FROM generate_series(1, 40) n",
    )
    assert len(silver(pipeline).snapshot().files) == 4
    for path in pipeline.path("silver", "public", "t").glob("region=r[123]/*.parquet"):
        path.rename(path.with_suffix(".away"))  # a write that reads them fails
    pipeline.catch_up("UPDATE t SET v = -1 WHERE region = 'r0' AND v % 8 = 0", "DELETE FROM t WHERE v = 20")
    for path in pipeline.path("silver", "public", "t").glob("region=*/*.away"):
        path.rename(path.with_suffix(".parquet"))
    pipeline.assert_equal("t")
    pipeline.catch_up("UPDATE t SET region = 'r9' WHERE v = -1")
    pipeline.assert_equal("t")
    run_resync(pipeline.config, ["public.t"])
    pipeline.ingest()
    pipeline.catch_up("UPDATE t SET region = 'r' || id WHERE v > 30")
    pipeline.assert_equal("t")
    assert columns_of(pipeline) == ("region",)
