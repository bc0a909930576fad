"""The cost of a poll that finds nothing to do: the same for ten tables as for three."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.apply.applier import Applier
from pipeline.bronze.copy_states import COMPLETE, READING
from pipeline.bronze.log import Bronze
from pipeline.bronze.writer import BronzeWriter
from pipeline.config.config import Config, Silver, Source, Storage
from pipeline.config.tables import TableRule
from pipeline.delta.spark.frames import local_frame
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import TableCommit
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.protocol.lsn import LSN
from tests.support.bronze.events import relation, version

pytestmark = pytest.mark.spark

UPTO = LSN(100)


def caught_up(spark: SparkSession, folder: Path, count: int) -> Applier:
    """Return an applier for a lake of `count` tables that are copied and show all that bronze has."""
    lake = Lake(str(folder), spark)
    bronze, records, manifests = Bronze(lake, "shop"), Records(lake), Manifests(lake)
    bronze.ensure()
    records.ensure()
    manifests.ensure()
    versions = [version(relation(number, f"t{number}")) for number in range(1, count + 1)]
    writer = BronzeWriter(bronze, {})
    writer.record_relations(versions)
    writer.commit([], TableCommit(bronze.txn, UPTO))
    rows: list[dict[str, object]] = []
    entries = []
    for number, described in enumerate(versions, 1):
        name = described.schema_name, described.table_name
        copy = {"copy_id": number, "schema_name": name[0], "table_name": name[1]}
        read = {"lsn": 50, "running": [], "chunks_before": 0, "chunks": [], "relation_version": described.id}
        rows.append({**copy, **read, "state": READING})
        rows.append({**copy, "state": COMPLETE, "invisible_commits": [], "row_count": 1})
        silver = lake.table("silver", *name)
        silver.append(local_frame(spark, [{"c0": "a"}], "c0 STRING"), TableCommit(bronze.txn, UPTO))
        records.tables.register(RegisteredTable(*name, silver.path, number, (), copy_id=number))
        table_id = silver.snapshot().table_id
        entries.append(
            ManifestEntry(*name, silver.path, 0, UPTO, is_behind=False, table_id=table_id, offset=UPTO)
        )
    bronze.copies.record([row for row in rows if row["state"] == READING])
    bronze.copies.record([row for row in rows if row["state"] == COMPLETE])
    manifests.record(Manifest(UPTO, None, tuple(entries)))
    source = Source("", "shop", "shop")
    rules = (TableRule("*.*"),)
    return Applier(spark, Config("shop", source, Storage(str(folder)), Silver(), rules, "pipeline.yaml"))


@pytest.mark.slow
def test_a_poll_without_changes_reads_as_many_logs_for_3_as_for_10_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    snapshot = LakeTable.snapshot

    def count(table: LakeTable) -> Any:
        asked.append(table.path)
        return snapshot(table)

    found = {}
    for tables in (3, 10):
        applier = caught_up(spark, tmp_path / str(tables), tables)
        applier.apply_pending()  # the first look of a process reads each table's position
        assert len(applier.records.tables.read()) == tables
        with monkeypatch.context() as patch:
            patch.setattr(LakeTable, "snapshot", count)
            applier.apply_pending()
        assert applier.summary.batches == 0
        found[tables] = [path.removeprefix(f"{applier.lake.root}/") for path in asked]
        asked.clear()
    assert found[3] == found[10]
    assert len(found[10]) < 10
