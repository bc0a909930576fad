"""Which copies a table is built from in each mode, and where it begins again."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pipeline.bronze.bases import Base
from pipeline.bronze.copy_states import COMPLETE, CompleteCopy, CopyHistory, CopyState, SnapshotChunks
from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.config.tables import RowMode, TableRule
from pipeline.protected_columns import ProtectedColumn
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold.later_copies import CopyOrder, order_copies
from pipeline.table_name import TableName

NAME = TableName("public", "t")
ID = SourceColumn("id", 23, -1, True, 1, 23)
CODE = SourceColumn("code", 25, -1, False, 2, 25)
FIRST = SourceRelation(1, 500, *NAME, "d", (ID, CODE), 10)
BOTH = replace(FIRST, version=2, columns=(ID, replace(CODE, is_key=True)), lsn=50)
OTHER_KEY = replace(FIRST, version=2, columns=(replace(ID, is_key=False), replace(CODE, is_key=True)), lsn=50)
RENAMED = replace(FIRST, version=2, columns=(replace(ID, name="number"), CODE), lsn=50)
CREATED_AGAIN = replace(FIRST, version=2, oid=501, lsn=50)
WITHOUT_KEY = replace(FIRST, columns=(replace(ID, is_key=False), CODE))
MASKED = replace(FIRST, version=2, lsn=50, protected=(ProtectedColumn("code", "code", 2, "null"),))
LATER = replace(FIRST, version=2, lsn=50)


def state(number: int, version: int, *lsns: int) -> CopyState:
    readings = [SnapshotChunks(LSN(lsn), (), 0, ()) for lsn in lsns]
    return CopyState(number, NAME, COMPLETE, 500, 1, version, readings)


STATES = (state(1, 1, 20), state(2, 1, 30, 40), state(3, 2, 50))


def order(
    mode: RowMode,
    *relations: SourceRelation,
    last: int = 2,
    is_copied: bool = True,
    base: Base | None = None,
    states: Sequence[CopyState] = STATES,
) -> list[int | None]:
    history = CopyHistory({NAME: states})
    rule = TableRule("public.*", mode=mode)
    found = order_copies(NAME, rule, history, relations, states[last].copy, is_copied=is_copied, base=base)
    return [found.first.id if found.first else None, *(copy.id for copy in found.later)]


def test_a_mirror_starts_from_the_last_copy_alone() -> None:
    assert order("mirror", FIRST, LATER) == [3]


def test_other_modes_have_all_copies_in_order_up_to_the_last() -> None:
    assert order("history", FIRST, LATER) == [1, 2, 3]
    assert order("append", FIRST, LATER, last=1) == [1, 2]
    assert order("history", FIRST, LATER, is_copied=False) == [None, 1, 2, 3]


def test_a_table_without_a_copy_begins_with_its_changes() -> None:
    rule = TableRule("public.*", mode="history")
    found = order_copies(NAME, rule, CopyHistory(), [FIRST], None, is_copied=True)
    assert found == CopyOrder(None, ())


@pytest.mark.parametrize(
    ("relation", "begins_again"),
    [
        (LATER, ()),
        (RENAMED, ()),
        (BOTH, ()),
        (OTHER_KEY, ("soft_delete",)),
        (CREATED_AGAIN, ("soft_delete", "history", "append")),
        (MASKED, ("soft_delete", "history", "append")),
    ],
)
def test_a_table_begins_again_where_it_cannot_keep_its_rows(
    relation: SourceRelation, begins_again: tuple[str, ...]
) -> None:
    modes: tuple[RowMode, ...] = ("soft_delete", "history", "append")
    for mode in modes:
        wanted = [3] if mode in begins_again else [1, 2, 3]
        assert order(mode, FIRST, relation) == wanted, mode
        assert order(mode, FIRST, relation, last=1) == [1, 2]  # nothing has changed there
        if mode in begins_again:
            assert order(mode, FIRST, relation, is_copied=False) == [3]


@pytest.mark.parametrize("version", [1, 3])
def test_a_table_whose_name_another_had_meanwhile_begins_again(version: int) -> None:
    other, back = replace(FIRST, version=2, oid=501, lsn=25), replace(FIRST, version=version, lsn=45)
    relations = [FIRST, other] if version == 1 else [FIRST, other, back]
    states = [state(1, 1, 20), state(2, 2, 30, 40), state(3, version, 50), state(4, version, 60)]
    for mode in ("soft_delete", "history", "append"):
        assert order(mode, *relations, states=states, last=3) == [3, 4], mode
        assert order(mode, *relations, states=states, last=1) == [2], mode
        without = [states[0], *states[2:]]
        assert order(mode, *relations, states=without, is_copied=False) == [3, 4], mode


def test_a_table_that_had_no_key_begins_again_where_its_mode_needs_one() -> None:
    assert order("history", WITHOUT_KEY, LATER) == [3]
    assert order("append", WITHOUT_KEY, LATER) == [1, 2, 3]


def test_copies_that_a_base_has_removed_are_left_out() -> None:
    assert order("history", FIRST, LATER, base=Base(NAME, LSN(45), 2)) == [2, 3]
    assert order("history", FIRST, LATER, base=Base(NAME, LSN(45))) == [None, 3]


def test_a_copy_knows_when_its_last_snapshot_was_recorded() -> None:
    copy = STATES[0].copy
    assert isinstance(copy, CompleteCopy)
    assert (copy.micros, copy.end_lsn) == (0, 20)
