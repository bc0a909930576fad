"""Properties are set where they differ from the rule, and left alone where it does not name them."""

import pytest

from pipeline.config.tables import TableRule
from pipeline.silver.schema.schema_evolution import plan_properties

FEED = "delta.enableChangeDataFeed"


@pytest.mark.parametrize(
    ("rule", "configuration", "comment", "wanted"),
    [
        (TableRule("*.*"), {FEED: "true", "a": "1"}, "x", None),
        (TableRule("*.*", comment="x"), {}, "x", None),
        (TableRule("*.*", comment="y"), {}, "x", {"comment": "y"}),
        (TableRule("*.*", properties={"a": "1", "b": "2"}), {"a": "1", "b": "3"}, None, {"b": "2"}),
        (TableRule("*.*", change_feed=True), {}, None, {FEED: "true"}),
        (TableRule("*.*", change_feed=True), {FEED: "true"}, None, None),
        (TableRule("*.*", change_feed=False), {}, None, None),
        (TableRule("*.*", change_feed=False), {FEED: "true"}, None, {FEED: "false"}),
    ],
)
def test_only_what_differs_is_set(
    rule: TableRule, configuration: dict[str, str], comment: str | None, wanted: dict[str, str] | None
) -> None:
    found = plan_properties(rule, configuration, comment)
    assert (dict(found.properties) if found else None) == wanted
    assert plan_properties(rule.without_layout(), configuration, comment) is None


def test_a_statement_quotes_what_it_is_given() -> None:
    found = plan_properties(TableRule("*.*", comment="it's; --"), {}, None)
    assert found is not None
    assert found.statements("t") == ("ALTER TABLE t SET TBLPROPERTIES ('comment' = 'it\\'s; --')",)
    assert found.is_native
    assert not found.enables_change_feed
