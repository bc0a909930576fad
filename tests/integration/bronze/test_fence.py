"""An ingest that was held up while another one took over: nothing of it gets into bronze any more."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.bronze.copy_states import READING
from pipeline.bronze.log import Bronze
from pipeline.bronze.staged_transactions import StagedTransactions
from pipeline.bronze.writer import BronzeWriter
from pipeline.delta import commit_files
from pipeline.delta.table import Lake
from pipeline.delta.txn import TableCommit
from pipeline.errors import FencedError, LakeError
from pipeline.protocol.events import CommittedPrepared
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName
from tests.support.commits import commit_by_spark, do_before_commit, do_before_reading_back

pytestmark = pytest.mark.spark

ROW = {
    "copy_id": 1,
    "schema_name": "s",
    "table_name": "t",
    "state": READING,
    "lsn": 50,
    "running": [],
    "chunks_before": 0,
    "chunks": [],
    "relation_version": 7,
}


@pytest.fixture(params=["native", pytest.param("spark", marks=pytest.mark.slow)], autouse=True)
def storage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pgdelta commit, as on this machine's file systems, or Spark, as elsewhere."""
    if request.param == "spark":
        commit_by_spark(monkeypatch)


def opened(spark: SparkSession, folder: Path) -> BronzeWriter:
    """Return the writer of a start of ingest."""
    bronze = Bronze(Lake(str(folder), spark), "shop")
    bronze.ensure()
    return BronzeWriter(bronze, {})


def move(writer: BronzeWriter, start: int, end: int, staging: Any = None) -> None:
    writer.land(StagedTransactions(LSN(start), LSN(end)), staging)


@pytest.mark.promise("a suspended ingest writes nothing")
def test_an_ingest_that_was_held_up_is_refused_whatever_it_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = opened(spark, tmp_path)
    move(first, 0, 100)
    copy = first.bronze.copy_txn(TableName("public", "orders"))
    first.commit([], TableCommit(copy, LSN(1), expected_offset=INVALID))
    second = opened(spark, tmp_path)
    second.claim()
    version = first.bronze.changes.version()
    with pytest.raises(FencedError, match="Another ingest has taken over"):
        move(first, 100, 200)
    with pytest.raises(FencedError, match="has taken over"):
        first.commit([], TableCommit(copy, LSN(2), expected_offset=LSN(1)))
    with pytest.raises(FencedError, match="has taken over"):
        first.prepared.commit([CommittedPrepared("gid", 5, LSN(150), LSN(160), 0)])
    with pytest.raises(FencedError, match="has taken over"):
        first.claim()
    assert first.bronze.changes.version() == version
    move(second, 100, 200)
    second.commit([], TableCommit(copy, LSN(2), expected_offset=LSN(1)))
    newest = json.loads(
        (tmp_path / f"bronze/changes/_delta_log/{version + 2:020}.json").read_text().split("\n")[0]
    )
    assert json.loads(newest["commitInfo"]["userMetadata"])["epoch"] == 2


def test_of_two_starts_with_the_same_number_only_the_first_can_claim(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, two = opened(spark, tmp_path), opened(spark, tmp_path)
    one.claim()
    with pytest.raises(FencedError, match="has taken over"):
        two.claim()
    one.claim()


def test_a_write_to_copies_or_prepared_claims_that_table(spark: SparkSession, tmp_path: Path) -> None:
    first, second = opened(spark, tmp_path), opened(spark, tmp_path)
    first.claim()
    second = opened(spark, tmp_path)
    first.record_copies([ROW])
    second.record_copies([ROW])
    with pytest.raises(FencedError, match="has taken over"):
        first.record_copies([ROW])
    assert second.bronze.copies.table.frame().count() == 2
    second.prepared._claim()
    with pytest.raises(FencedError, match="has taken over"):
        commit_files.commit_files(first.prepared.table, [], epoch=first.epoch)


@pytest.mark.sample(2)
@pytest.mark.parametrize("table", ["copies", "prepared"])
def test_a_start_after_one_that_died_once_it_had_claimed_a_single_table(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    died = opened(spark, tmp_path)
    if table == "copies":
        died.record_copies([ROW])
    else:
        died.prepared._claim()
    writer = opened(spark, tmp_path)
    writer.claim()
    writer.record_copies([ROW])
    writer.prepared._claim()
    with pytest.raises(FencedError, match="has taken over"):
        died.record_copies([ROW])


@pytest.mark.promise("a suspended ingest writes nothing")
@pytest.mark.parametrize("start", [50, 150])
def test_a_range_that_does_not_continue_the_recorded_offset_is_refused(
    spark: SparkSession, tmp_path: Path, start: int
) -> None:
    writer = opened(spark, tmp_path)
    move(writer, 0, 100)
    with pytest.raises(
        FencedError, match=rf"records the offset 0/64 for pgdelta:shop:1, .* continues from {LSN(start)}:"
    ):
        move(writer, start, 200)
    assert writer.bronze.changes.offset(writer.bronze.txn) == LSN(100)


def test_a_copy_continues_only_from_the_recorded_chunk(spark: SparkSession, tmp_path: Path) -> None:
    writer = opened(spark, tmp_path)
    copy = writer.bronze.copy_txn(TableName("public", "orders"))
    writer.commit([], TableCommit(copy, LSN(3), expected_offset=INVALID))
    for count, after in ((4, 2), (5, 4), (1, 0)):
        with pytest.raises(FencedError, match="but this ingest continues from"):
            writer.commit([], TableCommit(copy, LSN(count), expected_offset=LSN(after)))
    assert writer.bronze.changes.offset(copy) == LSN(3)


def test_an_ingest_that_is_overtaken_during_its_commit_is_fenced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(spark, tmp_path)
    move(first, 0, 100)
    second = opened(spark, tmp_path)
    do_before_commit(monkeypatch, lambda: move(second, 100, 150))
    with pytest.raises(FencedError, match="has taken over"):
        move(first, 100, 200)
    assert first.bronze.changes.offset(first.bronze.txn) == LSN(150)


@pytest.mark.promise("lost commits are found first")
def test_a_commit_that_the_storage_lost_is_found_before_an_acknowledgement(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(spark, tmp_path)
    move(writer, 0, 100)

    def lose(version: int) -> None:
        entry = tmp_path / f"bronze/changes/_delta_log/{version:020}.json"
        entry.write_text('{"commitInfo":{"txnId":"theirs","operation":"OPTIMIZE"}}\n')

    do_before_reading_back(monkeypatch, lose)
    with pytest.raises(
        LakeError, match=r"lost a commit: it confirmed version 2, which is another writer's.*limits\.md"
    ):
        move(writer, 100, 200)
