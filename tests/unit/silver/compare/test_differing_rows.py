"""Ranges are divided until the rows that differ are few; what differs is what was made to differ."""

import hashlib
from collections.abc import Sequence
from random import Random

import pytest

from pipeline.fingerprint import Fingerprint
from pipeline.postgres.snapshot.hashed_rows import RowHash
from pipeline.silver.compare import differing_rows
from pipeline.silver.compare.differing_rows import DifferingRow, compare_rows, find_differences

Row = tuple[str | None, str]  # key, value; None where the table has no key


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


class Rows:
    """A side that holds rows in memory; `read_rows` counts the rows that it returned."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.hashed = []
        for key, value in rows:
            row = md5(f"{key} {value}")
            texts = () if key is None else (key,)
            columns = (md5(str(key)), md5(value))
            self.hashed.append(RowHash(row if key is None else md5(key), row, columns, texts))
        self.read_rows = 0

    def sums(self, digits: int, within: Sequence[str] | None = None) -> dict[str, Fingerprint]:
        found: dict[str, Fingerprint] = {}
        for row in self._within(within):
            before = found.get(row.key[:digits], Fingerprint())
            first, second = int(row.row[:15], 16), int(row.row[16:31], 16)
            found[row.key[:digits]] = Fingerprint(
                before.rows + 1, before.first + first, before.second + second
            )
        return found

    def rows(self, within: Sequence[str]) -> list[RowHash]:
        found = self._within(within)
        self.read_rows += len(found)
        return found

    def _within(self, within: Sequence[str] | None) -> list[RowHash]:
        if within is None:
            return self.hashed
        return [row for row in self.hashed if row.key[: len(within[0])] in within]


def table(count: int) -> list[Row]:
    return [(str(i), f"value {i % 7}") for i in range(count)]


def test_equal_tables_are_equal_and_no_row_is_read() -> None:
    rows = table(500)
    source, silver = Rows(rows), Rows(rows[::-1])
    found = find_differences(source, silver)
    assert (found.is_equal, found.source_rows, found.silver_rows, found.rows) == (True, 500, 500, [])
    assert source.read_rows == silver.read_rows == 0


@pytest.mark.parametrize("max_rows", [50_000, 20])
def test_every_injury_is_found(monkeypatch: pytest.MonkeyPatch, max_rows: int) -> None:
    monkeypatch.setattr(differing_rows, "MAX_ROWS", max_rows)
    monkeypatch.setattr(differing_rows, "FIRST_DIGITS", 1)
    rows = table(3000)
    injured = [row for row in rows if row[0] != "17"]  # missing
    injured[40] = (injured[40][0], "another value")
    injured += [("new", "row"), rows[100]]
    found = find_differences(source := Rows(rows), Rows(injured))
    assert not found.is_equal
    assert found.is_whole
    assert {(row.kind, row.key, row.columns) for row in found.rows} == {
        ("missing", ("17",), ()),
        ("changed", (injured[40][0],), (1,)),
        ("surplus", ("new",), ()),
        ("surplus", ("100",), ()),
    }
    assert source.read_rows < (3000 if max_rows == 50_000 else 30)


def test_equal_rows_of_a_multiset_are_counted() -> None:
    source = Rows([(None, "a")] * 3 + [(None, "b")] * 2)
    found = find_differences(source, Rows([(None, "a")] * 5 + [(None, "b")]))
    assert {(row.kind, row.copies) for row in found.rows} == {("surplus", 2), ("missing", 1)}
    assert (found.count("surplus"), found.count("missing"), found.count("changed")) == (2, 1, 0)


def test_of_a_table_that_differs_everywhere_some_rows_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differing_rows, "MAX_ROWS", 50)
    monkeypatch.setattr(differing_rows, "MAX_RANGES", 4)
    rows = table(9000)
    found = find_differences(source := Rows(rows), Rows([(key, "nothing") for key, _ in rows]))
    assert not found.is_equal
    assert not found.is_whole
    assert found.rows
    assert {row.kind for row in found.rows} == {"changed"}
    assert source.read_rows <= 50


def test_a_table_that_silver_lacks_whole_is_missing() -> None:
    found = find_differences(Rows(table(30)), Rows([]))
    assert (found.count("missing"), found.silver_rows) == (30, 0)


def test_rows_are_compared_as_multisets_of_each_key() -> None:
    rng = Random(7)
    for _ in range(200):
        sides = [[(str(rng.randrange(3)), str(rng.randrange(2))) for _ in range(6)] for _ in range(2)]
        source, silver = (Rows(side).hashed for side in sides)
        found = compare_rows(source, silver)
        change = sum(row.copies * {"missing": -1, "surplus": 1, "changed": 0}[row.kind] for row in found)
        assert len(source) + change == len(silver)
        assert (found == []) == (sorted(sides[0]) == sorted(sides[1]))
    assert compare_rows([], []) == []
    assert DifferingRow("missing", ("1",)) == compare_rows(Rows([("1", "a")]).hashed, [])[0]
