"""The rows that an overlay adds to a version are found like those of files."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.delta.data_files import write_data_file
from pipeline.delta.native_commit import Operation, remove_action
from pipeline.delta.native_write import create
from pipeline.delta.partitions import WHOLE_TABLE, Partition
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import Fold, FoldColumn
from pipeline.silver.fold.row_changes import FileChanges, RowChanges
from pipeline.silver.read.overlay_frame import can_show
from pipeline.silver.types.text_parsers import INT, STRING
from pipeline.silver.write.native_target import NativeTarget
from pipeline.silver.write.overlay import Overlay, OverlayCommitter
from pipeline.silver.write.table_version import TableVersion


@pytest.mark.parametrize("partition_by", [(), ("v",)])
def test_new_rows_are_searched_for_changed_keys(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    table = LakeTable(str(tmp_path / "t"))
    create(table.folder, TableSchema.of_ddl("k INT, v STRING"), {}, "", partition_by=partition_by)
    snapshot = table.snapshot()
    overlay = Overlay.of(snapshot)
    overlay.rows = pa.table([pa.array([7], pa.int32()), pa.array(["new"])], schema=overlay.rows.schema)
    fold = Fold((FoldColumn("k", INT, {1: 0}), FoldColumn("v", STRING, {1: 1})), (0,), (1,))
    with closing(DuckSql()) as session:
        session.compute("folded", "SELECT CAST(7 AS INTEGER) AS k0")
        version = TableVersion(table, snapshot, overlay)
        NativeTarget(session, version, OverlayCommitter(version, overlay)).define_silver(fold)
        assert session.table("SELECT k FROM silver").column("k").to_pylist() == [7]


@pytest.mark.promise("live reads")
def test_places_are_in_the_same_files_after_later_commits(tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path / "t"))
    create(table.folder, TableSchema.of_ddl("k INT"), {}, "")
    for key in range(3):
        table.append_rows([{"k": key}], "k INT")
    snapshot = table.snapshot()
    assert len(snapshot.files) == 3
    overlay = Overlay.of(snapshot)
    version = TableVersion(table, snapshot, overlay)
    first = version.files[0]
    table.commit(snapshot, [remove_action(first)], {}, Operation("DELETE"))
    assert len(table.snapshot().files) == 2
    none = np.empty(0, np.int64)
    changes = RowChanges(overlay.rows, {0: FileChanges(np.array([0]), none, none)})
    overlay.apply(version, changes, [])
    assert [overlay.files[key] for key in overlay.gone] == [first]


@pytest.mark.parametrize("partition", [WHOLE_TABLE, Partition((("v", "a"),))])
def test_files_that_lack_columns_are_not_read_by_spark(tmp_path: Path, partition: Partition) -> None:
    table = LakeTable(str(tmp_path / "t"))
    columns = tuple(name for name, _ in partition.values)
    create(table.folder, TableSchema.of_ddl("k INT, v STRING"), {}, "", partition_by=columns)
    file = write_data_file(table.folder, pa.table({"k": pa.array([1, 2], pa.int32())}), partition)
    table.commit(table.snapshot(), [file.action()], {}, Operation("WRITE"))
    overlay = Overlay.of(table.snapshot())
    assert can_show(table, overlay)
    [key] = overlay.files
    overlay.gone[key] = np.array([0])
    assert can_show(table, overlay) == (not columns)
