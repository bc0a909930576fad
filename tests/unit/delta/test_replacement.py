"""A table takes the columns, partitions and files of another one, in one commit and without Spark."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta import native_write
from pipeline.delta import replacement as module
from pipeline.delta.data_files import PartitionedFiles
from pipeline.delta.native_commit import Operation
from pipeline.delta.partitions import file_columns, physical_partition_columns
from pipeline.delta.replacement import may_replace, replace_table
from pipeline.delta.retry import ConflictError
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.protocol.lsn import LSN
from tests.support.comparable.mapped import MappedTable

COMMIT = TableCommit(TxnId("shop"), LSN(7), {"operation": "rebuild"})
OLD = "id INT, v STRING"
NEW = "id INT, v DOUBLE, region STRING"


def make(path: Path, ddl: str, *, partition_by: tuple[str, ...] = ()) -> LakeTable:
    native_write.create(path, TableSchema.of_ddl(ddl), {}, "{}", partition_by=partition_by)
    return LakeTable(str(path))


def add(table: LakeTable, *rows: dict[str, object]) -> None:
    import pyarrow as pa

    snapshot = table.snapshot()
    columns, divides = file_columns(snapshot), physical_partition_columns(snapshot)
    files = PartitionedFiles(table.folder, divides, columns, lambda _: 1 << 20, 1 << 20)
    schema = TableSchema.of_json(snapshot.schema_string)
    found = pa.Table.from_pylist(list(rows), schema=schema.arrow)
    files.write(pa.Table.from_arrays(found.columns, schema=schema.stored))
    actions = [file.action() for file in files.close()]
    table.commit(snapshot, actions, {}, Operation("WRITE"))


def tables(tmp_path: Path) -> tuple[LakeTable, LakeTable]:
    old, new = make(tmp_path / "old", OLD), make(tmp_path / "new", NEW, partition_by=("region",))
    add(old, {"id": 1, "v": "one"}, {"id": 2, "v": "two"})
    native_write.set_properties(old.folder, old.snapshot(), {"delta.checkpointInterval": "99"}, "{}")
    add(new, {"id": 1, "v": 1.0, "region": "a/b"}, {"id": 3, "v": None, "region": None})
    add(new, {"id": 4, "v": 4.5, "region": "a/b"})
    return old, new


def replaces(old: LakeTable, new: LakeTable, lsn: LSN = COMMIT.lsn) -> bool:
    return replace_table(old, new, {str(COMMIT.txn): int(lsn)}, COMMIT.user_metadata, {"shop.kind": "new"})


def parquet_files(table: LakeTable) -> set[str]:
    return {str(path.relative_to(table.folder)) for path in table.folder.rglob("*.parquet")}


@pytest.mark.parametrize("has_links", [True, False])
def test_rows_columns_and_partitions_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    old, new = tables(tmp_path)
    before, built = old.snapshot(), new.snapshot()
    if not has_links:
        link = os.link

        def refuse(source: Path, target: Path) -> None:
            if str(source).endswith(".parquet"):
                raise OSError("too many links")
            link(source, target)

        monkeypatch.setattr(os, "link", refuse)
    assert replaces(old, new)
    new_names = parquet_files(new)
    new.remove()
    after = old.snapshot()
    assert after.version == before.version + 1
    assert old.rows().sort_by("id").to_pylist() == [
        {"id": 1, "v": 1.0, "region": "a/b"},
        {"id": 3, "v": None, "region": None},
        {"id": 4, "v": 4.5, "region": "a/b"},
    ]
    assert (after.schema_string, after.partition_columns) == (built.schema_string, ("region",))
    assert after.row_count == 3
    assert (after.table_id, after.configuration) == (
        before.table_id,
        {"delta.checkpointInterval": "99", "shop.kind": "new"},
    )
    assert old.offset(COMMIT.txn) == LSN(7)
    assert {os.path.dirname(path) for path in parquet_files(old)} > {"region=a%2Fb"}
    assert not new_names & parquet_files(old)
    assert [row["v"] for row in old.rows(snapshot=old.snapshot(before.version)).to_pylist()] == ["one", "two"]
    (information,) = (action for action in read(old, after.version) if "commitInfo" in action)
    assert information["commitInfo"]["operationMetrics"]["numOutputRows"] == "3"
    assert json.loads(information["commitInfo"]["userMetadata"])["operation"] == "rebuild"


def read(table: LakeTable, version: int) -> list[dict[str, Any]]:
    path = table.folder / "_delta_log" / f"{version:020}.json"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("before", "built"), [(True, False), (False, True), (True, True)], ids=["old", "new", "both"]
)
def test_names_in_data_files_are_those_of_the_new_ones(tmp_path: Path, before: bool, built: bool) -> None:
    old, new = (
        make(tmp_path / name, "`an id` INT, `a v` STRING" if is_mapped else "id INT, v STRING")
        for name, is_mapped in (("old", before), ("new", built))
    )
    add(old, dict(zip(old.schema().names, (1, "one"), strict=True)))
    add(new, dict(zip(new.schema().names, (2, "two"), strict=True)))
    assert replaces(old, new)
    assert old.schema().names == new.schema().names
    assert old.rows().to_pylist() == new.rows().to_pylist()
    found = MappedTable.open(old.path)
    assert found is not None
    assert found.read().to_pylist() == new.rows().to_pylist()
    ids = [each.metadata["delta.columnMapping.id"] for each in old.schema().fields]
    assert len({*ids}) == 2
    assert int(old.snapshot().configuration["delta.columnMapping.maxColumnId"]) == max(ids)
    assert "columnMapping" in old.snapshot().protocol["writerFeatures"]


@pytest.mark.parametrize("kind", ["TIMESTAMP_NTZ", "ARRAY<TIMESTAMP_NTZ>"])
def test_the_table_gets_the_features_of_its_new_columns(tmp_path: Path, kind: str) -> None:
    old, new = make(tmp_path / "old", OLD), make(tmp_path / "new", f"id INT, at {kind}")
    assert replaces(old, new)
    assert old.snapshot().feature_names() == {"timestampNtz"}


def test_a_table_that_does_not_exist_is_created(tmp_path: Path) -> None:
    _, new = tables(tmp_path)
    gone = LakeTable(str(tmp_path / "gone"))
    assert replaces(gone, new)
    assert gone.rows().num_rows == 3
    assert gone.snapshot().table_id != new.snapshot().table_id


def test_a_commit_that_is_recorded_is_not_made_again(tmp_path: Path) -> None:
    old, new = tables(tmp_path)
    assert replaces(old, new)
    version, files = old.version(), parquet_files(old)
    assert replaces(old, new, LSN(6))
    assert (old.version(), parquet_files(old)) == (version, files)


def test_a_change_meanwhile_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tables(tmp_path)
    copy_files = module._copy_files

    def copy_late(*arguments: object) -> None:
        copy_files(*arguments)  # type: ignore[arg-type]
        add(old, {"id": 9, "v": "late"})

    monkeypatch.setattr(module, "_copy_files", copy_late)
    with pytest.raises(ConflictError):
        replaces(old, new)
    assert sorted(row["id"] for row in old.rows().to_pylist()) == [1, 2, 9]
    assert len(parquet_files(old)) == 2


def test_what_only_spark_writes_is_left_to_it(tmp_path: Path) -> None:
    old, new = tables(tmp_path)
    before, built = old.snapshot(), new.snapshot()
    assert may_replace(before, built)
    mapped = {**before.configuration, "delta.columnMapping.mode": "id"}
    assert not may_replace(replace(before, configuration=mapped), built)
    assert not may_replace(before, replace(built, configuration={"delta.enableChangeDataFeed": "true"}))
    key, file = next(iter(built.files.items()))
    vector = {**file, "deletionVector": {"storageType": "u", "cardinality": 1}}
    assert not may_replace(before, built.with_files({key: vector}))
    for path in ("file:/lake/other/part-1.parquet", "/lake/other/part-1.parquet", "s3://lake/part-1.parquet"):
        assert not may_replace(before, built.with_files({key: {**file, "path": path}}))
