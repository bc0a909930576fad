"""Key values given by a user, checked by the server that is to find them."""

import pytest

from pipeline.errors import SourceError
from pipeline.key_ranges import KeyRange
from pipeline.postgres.key_conditions import accepts_keys, key_condition
from pipeline.protocol.pg_types import PgType
from pipeline.table_name import TableName
from tests.support.servers import Database

NAMES, TYPES = ("region", "No", "day"), (PgType.TEXT, PgType.INT4, PgType.DATE)
TABLE = 'CREATE TABLE parts (region text, "No" int, day date, PRIMARY KEY (region, "No", day))'


@pytest.mark.parametrize(
    ("first", "last", "is_taken"),
    [
        (("a", "1", "2020-01-01"), ("a", "1", "2020-01-01"), True),
        (("a", "1"), ("b", "2"), True),
        (("it's %s {} \\",), (), True),
        (("a", "abc"), ("a", "abc"), False),
        (("a", "1"), ("b", "99999999999"), False),
        (("a", "1", "2020-02-30"), ("a", "1", "2020-02-30"), False),
        (("", ""), (), False),
    ],
)
def test_values_are_those_of_their_columns_types(
    database: Database, first: tuple[str, ...], last: tuple[str, ...], is_taken: bool
) -> None:
    database.run("CREATE ROLE blind LOGIN", TABLE)
    condition = key_condition(NAMES, TYPES, [KeyRange(first, last)])
    try:
        with database.connect() as connection:
            connection.execute("SET ROLE blind")  # it may not read the table, and need not
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            assert accepts_keys(connection, TableName("public", "parts"), condition) == is_taken
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        database.run("DROP ROLE blind")


def test_a_missing_column_or_table_is_named_and_the_transaction_continues(database: Database) -> None:
    database.run(TABLE)
    keys = key_condition(("gone",), (PgType.INT4,), [KeyRange(("1",), ("1",))])
    with database.connect() as connection, connection.transaction():
        with pytest.raises(SourceError, match=r"The table public\.parts cannot be read by its key: .*gone"):
            accepts_keys(connection, TableName("public", "parts"), keys)
        with pytest.raises(SourceError, match=r"The table public\.other cannot be read"):
            accepts_keys(connection, TableName("public", "other"), keys)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_check_of_the_keys_leaves_no_lock_in_an_open_transaction(database: Database) -> None:
    database.run(TABLE)
    keys = key_condition(NAMES, TYPES, [KeyRange(("a",), ("b",))])
    with database.connect() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        assert accepts_keys(connection, TableName("public", "parts"), keys)
        pid = connection.info.backend_pid
        query = f"SELECT 1 FROM pg_locks WHERE pid = {pid} AND relation = 'parts'::regclass"
        assert not database.run(query)
