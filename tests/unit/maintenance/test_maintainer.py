"""What the maintenance of one table leaves to Spark."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.jobs import Maintenance
from pipeline.delta.native_commit import Operation
from pipeline.delta.table import Lake, LakeTable
from pipeline.maintenance.maintainer import MaintainedTable, Maintainer

DDL = "id INT, at TIMESTAMP"


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """Give a table with three files."""
    table = Lake(str(tmp_path)).table("t")
    table.ensure(DDL)
    for number in range(3):
        table.append_rows([{"id": number}], DDL)
    return table


@pytest.fixture
def compacted(monkeypatch: pytest.MonkeyPatch) -> list[LakeTable]:
    """Give the tables that Spark would merge."""
    found: list[LakeTable] = []

    def compact(table: LakeTable) -> tuple[int, int]:
        found.append(table)
        return 1, 3

    monkeypatch.setattr(LakeTable, "compact", compact)
    return found


def maintain(table: LakeTable, *, by_spark: bool = True) -> MaintainedTable:
    maintainer = Maintainer(Maintenance(), lambda: False, lambda: 0.0, by_spark=by_spark, merges_only=True)
    [done] = maintainer.maintain_all([("t", table, False)])
    return done


@pytest.mark.promise("merged files")
def test_a_file_with_a_type_that_only_spark_reads_is_left_to_spark(
    table: LakeTable, compacted: list[LakeTable]
) -> None:
    path = table.folder / next(iter(table.snapshot().files))
    rows = pq.read_table(path)
    other = rows.set_column(1, "at", pa.nulls(rows.num_rows, pa.timestamp("us")))
    pq.write_table(other, path)
    failed = maintain(table, by_spark=False)
    assert (failed.failure or "").endswith("Run pgdelta optimize, which merges the table by Spark.")
    assert compacted == []
    done = maintain(table)
    assert (done.merged, done.merged_into, done.failure) == (3, 1, None)
    assert compacted == [table]


@pytest.mark.promise("merged files")
def test_spark_is_asked_only_where_it_can_merge_files(
    table: LakeTable, compacted: list[LakeTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.maintenance.maintainer.unsupported_feature", lambda snapshot: "a feature")
    assert maintain(table).merged == 3
    table.commit(
        table.snapshot(),
        [{"remove": {"path": path, "dataChange": True}} for path in list(table.snapshot().files)[1:]],
        {},
        Operation("DELETE", {}, {}),
    )
    done = maintain(table)
    assert (done.merged, done.removed_files, done.sorted, done.failure) == (0, 0, 0, None)
    assert compacted == [table]
