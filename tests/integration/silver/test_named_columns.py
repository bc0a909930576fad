"""What names columns follows their renames, a name of no column is one event, and none is an alias."""

from pathlib import Path

import pytest

from pipeline.config.tables import TableRule
from pipeline.delta.column_lists import STATISTICS_COLUMNS
from pipeline.delta.table import LakeTable
from tests.support.native_pipelines import NativePipeline
from tests.support.pipelines import MakePipeline, succeeded, with_rules, with_writer
from tests.support.servers import Database

RULE = TableRule("public.*", properties={STATISTICS_COLUMNS: "id,note,nope"})
NOPE = (
    "Column nope, which delta.dataSkippingStatsColumns in tables[].properties names, is not in the table."
    " Correct the property."
)


def test_a_property_follows_a_column_and_a_wrong_name_is_one_event(
    database: Database, tmp_path: Path
) -> None:
    shop = NativePipeline.make(database, tmp_path, RULE)
    table = LakeTable(f"{shop.config.storage.root}/silver/public/t")

    def property_after(*statements: str) -> str | None:
        succeeded(shop.catch_up(*statements))
        return table.snapshot().configuration.get(STATISTICS_COLUMNS)

    create = "CREATE TABLE t (id int PRIMARY KEY, note text)"
    assert property_after(create, "INSERT INTO t VALUES (1, 'a')") == "id,note"
    renamed = "ALTER TABLE t RENAME note TO remark"
    assert property_after(renamed, "INSERT INTO t VALUES (2, 'b')") == "id,remark"
    assert property_after("INSERT INTO t VALUES (3, 'c')") == "id,remark"
    version = table.version()
    assert property_after("INSERT INTO t VALUES (4, 'd')") == "id,remark"
    assert table.version() == version + 1  # the property is set once
    assert [sentence for _, sentence in shop.events("t")].count(NOPE) == 1


@pytest.mark.spark
def test_a_property_follows_a_column_that_spark_renames(make_pipeline: MakePipeline) -> None:
    shop = with_rules(make_pipeline(create_publication="all"), RULE)
    shop.ingest("CREATE TABLE t (id int PRIMARY KEY, note text)")
    shop.run("INSERT INTO t VALUES (1, 'a')")
    with_writer(shop, "native").catch_up()
    shop.run("ALTER TABLE t RENAME note TO remark", "INSERT INTO t VALUES (2, 'b')")
    with_writer(shop, "spark").catch_up()
    found = LakeTable(str(shop.path("silver", "public", "t"))).snapshot().configuration
    assert found[STATISTICS_COLUMNS] == "id,remark"
    assert [sentence for _, sentence in shop.events("t")].count(NOPE) == 1


@pytest.mark.spark
@pytest.mark.promise("unchanged TOAST")
def test_no_column_is_taken_for_an_alias_of_a_query(make_pipeline: MakePipeline) -> None:
    pipeline = with_writer(make_pipeline(create_publication="all"), "spark")
    pipeline.ingest(
        "CREATE TABLE short (id int PRIMARY KEY, s smallint, t int, r int, big text)",
        "ALTER TABLE short ALTER big SET STORAGE EXTERNAL",
    )
    fill = "INSERT INTO short SELECT i, i, i, i, repeat('x', 4000) FROM generate_series(1, 9) i"
    pipeline.catch_up(fill)
    summary = pipeline.catch_up(
        "UPDATE short SET id = 100 WHERE id = 1",
        "UPDATE short SET s = 5 WHERE id = 2",
        fill.replace("1, 9", "20, 22"),
    )
    succeeded(summary)
    pipeline.assert_equal("short")
