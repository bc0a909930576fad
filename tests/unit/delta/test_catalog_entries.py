"""The rows of one catalog are replaced without those of others, also in an earlier version's table."""

from pathlib import Path
from typing import Any

from pipeline.delta.sql import now
from pipeline.delta.table import Lake
from pipeline.metadata.catalog_entries import REGISTERED, CatalogEntries, CatalogEntry
from pipeline.table_name import TableName

_EARLIER = (
    "schema_name STRING, table_name STRING, catalog_schema STRING, catalog_table STRING, path STRING, "
    "state STRING, sentence STRING, recorded_at TIMESTAMP"
)


def entry(table: str, target: str | None, columns: str | None = None) -> CatalogEntry:
    return CatalogEntry("public", table, "s", table, f"/{table}", REGISTERED, None, now(), target, columns)


def test_each_catalog_replaces_its_own_rows(tmp_path: Path) -> None:
    lake, time = Lake(str(tmp_path)), now()
    row: dict[str, Any] = {"path": "/a", "state": REGISTERED, "sentence": None}
    row |= {"schema_name": "public", "table_name": "a", "catalog_schema": "s", "catalog_table": "a"}
    lake.table("_pgdelta", "catalog_entries").overwrite_rows(
        [{**row, "recorded_at": time}], _EARLIER, replaces_schema=True
    )
    earlier = CatalogEntry("public", "a", "s", "a", "/a", REGISTERED, None, time)
    spark, glue = CatalogEntries(lake), CatalogEntries(lake, "glue")
    name, other = TableName("public", "a"), TableName("public", "b")
    assert spark.read() == {name: earlier}
    assert glue.read() == {}
    found = entry("a", "glue", "0a1b")
    glue.replace([found, entry("b", "glue", "2c3d")])
    glue.replace([found])
    assert (spark.read(), glue.read()) == ({name: earlier}, {name: found})
    spark.replace([])
    assert glue.read_all() == {name: [found]}
    spark.replace([new := entry("b", None)])
    assert spark.read_all() == {name: [found], other: [new]}
