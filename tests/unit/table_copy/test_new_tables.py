"""Which tables wait: those that a transaction was writing to when they joined, until it has ended."""

import pytest

from pipeline.bronze.copy_states import COMPLETE, CopyState
from pipeline.postgres.open_transactions import OpenTransactions, keeps_stale_entries
from pipeline.postgres.publication import Membership
from pipeline.table_copy.candidates import is_new
from pipeline.table_copy.new_tables import PATIENCE, RUN_PATIENCE, NewTables
from pipeline.table_name import TableName

NAME = TableName("public", "t")
OTHER = TableName("public", "u")
JOINED = {NAME: Membership(10, 1), OTHER: Membership(20, 2)}


def waiting(new_tables: NewTables, writers: OpenTransactions, now: float = 0.0) -> dict[TableName, int]:
    tables = new_tables.update(JOINED, writers, now)
    return {name: len(table.writers) for name, table in tables.items() if table.is_waiting}


def on_primary(*writers: str) -> OpenTransactions:
    return OpenTransactions({10: frozenset(writers)})


def test_a_later_writer_is_not_waited_for() -> None:
    new_tables = NewTables()
    assert waiting(new_tables, on_primary("3/7", "-1/700")) == {NAME: 2}
    assert waiting(new_tables, on_primary("3/7", "3/8")) == {NAME: 1}
    assert waiting(new_tables, on_primary("3/8")) == {}
    assert waiting(new_tables, on_primary("3/7")) == {}, "a table that has settled stays so"


def test_a_table_that_joins_again_waits_again() -> None:
    new_tables = NewTables()
    assert waiting(new_tables, on_primary()) == {}
    again = {NAME: Membership(10, 3)}
    assert new_tables.update(again, on_primary("4/1"), 0.0)[NAME].is_waiting


def test_on_a_standby_all_that_was_open_is_waited_for() -> None:
    new_tables = NewTables()
    assert waiting(new_tables, OpenTransactions({}, (90, 100))) == {NAME: 1, OTHER: 1}
    assert waiting(new_tables, OpenTransactions({}, (99, 120))) == {NAME: 1, OTHER: 1}
    assert waiting(new_tables, OpenTransactions({}, (100, 120))) == {}
    assert waiting(NewTables(), OpenTransactions({}, (100, 100))) == {}


def test_a_long_wait_has_a_sentence() -> None:
    for patience in (PATIENCE, RUN_PATIENCE):
        new_tables = NewTables(patience)
        tables = new_tables.update(JOINED, on_primary("3/7"), 5.0)
        assert tables[NAME].sentence(5.0 + patience - 1) is None
        assert "(1)" in (tables[NAME].sentence(5.0 + patience) or "")
        assert tables[OTHER].sentence(5.0 + patience) is None


def test_a_table_joins_once_and_never_with_all_tables() -> None:
    copied = [CopyState(1, NAME, COMPLETE, membership=1)]
    assert is_new(Membership(10, 1), [])
    assert not is_new(Membership(10, 1), copied)
    assert is_new(Membership(10, 2), copied)
    assert not is_new(Membership(10, 0), [])


@pytest.mark.parametrize(
    ("version", "stale"),
    [
        (100023, True),
        (120022, True),
        (130020, True),
        (130021, False),
        (140018, False),
        (160008, True),
        (170005, False),
        (180000, False),
    ],
)
def test_servers_that_keep_stale_entries(version: int, stale: bool) -> None:
    assert keeps_stale_entries(version) is stale
