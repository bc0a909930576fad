"""What VACUUM without Spark removes: nothing that a version within the retention needs, nothing young."""

import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipeline.delta.checkpoints import write_checkpoint
from pipeline.delta.merge import merge_groups, plain_layout, plan_table
from pipeline.delta.merge_plan import MergeLimits
from pipeline.delta.store.mirror import remove_files
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.vacuum import find_unneeded

DDL = "id INT, tag STRING"
DAY = 86_400
LIMITS = MergeLimits(few_files=2)


def merged_table(folder: Path) -> LakeTable:
    """Return a table whose three files were merged just now."""
    table = Lake(str(folder)).table("t")
    table.ensure(DDL)
    for number in range(3):
        table.append_rows([{"id": number, "tag": "x" * number}], DDL)
    snapshot = table.snapshot()
    count = merge_groups(table, snapshot, plan_table(snapshot, LIMITS), plain_layout(snapshot))
    assert (count.removed, count.added) == (3, 1)
    return table


def find(table: LakeTable, age: float) -> set[str]:
    """Return the names of the files that go after so many seconds."""
    return {path.name for path in find_unneeded(table.folder, table.snapshot(), time.time() + age)}


def names(table: LakeTable) -> set[str]:
    return {path.name for path in table.folder.glob("*.parquet")}


def needed(table: LakeTable) -> set[str]:
    return {add["path"] for add in table.snapshot().files.values()}


@pytest.mark.promise("maintenance keeps what is needed")
def test_merged_files_go_after_the_retention_only(tmp_path: Path) -> None:
    table = merged_table(tmp_path)
    assert find(table, 0) == find(table, 6.9 * DAY) == set()
    assert find(table, 7.1 * DAY) == names(table) - needed(table)
    write_checkpoint(table.folder, table.version())
    (table.folder / "_delta_log" / f"{0:020}.json").unlink()
    assert find(table, 6.9 * DAY) == set(), "the checkpoint says when files were removed"
    found = find_unneeded(table.folder, table.snapshot(), time.time() + 7.1 * DAY)
    hidden = table.folder / f".{found[0].name}.crc"
    hidden.write_bytes(b"crc")
    assert remove_files(found) == 3
    assert names(table) == needed(table)
    assert not hidden.exists()
    assert remove_files(found) == 0, "another run removed them"
    assert DeltaTable(str(table.folder)).to_pyarrow_table().num_rows == 3


@pytest.mark.promise("maintenance keeps what is needed")
def test_files_that_no_version_names_stay_for_a_day(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table("t")
    table.ensure(DDL, {"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    table.append_rows([{"id": 1}], DDL)
    table.append_rows([{"id": 2}], DDL)
    table.compact_rows()
    kept = needed(table)
    staged = table.folder / "uncommitted.parquet"
    staged.write_bytes(b"rows")
    os.utime(staged, (0, 0))  # as of a staged file that is moved here after a long time
    assert find(table, 60) == names(table) - kept - {staged.name}
    assert find(table, 1.1 * DAY) == names(table) - kept


def test_what_is_not_the_tables_own_stays(tmp_path: Path) -> None:
    table = merged_table(tmp_path)
    inner = Lake(str(table.folder)).table("inner")  # as silver/a and silver/a/b
    inner.ensure(DDL)
    inner.append_rows([{"id": 1}], DDL)
    inner.overwrite_rows([{"id": 2}], DDL)
    (table.folder / "_other").mkdir()
    others = [table.folder / "_other" / "rows.parquet", table.folder / "README.md"]
    for path in others:
        path.write_bytes(b"x")
    remove_files(find_unneeded(table.folder, table.snapshot(), time.time() + 30 * DAY))
    assert all(path.exists() for path in others)
    assert len(names(inner)) == 2
    assert names(table) == needed(table)


def test_files_of_a_change_data_feed_go_after_the_retention(tmp_path: Path) -> None:
    table = merged_table(tmp_path)
    feed = table.folder / "_change_data" / "cdc-1.parquet"
    feed.parent.mkdir()
    feed.write_bytes(b"x")
    snapshot = table.snapshot()
    assert feed not in find_unneeded(table.folder, snapshot, time.time() + 6 * DAY)
    assert feed in find_unneeded(table.folder, snapshot, time.time() + 8 * DAY)


def test_a_file_that_was_added_again_stays(tmp_path: Path) -> None:
    table = merged_table(tmp_path)
    before = table.snapshot()
    DeltaTable(str(table.folder)).restore(3)
    assert table.snapshot().files.keys() != before.files.keys()
    later = time.time() + 30 * DAY
    kept = {path.name for path in find_unneeded(table.folder, table.snapshot(), later)}
    assert kept == names(table) - needed(table)
    stale = {path.name for path in find_unneeded(table.folder, before, later)}
    assert not stale & needed(table), "also if the version was committed after the snapshot was read"
