"""The rows of a base are those of the table, for random histories of every kind of table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.relations import SourceRelation
from pipeline.bronze.schema import CHANGES
from pipeline.protocol.lsn import LSN
from pipeline.silver.base_rows import LOADED_COLUMNS, BaseInput, BaseRows, NotCompacted
from pipeline.table_name import TableName
from tests.support.histories import APPENDED, BAG, COMPOSITE, FULL_WITH_KEY, KEYED, random_changes
from tests.support.model import ModelChange, Shape, apply_all
from tests.support.silver.relations import column, relation

NAME = TableName("public", "t")
END = LSN(10_000)
_PLACES = [("table_number", pa.int32()), ("place", pa.int64()), ("file", pa.int32()), ("is_raw", pa.bool_())]
LOADED = pa.schema([*(CHANGES.field(name) for name in LOADED_COLUMNS), *_PLACES])


class Histories:
    """Histories of several tables, each a table of its own; its changes are in a file of their own."""

    def __init__(self, folder: Path) -> None:
        self.relations: dict[int, SourceRelation] = {}
        self._versions: dict[tuple[int, Shape], int] = {}
        self._changes: dict[int, list[ModelChange]] = {}
        self.rows = BaseRows(folder, self.relations)

    def add(self, number: int, changes: Sequence[ModelChange], *, copied: int = 0) -> BaseInput:
        """Load changes, of which the first ones are rows of a copy at LSN 1."""
        self._changes[number] = list(changes)
        rows = [self._row(number, place, each, place < copied) for place, each in enumerate(changes)]
        self.rows.load(pa.Table.from_pylist(rows, LOADED))
        copy = None
        if copied:
            copy = CompleteCopy(5, self._version(number, changes[0].shape), (LSN(1),), copied)
        return BaseInput(number, NAME, END, copy)

    def _row(self, number: int, place: int, change: ModelChange, is_copied: bool) -> dict[str, object]:
        lsn = 1 if is_copied else 10 + place // 3  # some changes are of one transaction
        return {
            "commit_lsn": lsn,
            "end_lsn": lsn,
            "ordinal": place,
            "op": "R" if is_copied else change.op,
            "relation_version": self._version(number, change.shape),
            "old_kind": change.old_kind,
            "old": change.old,
            "new": change.new,
            "unsent": sorted(change.unsent) or None,
            "copy_id": 5 if is_copied else None,
            "table_number": number,
            "file": number,
            "place": place,
            "is_raw": False,
        }

    def _version(self, number: int, shape: Shape) -> int:
        found = self._versions.setdefault((number, shape), len(self._versions) + 1)
        columns = (
            column(name, _NUMBERS.setdefault(name, len(_NUMBERS) + 1), is_key=i in shape.flagged)
            for i, name in enumerate(shape.columns)
        )
        self.relations[found] = relation(*columns, version=found, oid=number, identity=shape.identity)
        return found

    def left(self, number: int) -> list[ModelChange]:
        """Return the changes that are left of a table."""
        gone = set(self.rows.removed_places(number).tolist())
        replaced = {row["place"]: row for row in self.rows.replaced_rows(number).to_pylist()}
        found = []
        for place, change in enumerate(self._changes[number]):
            if place in replaced:
                row = replaced[place]
                unsent = frozenset(row["unsent"] or ())
                change = ModelChange(row["op"], change.shape, new=tuple(row["new"]), unsent=unsent)
            if place not in gone:
                found.append(change)
        return found


_NUMBERS: dict[str, int] = {}


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Histories]:
    made = Histories(tmp_path)
    yield made
    made.rows.close()


@pytest.mark.parametrize("copies", [True, False], ids=["copied", "streamed"])
@pytest.mark.parametrize("evolves", [False, True], ids=["plain", "evolves"])
@pytest.mark.parametrize(
    "shape", [KEYED, COMPOSITE, BAG, FULL_WITH_KEY, APPENDED], ids=lambda shape: shape.columns[0]
)
def test_a_base_has_the_rows_of_the_table(
    histories: Histories, shape: Shape, evolves: bool, copies: bool
) -> None:
    compacted = 0
    for seed in range(1, 13):
        history = random_changes(Random(seed), shape, count=40, evolves=evolves)
        initial = [
            ModelChange("I", shape, new=tuple(row[name] for name in shape.columns)) for row in history.initial
        ]
        changes = [*initial, *history.changes]
        table = histories.add(seed, changes, copied=len(initial) if copies else 0)
        try:
            counts = histories.rows.compact(table)
        except NotCompacted:
            assert evolves
            continue
        left = histories.left(seed)
        assert len(changes) - counts.removed == len(left)
        names = history.shape.columns
        made = apply_all([], left)
        assert not made.unavailable
        assert made.counted(names) == apply_all([], changes).counted(names), f"seed {seed}"
        inserts = [change for change in left if change.op == "I"]
        assert len(left) - len(inserts) <= 1, "one change may stay for its columns"
        assert len(inserts) == len(made.rows)
        compacted += counts.removed > 0
    assert compacted > 0


def test_values_that_no_change_has_stay_unknown(histories: Histories) -> None:
    changes = [
        ModelChange("U", KEYED, new=("1", "x", None), unsent=frozenset({2})),
        ModelChange("U", KEYED, new=("1", "y", None), unsent=frozenset({2})),
    ]
    assert histories.rows.compact(histories.add(1, changes)).removed == 1
    assert histories.left(1) == [ModelChange("U", KEYED, new=("1", "y", None), unsent=frozenset({2}))]


def test_what_cannot_be_folded_stays(histories: Histories) -> None:
    absent = [ModelChange("I", BAG, new=("1", "x", None)), ModelChange("D", BAG, "O", ("2", "x", None))]
    other_key = Shape(("k", "a", "big"), "i", flagged=(1,))
    rekeyed = [
        ModelChange("I", KEYED, new=("1", "x", None)),
        ModelChange("I", other_key, new=("2", "y", None)),
    ]
    for number, (changes, reason) in enumerate(((absent, "lacks rows"), (rekeyed, "key have changed"))):
        with pytest.raises(NotCompacted, match=reason):
            histories.rows.compact(histories.add(number, changes))
        assert len(histories.left(number)) == len(changes)


def test_rows_before_a_copy_and_after_the_base_are_not_part_of_it(histories: Histories) -> None:
    shape = KEYED
    copied = [ModelChange("I", shape, new=(str(key), "copied", None)) for key in range(3)]
    changes = [
        *copied,
        ModelChange("U", shape, new=("1", "later", None)),
        ModelChange("D", shape, "K", ("2", None, None)),
    ]
    table = histories.add(1, changes, copied=3)
    early = BaseInput(1, NAME, LSN(9), table.copy)
    assert histories.rows.compact(early).removed == 0
    assert histories.rows.compact(table).removed == 3
    assert [change.new for change in histories.left(1)] == [("0", "copied", None), ("1", "later", None)]
    histories.add(2, changes)
    assert histories.rows.compact(BaseInput(2, NAME, END, is_gone=True)).removed == len(changes)
    assert histories.left(2) == []
