"""Record tables: the columns that classes give, which no release changes, and rows as records."""

from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier, Thread

import pytest

from pipeline.bronze.schema import PROTECTED_COLUMN, spark_type
from pipeline.delta.record_table import RecordTable, ddl_of, record_of, row_of
from pipeline.delta.table import Lake
from pipeline.delta.txn import TxnId
from pipeline.metadata.alerts import RecordedAlert
from pipeline.metadata.catalog import CatalogRow
from pipeline.metadata.catalog_entries import CatalogEntry
from pipeline.metadata.events import Event
from pipeline.metadata.maintenance import Maintained
from pipeline.metadata.manifests import ManifestEntry
from pipeline.metadata.pauses import Pause
from pipeline.metadata.registry import RegisteredColumn, RegisteredTable, Successor
from pipeline.metadata.source_comments import SourceComment
from pipeline.protected_columns import ProtectedColumn
from pipeline.protocol.lsn import LSN

_COLUMNS = (
    "ARRAY<STRUCT<name: STRING, silver_name: STRING, attribute_number: INT, physical_name: STRING, "
    "type_oid: BIGINT, type_modifier: INT, is_key: BOOLEAN>>"
)
_PROTECTED = f"ARRAY<{spark_type(PROTECTED_COLUMN)}>"
DDL = {
    RecordedAlert: "rule STRING, kind STRING, schema_name STRING, table_name STRING, sentence STRING, "
    "began_at TIMESTAMP, sent_at TIMESTAMP, ended_at TIMESTAMP, sender STRING, claimed_at TIMESTAMP",
    CatalogRow: "kind STRING, schema_name STRING, table_name STRING, relation_id BIGINT, row_xmin BIGINT, "
    "root_id BIGINT, parent_id BIGINT, filenode BIGINT, lsn BIGINT, oldest_xid BIGINT, "
    "recorded_at TIMESTAMP, bounds STRING",
    CatalogEntry: "schema_name STRING, table_name STRING, catalog_schema STRING, catalog_table STRING, "
    "path STRING, state STRING, sentence STRING, recorded_at TIMESTAMP, target STRING, columns STRING",
    Event: "schema_name STRING, table_name STRING, lsn BIGINT, kind STRING, sentence STRING, "
    "recorded_at TIMESTAMP",
    Maintained: "table_name STRING, maintained_at TIMESTAMP, version BIGINT, files_before BIGINT, "
    "files_after BIGINT, bytes BIGINT, removed_files BIGINT, removed_log_files BIGINT, seconds DOUBLE, "
    "is_failed BOOLEAN, sentence STRING",
    ManifestEntry: "schema_name STRING, table_name STRING, path STRING, version BIGINT, applied_lsn BIGINT, "
    "is_behind BOOLEAN, table_id STRING, offset BIGINT, copied_version BIGINT, verified_lsn BIGINT, "
    "verified_at TIMESTAMP, verified_by STRING",
    Pause: "schema_name STRING, table_name STRING, relation_id BIGINT, lsn BIGINT, reason STRING, "
    "paused_at TIMESTAMP",
    RegisteredTable: "schema_name STRING, table_name STRING, path STRING, relation_id BIGINT, "
    f"columns {_COLUMNS}, updated_at TIMESTAMP, successor STRUCT<relation_id: BIGINT, "
    f"columns: {_COLUMNS}, app_id: STRING, lsn: BIGINT, mode: STRING, protected: {_PROTECTED}>, "
    f"copy_id BIGINT, metadata_columns ARRAY<STRING>, mode STRING, protected {_PROTECTED}",
    SourceComment: "schema_name STRING, table_name STRING, relation_id BIGINT, attribute_number INT, "
    "column_name STRING, comment STRING, recorded_at TIMESTAMP",
}


@pytest.mark.parametrize("record", DDL)
def test_stored_columns_never_change(record: type) -> None:
    assert ddl_of(record) == DDL[record]


def test_a_record_comes_back_from_its_row() -> None:
    column = RegisteredColumn("id", "id", 1, "col-1", 23, -1, True)
    protected = (ProtectedColumn(None, "a", None, "exclude"),)
    successor = Successor(2, (column,), TxnId("p"), LSN(7), "history", protected)
    table = RegisteredTable("public", "t", "/t", 1, (column,), successor, 5, ("col-2",), "append", protected)
    row = row_of(table)
    assert (row["successor"]["app_id"], row["columns"][0]["name"]) == ("pgdelta:p:1", "id")
    found = record_of(RegisteredTable, row)
    assert found == table
    assert found.successor is not None
    assert type(found.successor.lsn) is LSN


def test_what_an_earlier_version_did_not_write_has_the_default() -> None:
    table = RegisteredTable("public", "t", "/t", 1, ())
    row = row_of(table)
    for name in ("protected", "mode", "metadata_columns"):
        assert record_of(RegisteredTable, {**row, name: None}) == table
        assert record_of(RegisteredTable, {key: row[key] for key in row if key != name}) == table


def test_what_a_later_version_wrote_is_left_out() -> None:
    event = Event("public", "t", LSN(1), "info", "A sentence.")
    assert record_of(Event, {**row_of(event), "later": 1}) == event


@dataclass(frozen=True, slots=True)
class Counted:
    thread: int
    count: int


def test_changes_by_several_jobs_all_count(tmp_path: Path) -> None:
    barrier = Barrier(2)

    def work(thread: int) -> None:
        table = RecordTable(Lake(str(tmp_path)), "counted", Counted)
        barrier.wait()
        table.change(lambda before: [*before, Counted(thread, 1)])
        table.change(lambda before: [replace(r, count=2) if r.thread == thread else r for r in before])

    threads = [Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = RecordTable(Lake(str(tmp_path)), "counted", Counted)
    assert sorted((row.thread, row.count) for row in table.read()) == [(0, 2), (1, 2)]
    version = table.table.version()
    assert len(table.change(lambda before: before)) == 2
    assert table.table.version() == version
