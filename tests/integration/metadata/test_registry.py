"""The registry of silver tables is read back as recorded."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import TxnId, TxnKind
from pipeline.metadata.events import Event
from pipeline.metadata.registry import TABLES, Records, RegisteredColumn, RegisteredTable, Successor
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

pytestmark = pytest.mark.spark

ID = RegisteredColumn("id", "id", 1, "id")
V = RegisteredColumn("v", "title", None, "col-1f")
OLD = RegisteredTable(
    "public", "t", "file:/lake/t", 16385, (ID, V), metadata_columns=("_commit_lsn", "col-2a")
)
NEW = RegisteredTable(
    "public",
    "t",
    "file:/lake/t",
    16385,
    (ID,),
    Successor(16390, (V,), TxnId("app").of(TxnKind.PART, 1), LSN(77)),
)


def test_an_older_registry_gets_the_column_for_the_mode(spark: SparkSession, tmp_path: Path) -> None:
    table = Lake(str(tmp_path), spark).table("_pgdelta", "tables")
    table.ensure(TABLES.replace(", mode STRING", "").replace(", mode: STRING", ""), {})
    soft = replace(OLD, table_name="soft", path="file:/lake/soft", mode="soft_delete")
    for entry in (OLD, soft):
        Records(Lake(str(tmp_path), spark)).tables.register(entry)
    found = Records(Lake(str(tmp_path), spark)).tables.read()
    assert [found[entry.name] for entry in (OLD, soft)] == [OLD, soft]


@pytest.mark.parametrize("entry", [OLD, NEW])
def test_an_entry_is_read_back_as_recorded(
    spark: SparkSession, tmp_path: Path, entry: RegisteredTable
) -> None:
    records = Records(Lake(str(tmp_path), spark))
    records.ensure()
    records.tables.register(entry)
    assert Records(Lake(str(tmp_path), spark)).tables.read() == {TableName("public", "t"): entry}


def test_events_that_need_a_copy_are_returned_until_they_are_forgotten(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = Records(Lake(str(tmp_path), spark))
    records.ensure()
    kinds = ("resync", "diverged", "evolved", "held")
    records.events.record([Event("public", kind, LSN(1), kind, "a sentence") for kind in kinds])
    told = {TableName("public", "resync"): LSN(1), TableName("public", "diverged"): LSN(1)}
    assert records.events.resyncs() == told
    assert records.events.resyncs() == told
    after_a_crash = Records(Lake(str(tmp_path), spark))
    after_a_crash.events.record([Event("public", "resync", LSN(7), "resync", "another sentence")])
    newer = {**told, TableName("public", "resync"): LSN(7)}
    assert after_a_crash.events.resyncs() == newer
    after_a_crash.events.forget_resyncs(told)
    assert after_a_crash.events.resyncs() == {TableName("public", "resync"): LSN(7)}, (
        "another event came since"
    )
    after_a_crash.events.forget_resyncs(newer)
    assert after_a_crash.events.resyncs() == {}


def test_an_event_is_recorded_once_and_searched_for_once_by_a_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path), spark)
    records = Records(lake)
    records.ensure()
    held, evolved = (Event("public", "t", LSN(1), kind, "a sentence") for kind in ("held", "evolved"))
    records.events.record([held])
    events = lake.table("_pgdelta", "events")
    version = events.version()
    records.events.record([held])
    assert events.version() == version, "nothing was looked for"
    records.events.record([held, evolved])
    Records(lake).events.record([held, evolved])
    assert sorted(row.kind for row in events.frame().collect()) == ["evolved", "held"]


def test_an_event_that_could_not_be_recorded_is_recorded_the_next_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path), spark)
    records = Records(lake)
    records.ensure()
    event = Event("public", "t", LSN(1), "held", "a sentence")

    def fail(*arguments: object, **options: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "append_rows", fail)
        with pytest.raises(OSError, match="no space left"):
            records.events.record([event])
    records.events.record([event])
    assert lake.table("_pgdelta", "events").frame().count() == 1
