"""The rows of a base are those of the table, for random histories of every kind of table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.schema import CHANGES
from pipeline.bronze.source_relations import SourceRelation
from pipeline.key_ranges import KeyRange
from pipeline.protocol.lsn import LSN
from pipeline.silver.write.base_rows import LOADED_COLUMNS, BaseInput, BaseRows, NotCompacted
from pipeline.table_name import TableName
from tests.support.histories import APPENDED, BAG, COMPOSITE, FULL_WITH_KEY, KEYED, random_changes
from tests.support.model import ModelChange, Shape, Table, apply_all
from tests.support.silver.relations import NUMERIC, column, relation

NAME = TableName("public", "t")
END, KEYS_AT = LSN(10_000), LSN(5_000)
TIMESTAMP = 1114
_PLACES = [("table_number", pa.int32()), ("place", pa.int64()), ("file", pa.int32()), ("is_raw", pa.bool_())]
LOADED = pa.schema([*(CHANGES.field(name) for name in LOADED_COLUMNS), *_PLACES])


class Histories:
    """Histories of several tables, each a table of its own; its changes are in a file of their own."""

    def __init__(self, folder: Path) -> None:
        self.relations: dict[int, SourceRelation] = {}
        self._versions: dict[tuple[int, Shape], int] = {}
        self._changes: dict[int, list[ModelChange]] = {}
        self.rows = BaseRows(folder, self.relations)

    def add(
        self,
        number: int,
        changes: Sequence[ModelChange],
        *,
        copied: int = 0,
        keys: range = range(0),
        key_ranges: tuple[KeyRange, ...] = (),
        lsns: tuple[LSN, ...] = (KEYS_AT,),
    ) -> BaseInput:
        """Load changes; the first `copied` ones are rows of a copy at LSN 1.

        With `key_ranges`, those at indexes `keys` are rows of a partial copy, after all changes before them.
        """
        self._changes[number] = list(changes)
        rows = []
        for place, each in enumerate(changes):
            row = self._row(number, place, each, place < copied)
            if place in keys:
                row |= {"op": "R", "copy_id": 6, "commit_lsn": lsns[-1], "end_lsn": lsns[-1]}
            elif key_ranges and place >= keys.stop:
                row |= {"commit_lsn": KEYS_AT + 10 + place // 3, "end_lsn": KEYS_AT + 10 + place // 3}
            rows.append(row)
        self.rows.load(pa.Table.from_pylist(rows, LOADED))
        version = self._version(number, changes[0].shape)
        copy = CompleteCopy(5, version, (LSN(1),), copied) if copied else None
        partial = CompleteCopy(6, version, lsns, len(keys), key_ranges=key_ranges)
        return BaseInput(number, NAME, END, copy, partial_copies=(partial,) if key_ranges else ())

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
        return list(self.left_by_place(number).values())

    def left_by_place(self, number: int) -> dict[int, ModelChange]:
        """Return the changes that are left of a table, by their places."""
        gone = set(self.rows.removed_places(number).tolist())
        replaced = {row["place"]: row for row in self.rows.replaced_rows(number).to_pylist()}
        found = {}
        for place, change in enumerate(self._changes[number]):
            if place in replaced:
                row = replaced[place]
                unsent = frozenset(row["unsent"] or ())
                change = ModelChange(row["op"], change.shape, new=tuple(row["new"]), unsent=unsent)
            if place not in gone:
                found[place] = change
        return found


_NUMBERS: dict[str, int] = {}


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Histories]:
    made = Histories(tmp_path)
    yield made
    made.rows.close()


@pytest.mark.costly
@pytest.mark.promise("retention")
@pytest.mark.sample(4)
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


@pytest.mark.costly
@pytest.mark.promise("retention")
@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [KEYED, COMPOSITE], ids=["one column", "two columns"])
@pytest.mark.parametrize("copies", [True, False], ids=["copied", "streamed"])
@pytest.mark.parametrize("is_late", [True, False], ids=["two snapshots", "one snapshot"])
def test_a_base_has_the_keys_that_were_copied(
    histories: Histories, shape: Shape, copies: bool, is_late: bool
) -> None:
    """Rows in a range that the copy lacks are in the base no more, with those that the source lost."""

    def key(row: Mapping[str, str | None]) -> tuple[str, ...]:
        return tuple(row[shape.columns[i]] or "" for i in shape.key)

    compacted = removed = 0
    for seed in range(1, 25):
        random = Random(seed)
        history = random_changes(random, shape, count=40)
        changes = [insert(shape, row) for row in history.initial]
        copied = len(changes)
        changes += history.changes
        cut = copied + random.randrange(5, 35)
        shown = apply_all([], changes[:cut])
        found = sorted({key(row) for row in shown.rows})
        if len(found) < 4:
            continue
        first, last = sorted(random.sample(found, 2))
        ranges = (KeyRange(first, last), KeyRange(found[0], found[0]), KeyRange(found[-1][:1], ()))
        later = {texts for change in changes[cut:] for texts in keys_of(change)}
        inside = [k for k in found if first <= k <= last or k == found[0] or k[:1] >= found[-1][:1]]
        kept = {k for k in inside if k in later or random.random() < 0.6}
        rows = [row for row in shown.rows if key(row) in kept]
        put = [
            insert(shape, {name: row[name] if name in key_names(shape) else f"copied {name}" for name in row})
            for row in rows
        ]
        before = Table([row for row in shown.rows if key(row) not in inside])
        everything = [*changes[:cut], *put, *changes[cut:]]
        for change in everything[cut:]:
            before.apply(change)
        counts = histories.rows.compact(
            histories.add(
                seed,
                everything,
                copied=copied if copies else 0,
                keys=range(cut, cut + len(put)),
                key_ranges=ranges,
                lsns=(KEYS_AT, LSN(KEYS_AT + 5)) if is_late else (KEYS_AT,),
            )
        )
        after = apply_all([], histories.left(seed))
        assert after.counted(shape.columns) == before.counted(shape.columns), f"seed {seed}"
        assert not after.unavailable
        compacted += counts.copied.get(6, len(put)) < len(put)
        removed += len(inside) - len(kept)
    assert compacted > 0
    assert removed > 0, "the source lost rows without a message"


def insert(shape: Shape, row: Mapping[str, str | None]) -> ModelChange:
    return ModelChange("I", shape, new=tuple(row[name] for name in shape.columns))


def key_names(shape: Shape) -> set[str]:
    return {shape.columns[i] for i in shape.key}


def keys_of(change: ModelChange) -> Iterator[tuple[str, ...]]:
    """Yield the keys that a change names; one that it does not send is that of the old row."""
    old = change.old or change.new or ()
    for texts in filter(None, (change.old, change.new)):
        yield tuple(
            (old[i] if texts is change.new and i in change.unsent else texts[i]) or ""
            for i in change.shape.key
        )


@pytest.mark.promise("retention")
def test_a_base_has_the_rows_of_the_last_table_of_a_name(histories: Histories) -> None:
    other = Shape(("k", "b"), "d", flagged=(0,))
    changes = [ModelChange("I", KEYED, new=(key, "x", None)) for key in "123"]
    changes += [ModelChange("I", other, new=(key, "x")) for key in "45"]
    changes += [ModelChange("D", other, old=("4", None), old_kind="K")]
    table = histories.add(1, changes)
    newest = max(histories.relations)
    histories.relations[newest] = replace(histories.relations[newest], oid=99)
    assert histories.rows.compact(table).removed == 5
    assert histories.left(1) == [changes[4]]
    gone = histories.add(2, [*changes[:2], ModelChange("D", KEYED, old=("2", None, None), old_kind="K")])
    histories.rows.compact(replace(gone, has_other_names=True))
    assert [change.op for change in histories.left(2)] == ["I", "D"], "the last change shows the name"


def test_copied_keys_that_silver_cannot_find_keep_all(histories: Histories) -> None:
    single, span = KeyRange(("1",), ("1",)), KeyRange(("1",), ("2",))
    rows = [ModelChange("I", BAG, new=("1", "x", None))] * 2
    with pytest.raises(NotCompacted, match="its replica identity is no key"):
        histories.rows.compact(histories.add(1, rows, keys=range(1, 2), key_ranges=(single,)))
    rows = [ModelChange("I", KEYED, new=(key, "x", None)) for key in ("1", "3")]
    with pytest.raises(NotCompacted, match="silver cannot find the keys"):
        histories.rows.compact(histories.add(2, rows, keys=range(1, 2), key_ranges=(span,)))
    table = histories.add(3, rows, keys=range(2, 2), key_ranges=(span,))
    for kind in (NUMERIC, TIMESTAMP):
        histories.relations[table.partial_copies[0].version] = relation(
            column("k", 1, kind, is_key=True), column("a", 2), column("big", 3), version=3, oid=3
        )
        with pytest.raises(NotCompacted, match="silver cannot find the keys"):
            histories.rows.compact(table)


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
