"""Rules name columns as the source does, also those that silver names otherwise."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from pipeline.config.tables import ColumnRules, TableRule
from pipeline.delta.table import LakeTable
from pipeline.operate.rebuild import run_rebuild
from pipeline.silver.table_partitions import partitions_to_come
from pipeline.table_name import TableName
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import Database

pytestmark = pytest.mark.postgres

NAME = TableName("public", "t")


def test_rules_reach_columns_that_differ_only_in_case(database: Database, tmp_path: Path) -> None:
    rule = TableRule(
        "public.*",
        types={"A": "DECIMAL(10,2)"},
        misfits={"D": "clamp", "E": "text", "e": "null"},
        partition_by=("P",),
        columns=ColumnRules(hash={"H": "hmac-sha256"}),
    )
    pipeline = NativePipeline.make(database, tmp_path, rule, hash_key="the key of the tests, 123")
    columns = ", ".join(f'{low} {kind}, "{low.upper()}" {kind}' for low, kind in COLUMNS.items())
    values = "1.5, 1.5, 'infinity', 'infinity', 'infinity', 'infinity', 'p', 'q', 'h', 'h'"
    pipeline.catch_up(
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})", f"INSERT INTO t VALUES (1, {values})"
    )

    def check(count: int) -> None:
        names = ("a", "A__3", "d", "D__5", "e", "E__7", "E__7__text", "p", "P__9", "h")
        last = date(9999, 12, 31)
        expected = ("1.5", Decimal("1.50"), None, last, None, None, "infinity", "p", "q", "h")
        assert pipeline.rows("t", *names) == [expected] * count
        table = LakeTable(f"{pipeline.config.storage.root}/silver/public/t")
        assert table.snapshot().partition_columns == ("P__9",)
        assert "e__text" not in pipeline.columns("t")

    check(1)
    pipeline.catch_up(f"INSERT INTO t VALUES (2, {values})", "UPDATE t SET a = 1.5 WHERE id = 1")
    check(2)
    assert pipeline.events("t") == []
    run_rebuild(pipeline.config, ["public.t"])
    check(2)


def test_a_rule_of_a_renamed_column_is_an_event(database: Database, tmp_path: Path) -> None:
    rule = TableRule("public.*", misfits={"price": "clamp"})
    pipeline = NativePipeline.make(database, tmp_path, rule)
    pipeline.ingest(
        "CREATE TABLE t (id int PRIMARY KEY, price date)", "INSERT INTO t VALUES (1, '-infinity')"
    )
    pipeline.catch_up("ALTER TABLE t RENAME price TO cost", "INSERT INTO t VALUES (2, 'infinity')")
    [(kind, sentence)] = pipeline.events("t")
    assert kind == "evolved"
    assert sentence.endswith("Its rule does not follow. Name cost in tables[].misfits.")
    pipeline.set_rules(TableRule("public.*", misfits={"cost": "clamp"}))
    pipeline.catch_up("UPDATE t SET cost = 'infinity'")
    assert [row[1] for row in pipeline.rows("t", "id", "cost")] == [date(9999, 12, 31)] * 2
    assert len(pipeline.events("t")) == 1


COLUMNS = {"a": "numeric", "d": "date", "e": "date", "p": "text", "h": "text"}


def test_partitions_of_such_a_column_are_those_of_the_rule(database: Database, tmp_path: Path) -> None:
    rule = TableRule("public.*", partition_by=("P",))
    pipeline = NativePipeline.make(database, tmp_path, rule)
    pipeline.catch_up('CREATE TABLE t (id int PRIMARY KEY, p int, "P" int)', "INSERT INTO t VALUES (1, 2, 3)")
    with pipeline.applier() as applier:
        registered = applier.records.tables.read()[NAME]
        snapshot = applier.lake.table_at(applier.path(NAME)).snapshot()
    assert partitions_to_come(NAME, rule, snapshot, registered.columns) is None
    other = TableRule("public.*", partition_by=("p",))
    assert partitions_to_come(NAME, other, snapshot, registered.columns) is not None
