"""Commits of files: what is recorded already is skipped, and of two writers of a position one wins."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.delta import commit_files as commit_files_module
from pipeline.delta.commit_files import commit_files
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import TableCommit, TxnId, TxnKind
from pipeline.protocol.lsn import LSN

pytestmark = pytest.mark.spark

ONE, TWO = TxnId("one"), TxnId("two")
FIRST, SECOND = TableCommit(ONE, LSN(5)), TableCommit(TWO, LSN(7))


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> LakeTable:
    made = Lake(str(tmp_path), spark).table("t")
    made.ensure("id INT")
    return made


def test_what_is_recorded_is_skipped_and_several_have_to_be_new(table: LakeTable) -> None:
    commit_files(table, [], FIRST)
    commit_files(table, [], FIRST)
    commit_files(table, [], SECOND, TableCommit(ONE, LSN(4)))
    assert table.version() == 1
    commit_files(table, [], SECOND, TableCommit(ONE, LSN(6)))
    assert (table.version(), table.offsets()) == (2, {str(ONE): LSN(6), str(TWO): LSN(7)})


def test_a_commit_does_not_read_all_of_the_log(table: LakeTable) -> None:
    for lsn in (5, 6):
        before = table.snapshot()
        commit_files(table, [], TableCommit(ONE, LSN(lsn)))
        assert table.version() > before.version()
        assert not before.stateReconstructionTriggered()


@pytest.mark.parametrize("lsn", [4, 5, 9])
def test_of_two_writers_under_one_id_the_second_is_refused(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch, lsn: int
) -> None:
    now = commit_files_module._now

    def let_another_be_first() -> int:
        monkeypatch.undo()
        commit_files(table, [], TableCommit(ONE, LSN(lsn)))
        return now()

    monkeypatch.setattr(commit_files_module, "_now", let_another_be_first)
    with pytest.raises(Exception, match=r"(?i)concurrent"):
        commit_files(table, [], FIRST)
    assert (table.version(), table.offsets()) == (1, {str(ONE): LSN(lsn)})


def test_writers_under_other_ids_do_not_hinder_each_other(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = commit_files_module._now

    def let_another_be_first() -> int:
        monkeypatch.undo()
        commit_files(table, [], SECOND)
        return now()

    monkeypatch.setattr(commit_files_module, "_now", let_another_be_first)
    commit_files(table, [], FIRST)
    assert (table.version(), table.offsets()) == (2, {str(ONE): LSN(5), str(TWO): LSN(7)})


def test_positions_of_many_copies_are_in_the_checksum_file(table: LakeTable) -> None:
    commit_files(
        table, [], *(TableCommit(ONE.of(TxnKind.CHUNKS, number), LSN(number)) for number in range(150))
    )
    snapshot = table.snapshot()
    assert len(table.offsets(snapshot)) == 150
    assert not snapshot.stateReconstructionTriggered()
