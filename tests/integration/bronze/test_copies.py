"""What is recorded of copies is read again if it has changed, and only then."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.bronze.copies import Copies, gap_row
from pipeline.bronze.copy_states import COMPLETE, DROPPED, CopyHistory, CopyRequest
from pipeline.delta.table import Lake, LakeTable
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

pytestmark = pytest.mark.spark

NAME = TableName("public", "t")
ROW = {"copy_id": 1, "schema_name": NAME[0], "table_name": NAME[1]}


def test_each_read_returns_what_was_recorded_before_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = (Copies(Lake(str(tmp_path), spark)) for _ in range(2))
    assert reader.read() == CopyHistory()
    request = CopyRequest.of(NAME, "it was requested")
    writer.request([request])
    assert reader.read().open_requests == {NAME: [request]}
    reading = {
        "state": "reading",
        "lsn": 50,
        "running": [],
        "chunks_before": 0,
        "chunks": [],
        "relation_version": 7,
    }
    writer.record([{**ROW, **reading, "requests": [request.id]}])
    assert reader.read().newest() == {}
    assert reader.read().open_requests == {NAME: [request]}
    writer.record([{**ROW, "state": COMPLETE, "invisible_commits": [], "row_count": 3}])
    before = reader.read()
    assert [copy.id for copy in before.newest().values()] == [1]
    assert before.open_requests == {}
    writer.record([gap_row(LSN(60), LSN(70), "lost")])
    writer.record([{**ROW, "copy_id": 2, "state": DROPPED, "lsn": 80, "sentence": "away"}])
    after = reader.read()
    assert [gap.end for gap in after.gaps] == [LSN(70)]
    assert after.is_dropped(NAME)
    assert not before.is_dropped(NAME), "a history stays what it was"
    monkeypatch.setattr(LakeTable, "rows", None)
    assert reader.read() == after, "no row is read twice"
