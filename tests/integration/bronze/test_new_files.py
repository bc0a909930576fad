"""What came to bronze start a point: read by its files where that is all, and never where it is not."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.bronze.new_files import MAX_FILES
from pipeline.bronze.table_input import InputStart
from pipeline.delta.table import Lake
from pipeline.delta.txn import TableCommit, TxnKind
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

ROW = "commit_lsn BIGINT, end_lsn BIGINT, ordinal BIGINT, op STRING, schema_name STRING, table_name STRING"


class Land:
    """A bronze table to which commits come; each row is of a transaction that ends at an LSN."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.bronze = Bronze(Lake(str(folder), spark), "shop")
        self.bronze.ensure()
        self.land(10)

    def land(self, lsn: int, *, kind: TxnKind = TxnKind.OFFSET) -> None:
        rows = [
            {
                "commit_lsn": lsn - 1,
                "end_lsn": lsn,
                "ordinal": 0,
                "op": "I",
                "schema_name": "s",
                "table_name": "t",
            }
        ]
        self.bronze.changes.append_rows(rows, ROW, TableCommit(self.bronze.txn.of(kind), LSN(lsn)))

    @property
    def point(self) -> BronzeOffset:
        point = self.bronze.captured_offset()
        assert point is not None
        return point

    def seen(self, start: int, end: int) -> list[int]:
        """Return the end LSNs of the rows that are read."""
        rows = self.bronze.table_changes(TableName("s", "t"), InputStart(LSN(start)), LSN(end)).collect()
        return sorted(row.end_lsn for row in rows)


@pytest.fixture
def land(spark: SparkSession, tmp_path: Path) -> Land:
    return Land(spark, tmp_path)


def test_what_only_came_is_read_by_its_files(land: Land) -> None:
    start = land.point
    for lsn in (20, 30, 40):
        land.land(lsn)
    end = land.point
    land.land(50)
    land.bronze.read_new_files(start, end)
    assert land.bronze.new_files is not None
    assert len(land.bronze.new_files.paths) == 3
    assert land.seen(10, 40) == [20, 30, 40]
    assert land.seen(20, 30) == [30]
    # Neither earlier nor later rows are in these files.
    assert land.seen(0, 40) == [10, 20, 30, 40]
    assert land.seen(10, 50) == [20, 30, 40, 50]


def test_rows_that_came_before_the_position_they_belong_to_are_read(land: Land) -> None:
    # Prepared transactions land before the commit that records how far bronze is complete.
    land.land(20)
    land.land(30, kind=TxnKind.PREPARED)
    start = land.point
    assert start.lsn == LSN(20)
    land.land(40)
    land.bronze.read_new_files(start, land.point)
    assert land.seen(20, 40) == [30, 40]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "statement",
    ["OPTIMIZE {}", "DELETE FROM {} WHERE end_lsn = 10", "RESTORE {} TO VERSION AS OF 2"],
)
def test_what_did_more_than_add_is_read_as_a_table(land: Land, statement: str) -> None:
    land.land(15)
    start = land.point
    land.land(20)
    land.bronze.lake.spark.sql(statement.format(land.bronze.changes.identifier))
    land.land(30)
    expected = [row.end_lsn for row in land.bronze.changes.frame().where("end_lsn > 15").collect()]
    land.bronze.read_new_files(start, land.point)
    assert land.bronze.new_files is None
    assert land.seen(15, 30) == sorted(expected)


@pytest.mark.slow
def test_a_log_that_is_not_whole_any_more_is_read_as_a_table(land: Land, tmp_path: Path) -> None:
    start = land.point
    for lsn in range(20, 75):  # more commits than there are between two checkpoints
        land.land(lsn)
    assert any((tmp_path / "bronze" / "changes" / "_delta_log").glob("*.checkpoint.parquet"))
    (tmp_path / "bronze" / "changes" / "_delta_log" / f"{start.version:020d}.json").unlink()
    land.bronze.read_new_files(start, land.point)
    assert land.bronze.new_files is None
    assert land.seen(10, 74) == list(range(20, 75))


def test_very_many_files_are_read_as_a_table(land: Land, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.bronze.new_files.MAX_FILES", 2)
    assert MAX_FILES > 2
    start = land.point
    for lsn in (20, 30, 40):
        land.land(lsn)
    land.bronze.read_new_files(start, land.point)
    assert land.bronze.new_files is None
    assert land.seen(10, 40) == [20, 30, 40]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["l[a]ke", "l{a}ke", "l{b,a}ke", "l*ke", "l?ke", "l\\ake", "l[ke", "l{ke"])
def test_the_name_of_a_lake_is_no_pattern(spark: SparkSession, tmp_path: Path, name: str) -> None:
    other, land = Land(spark, tmp_path / "lake"), Land(spark, tmp_path / name)
    start = land.point
    for each in (other, land):
        each.land(20)
    land.bronze.read_new_files(start, land.point)
    assert land.bronze.new_files is not None
    assert land.seen(10, 20) == [20]
