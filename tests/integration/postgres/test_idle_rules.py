"""A rule that no table follows is named by check, status, plan and the run, in one sentence."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.tables import ColumnRules, TableRule
from pipeline.errors import NOTICES
from pipeline.ingest.job import run_ingest
from pipeline.operate.plan import make_plan
from pipeline.operate.plan_report import Plan, with_idle_rules
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.idle_rules import find_idle_rules
from pipeline.report.status import read_status
from pipeline.table_name import TableName
from tests.support.pages import render
from tests.support.servers import Database

START = "The rule {} of tables has no table"
NOTHING = f"{START}: nothing in the database matches it. {{}}"
SENTENCES = [
    NOTHING.format("public.ITEM", "The nearest name is public.item."),
    NOTHING.format("public.orderlines", "The nearest name is public.OrderLines."),
    NOTHING.format("public.cutsomer", "The nearest name is public.customer."),
    NOTHING.format('public."a.c"', "Correct it, or create the table."),
    NOTHING.format("Sales.*", "The nearest name is sales.*."),
    NOTHING.format("public.nowhere", "Correct it, or create the table."),
    f"{START.format('report.*')}: it only matches relations that are not followed (report.monthly,"
    " report.scratch).",
    f"{START.format('sales.big*')}: earlier rules match all of its tables (sales.*). Move it before them.",
]
RULES = (
    *("public.item", "public.ITEM", "public.orderlines", "public.cutsomer", 'public."a.c"', "Sales.*"),
    *("public.nowhere", "report.*", "sales.*", "sales.big*", "public.watched"),
)


def test_a_rule_without_a_table_is_named_with_the_nearest_name(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY)",
        'CREATE TABLE "OrderLines" (id int PRIMARY KEY)',
        "CREATE TABLE customer (id int PRIMARY KEY)",
        "CREATE VIEW watched AS SELECT * FROM item",
        "CREATE SCHEMA report",
        "CREATE VIEW report.monthly AS SELECT * FROM item",
        "CREATE UNLOGGED TABLE report.scratch (id int PRIMARY KEY)",
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.big_orders (id int PRIMARY KEY)",
    )
    config = replace(
        database.config(root=str(tmp_path / "lake")), tables=tuple(TableRule(rule) for rule in RULES)
    )
    with caplog.at_level(logging.INFO, NOTICES.name):
        summary = run_ingest(config)
    assert [text for text in caplog.messages if text.startswith("The rule ")] == SENTENCES
    assert summary.as_json()["idle_rules"] == SENTENCES
    checks = [f"{c.sentence} {c.fix}".strip() for c in run_checks(config) if c.name == "rules"]
    assert checks == SENTENCES
    status = read_status(config)
    assert status.source is not None
    assert list(status.source.idle_rules) == SENTENCES
    plan = with_idle_rules(make_plan(config), config)
    for found in (status, plan):
        assert SENTENCES[0] in " ".join(render(found.print, 80).split())
        assert SENTENCES[0] in json.dumps(found.as_json())
    assert isinstance(plan, Plan)
    # the view that a rule names has a sentence of its own, and only that
    assert [str(name) for name in summary.unfollowed] == ["public.watched"]


@pytest.mark.promise("protected columns")
def test_no_rule_is_to_be_moved_before_narrower_ones(database: Database) -> None:
    """A last rule for all other tables may have none, and it would show what others protect."""
    names = [TableName("public", "cust"), TableName("public", "pay")]

    def sentences(*rules: TableRule) -> tuple[str, ...]:
        return find_idle_rules(replace(database.config(), tables=rules), names, ())

    secret = ColumnRules(exclude=("secret",))
    narrow = TableRule("public.cust", columns=secret), TableRule("public.pay", columns=secret)
    for last in ("public.*", "*.*", "public.*a*"):
        assert sentences(*narrow, TableRule(last)) == ()
    start = "The rule public.cust of tables has no table: earlier rules match all of its tables"
    [wide] = sentences(TableRule("public.*", columns=secret), TableRule("public.cust"))
    assert wide == (
        f"{start} (public.*). Move it before them, and give it their columns too: else it shows what they "
        "protect."
    )
    [twice] = sentences(TableRule("public.cust"), TableRule("public.cust"), TableRule("public.pay"))
    assert twice == f"{start} (public.cust). Remove one of the two."
