"""Columns that are changed without Spark: what is committed, what is left to Spark, and what conflicts."""

import json
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta import native_write
from pipeline.delta.definition import Definition
from pipeline.delta.native_commit import read_commit
from pipeline.delta.retry import ConflictError, SameWriteError
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import TableCommit, TxnId, TxnKind
from pipeline.errors import LakeError
from pipeline.protocol.lsn import LSN
from pipeline.silver.schema.schema_operations import (
    AddColumn,
    DropColumn,
    RenameColumn,
    SchemaOperation,
    SetProperties,
    WidenColumn,
)
from pipeline.silver.types.text_parsers import (
    BIGINT,
    BOOLEAN,
    INT,
    STRING,
    TIMESTAMP_NTZ,
    VARIANT,
    array_of,
    decimal,
)
from pipeline.silver.write import native_schema
from pipeline.silver.write.native_files import NotNative
from pipeline.silver.write.native_schema import (
    add_columns_operation,
    alter,
    alters_natively,
    field_of,
    fills_natively,
    set_default,
)
from tests.support.commits import do_before_commit
from tests.support.comparable.mapped import MappedTable

DDL = "id INT, v STRING"
TXN = TxnId("shop").of(TxnKind.BACKFILL, 7, 3)
COMMIT = TableCommit(TXN, LSN(9), {"operation": "backfill"})
NUMBER = AddColumn("n", INT, "7", 3)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """Give a table of two files."""
    table = LakeTable(str(tmp_path / "t"))
    table.ensure(DDL)
    append(table, 1, 2)
    append(table, 3)
    return table


def append(table: LakeTable, *keys: int) -> None:
    table.append_rows([{"id": key, "v": f"v{key}"} for key in keys], DDL)


def snapshot_with(
    schema: str = "", configuration: Mapping[str, str] | None = None, **protocol: Any
) -> Snapshot:
    """Return a snapshot of a table with columns a and b."""
    text = schema or TableSchema.of_ddl("a INT, b STRING").json
    return Snapshot(
        "/t",
        3,
        schema_string=text,
        configuration=configuration or {},
        protocol=protocol or {"minReaderVersion": 1, "minWriterVersion": 2},
        metadata={
            "id": "1",
            "name": "mine",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": text,
            "partitionColumns": [],
            "configuration": dict(configuration or {}),
            "createdTime": 5,
        },
    )


def rows(table: LakeTable) -> dict[int, Any]:
    return {row["id"]: row.get("n") for row in table.rows().to_pylist()}


def add(table: LakeTable, operation: AddColumn) -> None:
    alter(table, table.snapshot(), operation)


def newest(table: LakeTable) -> list[dict[str, Any]]:
    actions = read_commit(table.folder / "_delta_log", table.version())
    assert actions is not None
    return actions


# What follows from a snapshot -------------------------------------------------------------------------------


def test_a_plain_table_gets_a_column_without_spark() -> None:
    for kind in (INT, STRING, BOOLEAN, decimal(10, 2), array_of(INT), TIMESTAMP_NTZ):
        assert alters_natively(snapshot_with(), AddColumn("n", kind))


@pytest.mark.parametrize(
    "operation",
    [
        AddColumn("n", VARIANT),
        RenameColumn("gone", "n"),
        DropColumn("gone"),
        WidenColumn("b", array_of(STRING), "ARRAY<INT>"),
        SetProperties((("delta.enableChangeDataFeed", "true"),)),
    ],
    ids=["type of Spark", "rename of nothing", "drop of nothing", "nested type", "change data feed"],
)
def test_what_only_spark_does_is_left_to_it(operation: SchemaOperation) -> None:
    assert not alters_natively(snapshot_with(), operation)


def test_the_last_column_is_not_dropped() -> None:
    assert alters_natively(snapshot_with(), DropColumn("a"))
    assert not alters_natively(snapshot_with(TableSchema.of_ddl("a INT").json), DropColumn("a"))


@pytest.mark.parametrize(
    "snapshot",
    [
        snapshot_with(configuration={"delta.columnMapping.mode": "id"}),
        snapshot_with(
            TableSchema.of_ddl("a STRUCT<x: INT>, b INT").json, {"delta.columnMapping.mode": "name"}
        ),
        snapshot_with(configuration={"delta.enableRowTracking": "true"}),
        snapshot_with(configuration={"delta.constraints.positive": "a > 0"}),
        snapshot_with(minReaderVersion=3, minWriterVersion=7, writerFeatures=["clustering"]),
        replace(snapshot_with(TableSchema.of_ddl("a DOUBLE, b INT").json), partition_columns=("a",)),
        Snapshot("/t"),
    ],
    ids=["mapping by id", "mapped struct", "row tracking", "constraint", "clustering", "DOUBLE", "no table"],
)
def test_a_table_that_requires_more_features_is_left_to_spark(snapshot: Snapshot) -> None:
    assert not alters_natively(snapshot, NUMBER)


