"""The outcome of the demo: every table has to be equal, in all of its columns."""

from pathlib import Path

import pytest
from rich.console import Console

from pipeline.demo.outcome import DemoResult, print_outcome
from pipeline.demo.shop import SCHEMA_NAME, TABLES
from pipeline.metadata.reconciliations import DIFFERENT, EQUAL, Reconciliation
from pipeline.table_name import TableName


def outcome(*, of_orders: Reconciliation | None = None) -> DemoResult:
    equal = [Reconciliation(TableName(SCHEMA_NAME, table), EQUAL) for table in TABLES]
    verdicts = [of_orders if of_orders and of_orders.name == each.name else each for each in equal]
    return DemoResult(Path("/lake"), Path("/pipeline.yaml"), comparisons=verdicts)


ORDERS = TableName(SCHEMA_NAME, "orders")


def test_tables_that_are_equal_are_equal() -> None:
    assert outcome().is_equal
    found = outcome()
    found.comparisons.pop()
    assert not found.is_equal, "one was not compared"


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Reconciliation(ORDERS, DIFFERENT, missing=2), "2 missing"),
        (Reconciliation(ORDERS, DIFFERENT, changed=1, columns=("total",)), "1 with other values (total)"),
        (Reconciliation(ORDERS, EQUAL, left_out={"total": "no form in common"}), "not compared: total"),
    ],
)
def test_a_table_that_differs_or_is_not_compared_whole_is_named(
    verdict: Reconciliation, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = outcome(of_orders=verdict)
    assert not found.is_equal
    print_outcome(Console(width=160), found)
    assert words in capsys.readouterr().out
