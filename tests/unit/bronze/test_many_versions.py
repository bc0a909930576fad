"""Relation versions are read once, however many there are, and have the first LSN that was recorded."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline.bronze.log import Bronze
from pipeline.bronze.relations import relation_version
from pipeline.bronze.writer import BronzeWriter
from pipeline.delta import rows
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Column, Relation
from pipeline.table_name import TableName
from tests.support.native_lakes import SOURCE

COMMITS = 40


@pytest.mark.costly
def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    class DataFile(rows._DataFile):
        def __init__(self, path: str, *arguments: Any) -> None:
            opened.append(path)
            super().__init__(path, *arguments)

    bronze = Bronze(Lake(str(tmp_path)), "p")
    bronze.ensure()
    writer, rng = BronzeWriter(bronze, SOURCE), Random(5)
    first: dict[int, int] = {}
    names: dict[TableName, int] = {}
    monkeypatch.setattr(rows, "_DataFile", DataFile)
    for _ in range(COMMITS):
        versions = []
        for _ in range(10):
            number, lsn = rng.randrange(400), rng.randrange(1, 10_000)
            name = f"t{number % 7}"
            described = Relation(number % 7, "public", name, "d", (Column(True, f"c{number}", 23, -1),))
            versions.append(relation_version(described, None, LSN(lsn)))
            key = TableName("public", name)
            first[versions[-1].id] = min(lsn, first.get(versions[-1].id, lsn))
            names[key] = min(lsn, names.get(key, lsn))
        writer.record_relations(versions)
        found = bronze.source_relations()
        assert {version: relation.lsn for version, relation in found.items()} == first
        assert bronze.table_names() == names.keys()
    assert len(opened) == 2 * len(set(opened)) == 2 * COMMITS  # for the versions, and for the names
    assert {name: bronze._lsns.before(name) + 1 for name in names} == names
    bronze.relations.compact_rows()
    assert {version: relation.lsn for version, relation in bronze.source_relations().items()} == first
    fresh = Bronze(Lake(str(tmp_path)), "p").source_relations()
    assert fresh == bronze.source_relations()
    assert bronze.relation_version_ids(LSN(5000)) == {v for v, lsn in first.items() if lsn <= 5000}
