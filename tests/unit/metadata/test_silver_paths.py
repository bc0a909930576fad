"""Where silver tables are once their lake was moved or copied."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.delta.table import Lake
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.metadata.registry import RegisteredTable, TableRegistry
from pipeline.metadata.silver_paths import resolve_path
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

T = TableName("public", "t")


@pytest.mark.promise("lakes that moved")
@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("file:/lake/silver/public/t", T, "file:/lake/silver/public/t"),
        ("file:/lake/archive/public/t.17", T, "file:/lake/archive/public/t.17"),
        ("file:/lake/silver/silver/t", ("silver", "t"), "file:/lake/silver/silver/t"),
        ("file:/old/silver/public/t", T, "file:/lake/silver/public/t"),
        ("s3://silver/silver/silver/t", ("silver", "t"), "file:/lake/silver/silver/t"),
        ("file:/old/silver/orders", T, "file:/lake/silver/orders"),
        ("file:/old/silver/silver", T, "file:/lake/silver/silver"),
        ("file:/old/silver/a%2Fb/c%3Ad", ("a/b", "c:d"), "file:/lake/silver/a%2Fb/c%3Ad"),
        ("file:/old/archive/public/t.17", T, "file:/lake/archive/public/t.17"),
        ("file:/lakes/silver/public/t", T, "file:/lake/silver/public/t"),
        ("file:/elsewhere/t", T, "file:/elsewhere/t"),
        # the root is a parent of the former one, or below it
        ("file:/lake/old/silver/public/t", T, "file:/lake/silver/public/t"),
        ("file:/lake/old/silver/orders", T, "file:/lake/silver/orders"),
        ("file:/lake/old/archive/public/t.17", T, "file:/lake/archive/public/t.17"),
        ("file:/lake/a/silver/orders/_parts/shop.b", T, "file:/lake/silver/orders/_parts/shop.b"),
        ("file:/lake/shared/orders/_shards/shop.b", T, "file:/lake/shared/orders/_shards/shop.b"),
        ("file:/silver/public/t", T, "file:/lake/silver/public/t"),
    ],
)
def test_tables_are_found_under_the_current_root(path: str, name: TableName, expected: str) -> None:
    assert resolve_path(path, name, "file:/lake") == expected


@pytest.mark.promise("lakes that moved")
@pytest.mark.parametrize("former", ["old", "old/lake", "lake/old"])
def test_every_reader_of_records_gets_current_paths(tmp_path: Path, former: str) -> None:
    lake, lsn = Lake(str(tmp_path / "lake")), LSN(5)
    place = f"file:{tmp_path}/{former}/silver/public/t"
    registry, manifests = TableRegistry(lake), Manifests(lake)
    registry.ensure()
    manifests.ensure()
    registry.register(RegisteredTable(*T, place, 1, ()))
    manifests.record(Manifest(lsn, entries=(ManifestEntry(*T, place, 1, lsn, False),)))
    current = lake.path("silver", *T)
    assert TableRegistry(lake).read()[T].path == current
    for manifest in (manifests.last(), manifests.at(lsn), manifests.at_cursor(lsn, None)):
        assert manifest is not None
        assert manifest.by_name[T].path == current
    moved = TableRegistry(lake)
    moved.register(replace(moved.read()[T], copy_id=1))
    assert [row["path"] for row in lake.table("_pgdelta", "tables").rows().to_pylist()] == [current]
