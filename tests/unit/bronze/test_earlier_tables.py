"""The small tables of a lake that an earlier version of pgdelta created get the columns that they lack."""

from dataclasses import replace
from pathlib import Path

from pipeline.bronze.copies import COPIES, REQUESTS, Copies
from pipeline.bronze.copy_states import CopyRequest
from pipeline.delta.log_retention import short_log
from pipeline.delta.new_rows import NewRows, add_columns
from pipeline.delta.record_table import ddl_of
from pipeline.delta.sql import EPOCH
from pipeline.delta.table import Lake
from pipeline.key_ranges import ColumnRange, KeyRange
from pipeline.metadata.catalog import CatalogRow, CatalogState, CatalogTable, Root, SourcePartition
from pipeline.metadata.manifests import MANIFESTS, Manifests
from pipeline.metadata.reconciliations import ComparedAt
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

OLD_RANGES = "key_ranges ARRAY<STRUCT<first: ARRAY<STRING>, last: ARRAY<STRING>>>"
NAME = TableName("public", "t")


def old(ddl: str) -> str:
    """Return the columns of a table of copies or requests before ranges had columns."""
    start = ddl.index("key_ranges")
    return ddl[:start] + OLD_RANGES + ddl[ddl.index(">>>>", start) + 4 :]


def test_requests_and_copies_of_an_earlier_version_stay(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    assert {old(COPIES), old(REQUESTS)}.isdisjoint({COPIES, REQUESTS})
    requests, copies = lake.table("_pgdelta", "requests"), lake.table("bronze", "copies")
    for table, ddl in ((requests, REQUESTS), (copies, COPIES)):
        table.ensure(old(ddl), short_log())
    row = {"request_id": "a", "schema_name": "public", "table_name": "t", "reason": "old"}
    ranges = [{"first": ["1"], "last": ["2"]}]
    requests.append_rows([{**row, "requested_at": EPOCH, "key_ranges": ranges}], old(REQUESTS))
    state = {"copy_id": 5, "schema_name": "public", "table_name": "t", "state": "reading", "lsn": 3}
    state |= {"running": [], "chunks": [], "requests": ["a"], "recorded_at": EPOCH, "key_ranges": ranges}
    copies.append_rows([state], old(COPIES))
    seen = NewRows(copies)
    assert len(seen.read()[0]) == 1
    assert Copies(lake).read().requests[0].key_ranges == (KeyRange(("1",), ("2",)),)
    for table, ddl in ((requests, REQUESTS), (copies, COPIES)):
        add_columns(table, ddl)
        version = table.version()
        add_columns(table, ddl)
        assert table.version() == version
    assert (seen.read(), len(NewRows(copies).read()[0])) == (([], True), 1)
    new = CopyRequest.repair(NAME, [KeyRange((), (), (ColumnRange("day", None, "7"),))])
    Copies(lake).request([new])
    found = {request.reason: request.key_ranges for request in Copies(lake).read().requests}
    assert found == {"old": (KeyRange(("1",), ("2",)),), new.reason: new.key_ranges}


def test_a_catalog_of_an_earlier_version_has_no_bounds(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    partition = SourcePartition(NAME, 1, 2, 3, ranges=(KeyRange((), (), (ColumnRange("day", None, "7"),)),))
    state = CatalogState(1, 2, {9: Root(NAME, {8: partition})}, LSN(5), 6)
    CatalogTable(lake).replace(state, "p")
    table = lake.table("_pgdelta", "catalog")
    rows = [{k: v for k, v in row.items() if k != "bounds"} for row in table.rows().to_pylist()]
    table.overwrite_rows(rows, ddl_of(CatalogRow).removesuffix(", bounds STRING"), replaces_schema=True)
    found = CatalogTable(lake).read()
    assert found is not None
    assert found.roots[9].partitions[8].ranges is None
    CatalogTable(lake).replace(state, "p")
    assert CatalogTable(lake).read() == state


def test_manifests_of_an_earlier_version_stay_as_they_are(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table("_pgdelta", "manifests")
    old_ddl = MANIFESTS.partition(", verified_lsn")[0] + ">>"
    table.ensure(old_ddl, short_log())
    entry = {"schema_name": "public", "table_name": "t", "path": "/t", "version": 3, "applied_lsn": 5}
    row = {"lsn": 5, "written_at": EPOCH, "tables": [{**entry, "is_behind": False, "table_id": "a"}]}
    table.append_rows([row], old_ddl)
    files = table.snapshot().files.keys()
    manifests = Manifests(Lake(str(tmp_path)))
    for _ in range(2):
        manifests.ensure()
        assert (table.version(), table.snapshot().files.keys()) == (2, files)
    last = manifests.last()
    assert last is not None
    assert (last.entries[0].version, last.entries[0].verified_lsn) == (3, None)
    manifests.record(replace(last, lsn=LSN(6)).verified({NAME: ComparedAt(LSN(6), EPOCH, "prove")}))
    assert [each.verified_by for each in (manifests.at(LSN(5)).entries + manifests.at().entries)] == [
        None,
        "prove",
    ]