def test_a_name_that_the_table_has_in_any_case_is_left_to_spark() -> None:
    assert not alters_natively(snapshot_with(), AddColumn("A", INT))
    assert alters_natively(snapshot_with(), AddColumn("a", INT), is_repeated=True)


def test_only_files_within_a_limit_are_rewritten() -> None:
    snapshot = snapshot_with().with_files({"x": {"path": "x", "size": 60}, "y": {"path": "y", "size": 40}})
    assert fills_natively(snapshot, 100)
    assert not fills_natively(snapshot, 99)
    assert fills_natively(snapshot, None)
    vector = snapshot.with_files({"x": {"path": "x", "size": 1, "deletionVector": {"cardinality": 1}}})
    assert not fills_natively(vector, None)
    assert not fills_natively(replace(snapshot, configuration={"delta.appendOnly": "true"}), None)


def test_the_metadata_stay_but_for_the_new_column() -> None:
    schema = (
        '{"type":"struct","fields":[{"name":"a","type":{"type":"array","elementType":"integer",'
        '"containsNull":false},"nullable":false,"metadata":{"comment":"größe"}}]}'
    )
    snapshot = snapshot_with(schema, {"delta.checkpointInterval": "5"})
    found = Definition.of(snapshot).with_column(field_of(AddColumn("größe", decimal(10, 2)))).metadata
    assert {**found, "schemaString": schema} == snapshot.metadata
    assert found["schemaString"] == schema.removesuffix("]}") + (
        ',{"name":"größe","type":"decimal(10,2)","nullable":true,"metadata":{}}]}'
    )


def test_the_history_shows_what_spark_records() -> None:
    operation = add_columns_operation(field_of(AddColumn("größe", decimal(10, 2))))
    assert operation.name == "ADD COLUMNS"
    assert operation.parameters == {
        "columns": '[{"column":{"name":"größe","type":"decimal(10,2)","nullable":true,"metadata":{}}}]'
    }
    assert (operation.user_metadata, operation.is_blind_append) == ('{"pgdelta": 1}', True)
    nested = add_columns_operation(field_of(AddColumn("n", array_of(INT))))
    assert json.loads(nested.parameters["columns"])[0]["column"]["type"] == "array"


# Commits ----------------------------------------------------------------------------------------------------


def test_a_column_is_added_by_its_metadata_alone(table: LakeTable) -> None:
    files, before = set(table.snapshot().files), table.snapshot()
    add(table, NUMBER)
    assert [[*action] for action in newest(table)] == [["commitInfo"], ["metaData"]]
    after = table.snapshot()
    assert set(after.files) == files
    assert (after.table_id, after.protocol) == (before.table_id, before.protocol)
    assert [(f.name, f.ddl) for f in table.schema().fields] == [("id", "INT"), ("v", "STRING"), ("n", "INT")]
    assert rows(table) == {1: None, 2: None, 3: None}


def test_a_default_is_set_in_every_file_by_one_commit(table: LakeTable) -> None:
    add(table, NUMBER)
    before = set(table.snapshot().files)
    set_default(table, NUMBER, COMMIT)
    assert rows(table) == {1: 7, 2: 7, 3: 7}
    files = table.snapshot().files
    assert before.isdisjoint(files)
    assert len(files) == 2
    statistics = [json.loads(file["stats"]) for file in files.values()]
    assert sorted(each["numRecords"] for each in statistics) == [1, 2]
    for each in statistics:
        assert (each["minValues"]["n"], each["maxValues"]["n"], each["nullCount"]["n"]) == (7, 7, 0)
    kinds = [next(iter(action)) for action in newest(table)]
    assert kinds == ["commitInfo", "txn", "remove", "remove", "add", "add"]
    information = newest(table)[0]["commitInfo"]
    assert (information["operation"], information["operationParameters"]) == ("UPDATE", {"predicate": "[]"})
    assert information["operationMetrics"]["numUpdatedRows"] == "3"
    assert json.loads(information["userMetadata"]) == {
        "pgdelta": 1,
        "app_id": str(TXN),
        "lsn": "0/9",
        "operation": "backfill",
    }
    assert table.offset(TXN) == LSN(9)


def test_a_default_is_set_once(table: LakeTable) -> None:
    add(table, NUMBER)
    set_default(table, NUMBER, COMMIT)
    version = table.version()
    set_default(table, NUMBER, COMMIT)
    assert table.version() == version


def test_a_table_without_rows_only_records_the_default(tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path / "t"))
    table.ensure(DDL)
    add(table, NUMBER)
    set_default(table, NUMBER, COMMIT)
    assert [next(iter(action)) for action in newest(table)] == ["commitInfo", "txn"]


def test_a_default_that_the_type_cannot_hold_is_null(table: LakeTable) -> None:
    price = AddColumn("n", decimal(4, 2), "1.50", 3)
    add(table, price)
    set_default(table, price, COMMIT)
    assert rows(table) == dict.fromkeys((1, 2, 3), Decimal("1.50"))
    set_default(table, replace(price, backfill="1.505"), replace(COMMIT, lsn=LSN(10)))
    assert rows(table) == dict.fromkeys((1, 2, 3))


