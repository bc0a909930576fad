"""What is copied if rows differ: their keys, or all rows if keys do not identify them."""

from pipeline.key_ranges import KeyRange
from pipeline.postgres.snapshot.comparable_forms import TEXT, Form, HashedKind
from pipeline.postgres.snapshot.hashed_rows import HashedColumns
from pipeline.silver.compare.comparable_columns import ComparableColumns
from pipeline.silver.compare.differing_rows import Differences, DifferingRow
from pipeline.table_name import TableName
from pipeline.verify import reconcile
from pipeline.verify.reconcile import plan_repair, repair_sentence

NAME = TableName("public", "t")


def compared(*forms: Form, width: int = 1) -> ComparableColumns:
    columns = tuple((f"c{i}", form) for i, form in enumerate(forms))
    return ComparableColumns(HashedColumns(columns, tuple(range(width))), (), {})


def differences(*keys: tuple[str | None, ...]) -> Differences:
    return Differences(5, 5, [DifferingRow("changed", key) for key in keys], is_equal=False)


def test_keys_of_differing_rows_are_copied_once() -> None:
    request = plan_repair(NAME, differences(("2",), ("1",), ("2",)), compared(TEXT, TEXT))
    assert request.key_ranges == (KeyRange(("1",), ("1",)), KeyRange(("2",), ("2",)))
    assert request.name == NAME
    assert repair_sentence(request) == "A partial resync of 2 keys is requested."


def test_if_keys_do_not_identify_rows_the_table_is_copied() -> None:
    assert plan_repair(NAME, differences(()), compared(TEXT, width=0)).key_ranges == ()
    assert plan_repair(NAME, differences(("1",)), compared(Form(HashedKind.DOUBLE))).key_ranges == ()
    assert plan_repair(NAME, differences(("1",), (None,)), compared(TEXT)).key_ranges == ()
    many = differences(*((str(i),) for i in range(reconcile.MAX_KEYS + 1)))
    request = plan_repair(NAME, many, compared(TEXT))
    assert request.key_ranges == ()
    assert repair_sentence(request) == "A resync of the whole table is requested."
    some = differences(("1",))
    some.is_whole = False
    assert plan_repair(NAME, some, compared(TEXT)).key_ranges == ()
