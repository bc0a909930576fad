"""Files with keys of any size are sorted until few of them may have a key, and then left alone."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.delta.checkpoints import write_checkpoint
from pipeline.delta.data_files import arrow_columns, write_data_file
from pipeline.delta.merge import merge_groups
from pipeline.delta.native_commit import Operation
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.silver.write.clustering import (
    MAX_CONFIGURED_DEPTH,
    MAX_DEPTH,
    KeyedFile,
    SortOrder,
    clustered_layout,
    level_of,
    plan_clustering,
    plan_clusters,
    unsorted_columns,
)
from pipeline.silver.write.data_layout import file_bounds, may_have

FILES, ROWS = 100, 50


def make_table(folder: Path, ddl: str, files: Sequence[list[tuple[Any, ...]]]) -> LakeTable:
    """Write a table with one file for each list of rows."""
    table = LakeTable(str(folder))
    table.ensure(ddl)
    schema = arrow_columns(TableSchema.of_ddl(ddl))
    actions = []
    for rows in files:
        columns = [
            pa.array(column, kind.type) for column, kind in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        actions.append(write_data_file(table.folder, pa.table(columns, schema=schema)).action())
    table.commit(table.snapshot(), actions, {}, Operation("WRITE", {}, {}))
    return table


def depth(snapshot: Snapshot, key: dict[str, str]) -> float:
    """Return in how many files a key may be, on average of the files' bounds."""
    bounds = [file_bounds(add, key) for add in snapshot.files.values()]
    found = [
        all(a[0] <= b[1] and b[0] <= a[1] for a, b in zip(x, y, strict=True)) for x in bounds for y in bounds
    ]
    return sum(found) / len(bounds)


def cluster(table: LakeTable, *key: str, is_configured: bool = False) -> int:
    """Sort files together until none is planned; return in how many passes."""
    order = SortOrder(key, is_configured)
    for number in range(20):
        snapshot = table.snapshot()
        groups = plan_clustering(snapshot, order)
        if not groups:
            return number
        merge_groups(table, snapshot, groups, clustered_layout(snapshot, order))
    raise AssertionError("it does not end")


def rows_of(table: LakeTable) -> list[Any]:
    return sorted(map(repr, table.rows().to_pylist()))


def uuids(seed: int) -> list[list[tuple[Any, ...]]]:
    found = random.Random(seed)
    return [
        [(str(UUID(int=found.getrandbits(128))), file * ROWS + row) for row in range(ROWS)]
        for file in range(FILES)
    ]


@pytest.mark.costly
def test_random_keys_are_sorted_until_few_files_may_have_one(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "id STRING, n INT", uuids(1))
    before = rows_of(table)
    assert depth(table.snapshot(), {"id": "STRING"}) == FILES
    assert cluster(table, "id") == 2
    assert rows_of(table) == before
    snapshot = table.snapshot()
    assert snapshot.file_count == FILES
    assert depth(snapshot, {"id": "STRING"}) <= MAX_DEPTH
    assert {level_of(add) for add in snapshot.files.values()} <= {0, 1, 2}


