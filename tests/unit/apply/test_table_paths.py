"""A folder of silver belongs to the table that is registered for it."""

import pytest

from pipeline.apply.table_renames import why_folder_is_taken
from pipeline.metadata.registry import RegisteredTable
from pipeline.table_name import TableName

ROOT = "file:/lake"
A, B = TableName("public", "a"), TableName("public", "b")
AT_A, AT_B, AT_T = "silver/public/a", "silver/public/b", "silver/t"


@pytest.mark.parametrize(
    ("places", "path", "whose"),
    [
        ({}, AT_A, None),  # the run that began it ended before it could record it
        ({A: AT_A, B: AT_B}, AT_A, None),
        ({A: AT_T, B: AT_B}, AT_T, None),
        ({B: AT_B}, AT_A, None),
        ({A: AT_A, B: AT_T}, AT_T, "those of public.b"),
        ({B: AT_T}, AT_T, "those of public.b"),
        ({A: AT_T, B: AT_B}, AT_A, f"outdated, its current rows are in {ROOT}/{AT_T}"),
    ],
)
def test_a_folder_with_rows_is_its_own_or_refused(
    places: dict[TableName, str], path: str, whose: str | None
) -> None:
    registered = {name: RegisteredTable(*name, f"{ROOT}/{place}", 1, ()) for name, place in places.items()}
    why = why_folder_is_taken(A, f"{ROOT}/{path}", registered)
    assert (why is None) == (whose is None)
    if whose:
        assert f"Table public.a is held: the rows in its folder {ROOT}/{path} are {whose}." in (why or "")
