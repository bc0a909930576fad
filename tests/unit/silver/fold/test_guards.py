"""Guards hold a table with more pending deletes or truncates than allowed; the sentence says what to do."""

import shlex

import pytest

from pipeline.config.tables import Guards, TableRule
from pipeline.silver.fold.policies import confirm_command, find_excess
from pipeline.table_name import TableName

NAME = TableName("public", "orders")


@pytest.mark.parametrize(
    ("guards", "counts"),
    [
        (Guards(), {"I": 0, "U": 0, "D": 10**9, "T": 10**9}),
        (Guards(deletes=5), {"D": 5, "T": 7}),
        (Guards(truncates=1), {"D": 5, "T": 1}),
        (Guards(0, 0), {"I": 9, "U": 9, "D": 0, "T": 0}),
        (Guards(0, 0), {}),
    ],
)
def test_changes_within_the_limits_hold_no_table(guards: Guards, counts: dict[str, int]) -> None:
    assert find_excess(NAME, counts, guards) is None


@pytest.mark.parametrize(
    ("guards", "counts", "excess"),
    [
        (Guards(deletes=5), {"D": 6, "T": 7}, "6 deletes (guards.deletes is 5)"),
        (Guards(deletes=0), {"I": 10, "D": 1}, "1 deletes (guards.deletes is 0)"),
        (Guards(truncates=0), {"D": 6, "T": 1}, "1 truncates (guards.truncates is 0)"),
        (
            Guards(5, 0),
            {"D": 6, "T": 2},
            "6 deletes (guards.deletes is 5) and 2 truncates (guards.truncates is 0)",
        ),
    ],
)
def test_more_than_a_limit_holds_the_table(guards: Guards, counts: dict[str, int], excess: str) -> None:
    assert find_excess(NAME, counts, guards) == (
        f"Table public.orders is held by its guards: {excess} are pending. If they are intended, run "
        "pgdelta apply --confirm --table public.orders. Until then bronze keeps the changes."
    )


@pytest.mark.parametrize(
    ("name", "glob"),
    [
        (TableName("public", "orders"), "public.orders"),
        (TableName("a.b", "c"), '"a.b".c'),
        (TableName("a", 'say "b"'), 'a."say ""b"""'),
        (TableName("Ä", "it's; rm"), "Ä.it's; rm"),
    ],
)
def test_the_command_names_that_table_and_no_other(name: TableName, glob: str) -> None:
    assert str(name) == glob
    words = shlex.split(confirm_command(name))
    assert words == ["pgdelta", "apply", "--confirm", "--table", glob]
    assert TableRule(words[-1]).matches(name)
    assert not TableRule(words[-1]).matches(TableName(name.schema, name.table + "x"))