@pytest.mark.costly
def test_the_level_of_a_file_outlives_a_checkpoint(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", "id STRING, n INT", uuids(2))
    cluster(table, "id")
    levels = sorted(level_of(add) for add in table.snapshot().files.values())
    version = table.version()
    write_checkpoint(table.folder, version)
    for path in (table.folder / "_delta_log").glob("*.json"):
        path.unlink()
    moved = table.folder.rename(tmp_path / "moved")  # nothing in memory knows this folder
    assert sorted(level_of(add) for add in LakeTable(str(moved)).snapshot().files.values()) == levels


@pytest.mark.costly
def test_composite_keys_are_sorted_by_all_columns(tmp_path: Path) -> None:
    found = random.Random(3)
    files = [[(found.randrange(4), found.getrandbits(60)) for _ in range(ROWS)] for _ in range(FILES)]
    table = make_table(tmp_path / "t", "tenant INT, id BIGINT", files)
    before = rows_of(table)
    assert cluster(table, "tenant", "id")
    assert rows_of(table) == before
    assert depth(table.snapshot(), {"tenant": "INT", "id": "BIGINT"}) <= 2 * MAX_DEPTH


def opened_bytes(snapshot: Snapshot, column: str, value: Any) -> int:
    """Return the size of the files that a reader opens which filters a column by a value."""
    files = snapshot.files.values()
    return sum(int(add["size"]) for add in files if may_have(add, {column: [(value, value)]}, ()))


@pytest.mark.costly
@pytest.mark.promise("clustered silver")
def test_a_filter_by_configured_columns_opens_few_bytes(tmp_path: Path) -> None:
    found = random.Random(5)
    files = [[(file * ROWS + row, found.randrange(1000)) for row in range(ROWS)] for file in range(FILES)]
    table = make_table(tmp_path / "t", "id BIGINT, customer INT", files)
    rows, before = rows_of(table), opened_bytes(table.snapshot(), "customer", 500)
    assert cluster(table, "id") == 0  # keys grow: by them nothing is to be sorted
    assert cluster(table, "customer", is_configured=True)
    assert rows_of(table) == rows
    after = opened_bytes(table.snapshot(), "customer", 500)
    print(f"{before} bytes before, {after} after")
    assert depth(table.snapshot(), {"customer": "INT"}) <= 2 * MAX_CONFIGURED_DEPTH
    assert after * 10 < before


@pytest.mark.costly
@pytest.mark.promise("clustered silver")
def test_another_order_sorts_all_files_again(tmp_path: Path) -> None:
    found = random.Random(6)
    files = [[(found.getrandbits(40), found.getrandbits(40)) for _ in range(ROWS)] for _ in range(32)]
    table = make_table(tmp_path / "t", "a BIGINT, b BIGINT", files)
    for column in ("a", "b", "a"):
        assert cluster(table, column, is_configured=True)
        assert depth(table.snapshot(), {column: "BIGINT"}) <= 2 * MAX_CONFIGURED_DEPTH
        assert cluster(table, column, is_configured=True) == 0
    assert cluster(table, "b")  # by the key again


def test_columns_that_cannot_be_sorted_by_are_named(tmp_path: Path) -> None:
    more = ", ".join(f"c{n} INT" for n in range(30))
    row = (1, 1.0, "x", *range(30))
    table = make_table(tmp_path / "t", f"a BIGINT, b DOUBLE, c STRING, {more}", [[row]])
    for columns, named in [
        (("a", "c"), ()),
        (("a", "b", "c"), ("b", "c")),
        (("gone",), ("gone",)),
        (("c28",), ()),
        (("c29",), ("c29",)),  # Delta has statistics of 32 columns
    ]:
        assert unsorted_columns(table.snapshot(), SortOrder(columns, is_configured=True)) == named
        assert unsorted_columns(table.snapshot(), SortOrder(columns)) == ()


def test_equal_bounds_are_not_sorted_for_ever(tmp_path: Path) -> None:
    # statistics of texts are cut off
    prefix = "https://example.com/" + "p" * 300
    files = [[(f"{prefix}{n}-{row}",) for row in range(3)] for n in range(40)]
    table = make_table(tmp_path / "t", "id STRING", files)
    before = rows_of(table)
    assert cluster(table, "id") == 3
    assert rows_of(table) == before


@pytest.mark.costly
@pytest.mark.parametrize(
    ("ddl", "key", "make"),
    [
        ("id BIGINT, n INT", ("id",), lambda file, row: (file * ROWS + row, 0)),  # keys that grow
        ("id BOOLEAN, n INT", ("id",), lambda file, row: (row % 2 == 0, 0)),  # no sure statistics
        ("id BIGINT, n INT", (), lambda file, row: (row, 0)),  # no key
        ("id BIGINT, n INT", ("other",), lambda file, row: (row, 0)),
    ],
)
def test_other_tables_are_left_alone(tmp_path: Path, ddl: str, key: tuple[str, ...], make: Any) -> None:
    files = [[make(file, row) for row in range(ROWS)] for file in range(FILES)]
    table = make_table(tmp_path / "t", ddl, files)
    assert plan_clustering(table.snapshot(), SortOrder(key)) == []


def test_few_files_are_left_alone(tmp_path: Path) -> None:
    assert (
        plan_clustering(
            make_table(tmp_path / "t", "id STRING, n INT", uuids(4)[:15]).snapshot(), SortOrder(("id",))
        )
        == []
    )
    assert plan_clusters([], 8) == []


def test_wide_files_among_narrow_ones_are_sorted_without_them() -> None:
    narrow = [KeyedFile(f"narrow {n}", ((10 * n, 10 * n + 9),)) for n in range(100)]
    wide = [KeyedFile(f"wide {n}", ((0, 999),)) for n in range(10)]
    [group] = plan_clusters([*narrow, *wide], 8)
    assert set(group) == {file.key for file in wide}


BOUND = st.none() | st.integers(0, 20)
FILE = st.builds(
    lambda ends, level: (tuple((a, b) if None in (a, b) or a <= b else (b, a) for a, b in ends), level),
    st.tuples(st.tuples(BOUND, BOUND), st.tuples(BOUND, BOUND)),
    st.integers(0, 3),
)


@given(st.lists(FILE, max_size=60), st.integers(0, 8))
def test_groups_are_apart_and_of_one_level(found: list[Any], most: int) -> None:
    files = {str(n): KeyedFile(str(n), bounds, level) for n, (bounds, level) in enumerate(found)}
    groups = plan_clusters(list(files.values()), most)
    keys = [key for group in groups for key in group]
    assert len(keys) == len(set(keys))
    for group in groups:
        assert 4 <= len(group) <= 12
        assert len({files[key].level for key in group}) == 1
    shuffled = [replace(file) for file in files.values()]
    random.Random(0).shuffle(shuffled)
    assert bool(plan_clusters(shuffled, most)) == bool(groups)
