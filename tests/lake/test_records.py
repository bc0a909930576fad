"""The registry of silver tables: read back as recorded, and from a lake of an older release."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.lake.records import TABLES, Records, Registered, Successor
from pipeline.lake.tables import Lake, local_frame
from pipeline.protocol.lsn import LSN

pytestmark = pytest.mark.spark

OLD = Registered("public", "t", "file:/lake/t", 16385, {"id": 1, "v": None})
NEW = Registered(
    "public", "t", "file:/lake/t", 16385, {"id": 1}, Successor(16390, {"id": 2}, "app#1", LSN(77))
)


@pytest.mark.parametrize("entry", [OLD, NEW])
def test_an_entry_is_read_back_as_recorded(spark: SparkSession, tmp_path: Path, entry: Registered) -> None:
    records = Records(Lake(spark, str(tmp_path)))
    records.ensure()
    records.register(entry)
    assert Records(Lake(spark, str(tmp_path))).registered() == {("public", "t"): entry}


def test_a_lake_of_an_older_release_gets_the_columns_that_it_lacks(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, str(tmp_path))
    table = lake.table("_pgdelta", "tables")
    older = TABLES.split(", successor")[0]
    table.ensure(older)
    row = {"schema_name": "public", "table_name": "u", "path": "p", "relation_id": 1, "columns": []}
    table.append(local_frame(spark, [row], older))
    records = Records(lake)
    records.ensure()
    records.register(NEW)
    found = Records(lake).registered()
    assert found == {("public", "u"): Registered("public", "u", "p", 1, {}), ("public", "t"): NEW}
