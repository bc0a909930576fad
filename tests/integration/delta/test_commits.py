"""Commits of files: what is recorded already is skipped, and of two writers of a position one wins.

The native commits on a file system of this machine and Delta's own, which other storage has, by one set of
tests.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.commit_files import commit_files
from pipeline.delta.spark.log import newest_snapshot, offsets_in
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import TableCommit, TxnId, TxnKind
from pipeline.protocol.lsn import LSN
from tests.support.commits import commit_by_spark, do_before_commit

ONE, TWO = TxnId("one"), TxnId("two")
FIRST, SECOND = TableCommit(ONE, LSN(5)), TableCommit(TWO, LSN(7))


@pytest.fixture(params=["native", "spark"])
def table(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> LakeTable:
    made = Lake(str(tmp_path), spark).table("t")
    made.ensure("id INT")
    if request.param == "spark":
        commit_by_spark(monkeypatch)
    return made


def test_what_is_recorded_is_skipped_and_several_have_to_be_new(table: LakeTable) -> None:
    commit_files(table, [], FIRST)
    commit_files(table, [], FIRST)
    commit_files(table, [], SECOND, TableCommit(ONE, LSN(4)))
    assert table.version() == 1
    commit_files(table, [], SECOND, TableCommit(ONE, LSN(6)))
    assert (table.version(), table.offsets()) == (2, {str(ONE): LSN(6), str(TWO): LSN(7)})


@pytest.mark.parametrize("table", ["spark"], indirect=True)
def test_a_commit_by_spark_does_not_read_all_of_the_log(spark: SparkSession, table: LakeTable) -> None:
    commit_files(table, [], TableCommit(ONE, LSN(5)))
    before = newest_snapshot(spark, table.path)
    commit_files(table, [], TableCommit(ONE, LSN(6)))
    assert table.version() > before.version()
    assert not before.stateReconstructionTriggered()


@pytest.mark.parametrize("lsn", [4, 5, 9])
def test_of_two_writers_under_one_id_the_second_is_refused(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch, lsn: int
) -> None:
    do_before_commit(monkeypatch, lambda: commit_files(table, [], TableCommit(ONE, LSN(lsn))))
    with pytest.raises(Exception, match=r"(?i)concurrent"):
        commit_files(table, [], FIRST)
    assert (table.version(), table.offsets()) == (1, {str(ONE): LSN(lsn)})


def test_writers_under_other_ids_do_not_hinder_each_other(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_before_commit(monkeypatch, lambda: commit_files(table, [], SECOND))
    commit_files(table, [], FIRST)
    assert (table.version(), table.offsets()) == (2, {str(ONE): LSN(5), str(TWO): LSN(7)})


def test_spark_has_the_positions_of_many_copies(spark: SparkSession, table: LakeTable) -> None:
    commit_files(
        table, [], *(TableCommit(ONE.of(TxnKind.COPY_CHUNKS, number), LSN(number)) for number in range(150))
    )
    assert len(table.offsets()) == 150
    assert offsets_in(spark, newest_snapshot(spark, table.path)) == table.offsets()


@pytest.mark.parametrize("table", ["spark"], indirect=True)
def test_positions_of_many_copies_are_in_sparks_checksum_file(spark: SparkSession, table: LakeTable) -> None:
    commit_files(
        table, [], *(TableCommit(ONE.of(TxnKind.COPY_CHUNKS, number), LSN(number)) for number in range(150))
    )
    snapshot = newest_snapshot(spark, table.path)
    assert len(offsets_in(spark, snapshot)) == 150
    assert not snapshot.stateReconstructionTriggered()
