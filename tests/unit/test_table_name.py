"""Names of tables and the globs of a command line."""

import re

import pytest

from pipeline.errors import ConfigError
from pipeline.table_name import TableGlob, TableName, match_tables

NAMES = [
    TableName("public", "orders"),
    TableName("My schema", 'odd"na.me'),
    TableName("a.b", "c"),
    TableName("s", "x'y"),
]


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_the_glob_of_a_name_matches_it_and_no_other(name: TableName) -> None:
    assert [each for each in NAMES if TableGlob(str(name)).matches(each)] == [name]


def test_a_name_is_quoted_for_a_shell() -> None:
    assert NAMES[0].command("resync") == "pgdelta resync --table public.orders"
    assert NAMES[3].command("resync") == "pgdelta resync --table 's.x'\"'\"'y'"


def test_any_glob_of_a_command_line_matches_and_none_matches_all() -> None:
    matches = match_tables(["public.*", '"a.b".*'])
    assert [name for name in NAMES if matches(name)] == [NAMES[0], NAMES[2]]
    assert all(map(match_tables(None), NAMES))


@pytest.mark.parametrize(
    ("glob", "example"),
    [("orders", ", as in public.orders"), ("a.b.c", ', as in a."b.c"'), ("a.", ""), ('a."b', "")],
)
def test_what_is_no_glob_is_refused(glob: str, example: str) -> None:
    sentence = (
        f"{glob} is not a `schema.table` glob. Write schema.table, and double-quote a part that contains a"
        f" dot{example}."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        match_tables(["public.*", glob])
