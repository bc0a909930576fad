"""A gap of the stream that a comparison closes: only the keys that differ are copied, and silver is equal."""

from dataclasses import replace

import pytest

from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.operate.pause import pause_tables, resume_tables
from pipeline.operate.rebuild import run_rebuild
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from tests.support.lives import FILL, TABLE
from tests.support.pipelines import MakePipeline, Pipeline, with_writer

A, B, BAG, PAST = (TableName("public", name) for name in ("a", "b", "bag", "past"))
TOAST = "SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 400)"


def comparing(config: Config) -> Config:
    """Return a configuration that compares after a gap."""
    return replace(config, source=replace(config.source, lost_slot="compare"))


def begin(make_pipeline: MakePipeline, writer: WriterSetting = "auto") -> Pipeline:
    """Return a pipeline with tables of several kinds, whose silver equals the source."""
    life = make_pipeline(copy="initial", create_publication="all")
    rules = (TableRule("public.past", mode="history"), TableRule("*.*"))
    life = replace(life, config=replace(comparing(life.config), tables=rules))
    life.run(
        *(TABLE.format(name) for name in ("a", "b", "past")),
        *(FILL.format(name, 1, 2000) for name in ("a", "b", "past")),
        "CREATE TABLE bag (n int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT i % 3 FROM generate_series(1, 9) i",
    )
    life = with_writer(life, writer)
    life.catch_up()
    return life


@pytest.mark.promise("gaps are never silent")
@pytest.mark.parametrize("writer", ["native", pytest.param("spark", marks=pytest.mark.slow)])
def test_only_the_keys_that_differ_are_copied(make_pipeline: MakePipeline, writer: WriterSetting) -> None:
    life = begin(make_pipeline, writer)
    life.run("INSERT INTO a VALUES (5000, 'in bronze')")
    life.ingest()  # silver does not have it at the gap
    life.drop_slot()
    found = life.ingest(
        "DELETE FROM a WHERE id IN (3, 700)",
        "UPDATE a SET v = 'in the gap' WHERE id BETWEEN 100 AND 109",
        "INSERT INTO a VALUES (5001, 'in the gap'), (5002, 'in the gap')",
        "UPDATE a SET id = 6000 WHERE id = 42",
        "INSERT INTO bag VALUES (7)",
        "UPDATE past SET v = 'in the gap' WHERE id = 9",
    )
    assert not found.copies
    waits = "The first ingest after apply has brought it there compares it."
    assert all(waits in sentence for sentence in found.compared.values())
    life.run("UPDATE a SET v = 'later' WHERE id IN (100, 8)", "INSERT INTO b VALUES (9000, 'later')")
    life.apply()
    found = life.ingest("UPDATE b SET v = 'later' WHERE id = 11")
    assert found.compared[BAG].startswith("All rows are copied.")
    assert "mode history" in found.compared[PAST]
    assert found.copies[A].rows_landed == 14  # 100 to 109, 5001, 5002, 6000, and 8
    assert found.copies[B].rows_landed == 2  # changed after the gap, before the snapshot
    life.catch_up("DELETE FROM a WHERE id = 5001", "INSERT INTO past VALUES (9001, 'later')")
    life.assert_equal("a", "b", "bag")
    assert any("compared" in sentence for kind, sentence in life.events("a") if kind == "evolved")
    again = life.ingest()
    assert not again.copies
    assert not again.compared
    run_rebuild(life.config, ["public.a"])
    life.assert_equal("a")


@pytest.mark.promise("gaps are never silent")
def test_tables_that_were_behind_at_a_gap_are_copied(make_pipeline: MakePipeline) -> None:
    life = begin(make_pipeline)
    behind = ["public.a", "public.past"]
    pause_tables(life.config, behind, reason="a report")
    in_bronze = ("UPDATE {} SET v = 'in bronze' WHERE id < 4", "DELETE FROM {} WHERE id = 7")
    life.catch_up(*(each.format(name) for name in ("a", "b", "past") for each in in_bronze))
    life.drop_slot()
    in_gap = ("UPDATE {} SET v = 'in the gap' WHERE id = 5", "DELETE FROM {} WHERE id = 8")
    life.ingest(*(each.format(name) for name in ("a", "b", "past") for each in in_gap))
    life.apply()  # which brings other tables to the gap
    found = life.ingest("UPDATE a SET v = 'later' WHERE id = 9")
    assert all(found.compared[name].startswith("All rows are copied.") for name in (A, PAST))
    resume_tables(life.config, behind)
    life.catch_up()
    life.assert_equal("a", "b", "bag")
    rows = life.frame("silver", "public", "past")
    assert [row.v for row in rows.where("id = 2").orderBy("_valid_from_lsn").collect()][-1] == "in bronze"
    assert rows.where("id IN (7, 8) AND _is_current").count() == 0
    assert rows.where("_is_current").count() == 1998


@pytest.mark.slow
def test_a_key_that_changed_after_the_gap_without_its_long_value(make_pipeline: MakePipeline) -> None:
    life = begin(make_pipeline)
    life.run("CREATE TABLE docs (id int PRIMARY KEY, body text)", f"INSERT INTO docs SELECT 1, ({TOAST})")
    life.catch_up()
    life.run("INSERT INTO a VALUES (5000, 'in bronze')")
    life.ingest()  # silver does not have it, so the tables are compared later
    life.drop_slot()
    life.ingest(f"UPDATE docs SET body = ({TOAST})")
    life.apply()
    found = life.ingest("UPDATE docs SET id = 2")
    assert "A key changed after the gap" in found.compared[TableName("public", "docs")]
    life.assert_follows("docs", "a", "b", "bag")