def test_rows_are_written_in_parts(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long default does not fill the memory: each part has as many rows as fit."""
    monkeypatch.setattr(native_schema, "_PART_SIZE", 3000)
    append(table, *range(10, 60))
    text = AddColumn("n", STRING, "x" * 1000, 3)
    add(table, text)
    sizes: list[int] = []
    parts = native_schema._parts

    def measured(*arguments: Any) -> Any:
        for part in parts(*arguments):
            sizes.append(part.num_rows)
            yield part

    monkeypatch.setattr(native_schema, "_parts", measured)
    set_default(table, text, COMMIT)
    assert max(sizes) == 2
    assert rows(table) == dict.fromkeys((1, 2, 3, *range(10, 60)), "x" * 1000)


def test_a_file_without_any_column_of_the_table_keeps_its_rows(tmp_path: Path) -> None:
    """Files of columns that are not there any more have rows all the same."""
    table = LakeTable(str(tmp_path / "t"))
    table.ensure("n INT")
    table.append_rows([{"n": 1}, {"n": 2}], "n INT")
    set_default(table, NUMBER, COMMIT)
    assert table.rows().to_pylist() == [{"n": 7}, {"n": 7}]


def test_renamed_columns_and_those_of_their_former_names_keep_values(table: LakeTable) -> None:
    """The files of before are read under the new names; a column that is added again has no value there."""
    alter(table, table.snapshot(), RenameColumn("v", "a v"))
    assert [[*action] for action in newest(table)] == [["commitInfo"], ["protocol"], ["metaData"]]
    alter(table, table.snapshot(), AddColumn("v", INT))
    alter(table, table.snapshot(), WidenColumn("id", BIGINT, "INT"))
    set_default(table, AddColumn("v", INT, "7", 3), COMMIT)
    alter(table, table.snapshot(), AddColumn("w", INT))
    found = MappedTable.open(table.path)
    assert found is not None
    expected = [{"id": key, "a v": f"v{key}", "v": 7, "w": None} for key in (1, 2, 3)]
    assert sorted(found.read().to_pylist(), key=lambda row: row["id"]) == expected
    assert table.rows().sort_by("id").to_pylist() == expected
    assert table.schema().fields[0].ddl == "BIGINT"
    alter(table, table.snapshot(), DropColumn("v"))
    alter(table, table.snapshot(), AddColumn("v", INT))
    assert table.rows().column("v").to_pylist() == [None] * 3
    assert [commit["operation"] for commit in table.newest_commits()][:2] == ["ADD COLUMNS", "DROP COLUMNS"]


# Conflicts --------------------------------------------------------------------------------------------------


def test_another_change_of_the_columns_conflicts(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    do_before_commit(monkeypatch, lambda: add(table, AddColumn("m", INT)))
    with pytest.raises(ConflictError):
        add(table, NUMBER)
    assert table.schema().names == ["id", "v", "m"]


def test_rows_that_are_appended_meanwhile_do_not_conflict_with_the_column(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_before_commit(monkeypatch, lambda: append(table, 4))
    add(table, NUMBER)
    assert rows(table) == dict.fromkeys((1, 2, 3, 4))


def test_the_column_conflicts_with_a_write_that_did_not_see_it(table: LakeTable) -> None:
    snapshot = table.snapshot()
    add(table, NUMBER)
    with pytest.raises(ConflictError):
        native_write.append(table.folder, snapshot, [{"id": 9}], None)


def test_rows_that_are_appended_meanwhile_conflict_with_the_default(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(table, NUMBER)
    do_before_commit(monkeypatch, lambda: append(table, 4))
    with pytest.raises(ConflictError):
        set_default(table, NUMBER, COMMIT)
    assert data_files(table) == 3  # those of the refused commit are removed
    set_default(table, NUMBER, COMMIT)
    assert rows(table) == dict.fromkeys((1, 2, 3, 4), 7)


def test_another_writer_of_the_same_default_is_the_same_write(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(table, NUMBER)
    do_before_commit(monkeypatch, lambda: set_default(table, NUMBER, COMMIT))
    with pytest.raises(SameWriteError):
        set_default(table, NUMBER, COMMIT)
    assert rows(table) == dict.fromkeys((1, 2, 3), 7)


def test_a_table_that_changed_meanwhile_is_left_to_spark(table: LakeTable) -> None:
    with pytest.raises(NotNative):
        set_default(table, NUMBER, COMMIT)  # without the column
    add(table, NUMBER)
    with pytest.raises(NotNative):
        set_default(table, NUMBER, COMMIT, max_bytes=10)


def test_a_missing_file_is_named(table: LakeTable) -> None:
    add(table, NUMBER)
    for path in table.folder.glob("*.parquet"):
        path.unlink()
    with pytest.raises(LakeError, match=r"is missing\. Remove the table's folder"):
        set_default(table, NUMBER, COMMIT)
    assert data_files(table) == 0


def data_files(table: LakeTable) -> int:
    return len([*table.folder.glob("*.parquet")])
