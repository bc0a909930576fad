"""The rows that an overlay adds to a version are found like those of files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.delta.native_write import create
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.silver.duckdb_sql import DuckSql
from pipeline.silver.fold import Fold, FoldColumn
from pipeline.silver.overlay import Overlay, OverlayTarget
from pipeline.silver.text_parsers import INT, STRING


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
        OverlayTarget(session, table, snapshot, overlay, None).define_silver(fold)
        assert session.table("SELECT k FROM silver").column("k").to_pylist() == [7]
