"""The columns of a shared table follow from those of its sources, or a sentence says why they cannot."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.delta.schema import PHYSICAL_NAME, SchemaField, TableSchema
from pipeline.delta.table_log import Snapshot
from pipeline.silver.schema.shared_schema import (
    NotSharable,
    Part,
    added_fields,
    check_shared,
    derived_fields,
    table_actions,
)

CHANGES = "delta.typeChanges"
NTZ = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["timestampNtz"],
    "writerFeatures": ["timestampNtz"],
}


def column(name: str, kind: str = "long", physical: str | None = None) -> SchemaField:
    return SchemaField(name, kind, {} if physical is None else {PHYSICAL_NAME: physical})


def snapshot(*fields: SchemaField, protocol: dict[str, Any] | None = None, **configuration: str) -> Snapshot:
    known = {key.replace("__", "."): value for key, value in configuration.items()}
    found = protocol or {"minReaderVersion": 1, "minWriterVersion": 2}
    text = TableSchema(fields).json
    metadata = {"id": "id", "schemaString": text, "partitionColumns": ["_source"], "configuration": known}
    return Snapshot("/lake/t", 1, "id", text, ("_source",), known, found, metadata=metadata).with_files({})


def part(source: str, *fields: SchemaField, **options: Any) -> Part:
    return Part(source, snapshot(*fields, **options))


def shared(*fields: SchemaField, **options: Any) -> Snapshot:
    return snapshot(SchemaField("_source", "string", {}, False), *fields, **options)


def metadata_of(actions: list[dict[str, Any]]) -> dict[str, Any]:
    return next(action["metaData"] for action in actions if "metaData" in action)


def test_a_column_that_one_source_has_is_added() -> None:
    table = shared(column("id"), column("old"))
    fields = added_fields(table, part("a", column("id"), column("new", "string")))
    assert [each.name for each in fields] == ["id", "old", "new"]
    [action] = table_actions(table, fields, [part("a", column("id"), column("new", "string"))])
    schema = TableSchema.of_json(action["metaData"]["schemaString"])
    assert schema.names == ["_source", "id", "old", "new"]
    assert action["metaData"]["partitionColumns"] == ["_source"]
    assert [each.nullable for each in schema.fields] == [False, True, True, True]


def test_nothing_is_committed_for_the_same_columns() -> None:
    table, own = shared(column("id")), part("a", column("id"))
    assert table_actions(table, added_fields(table, own), [own]) == []


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (column("v", "string"), "Its column v has the type STRING, and BIGINT in the shared table."),
        (column("V"), "Its column V is v in the shared table."),
        (column("w", physical="v"), "Its column w has another name in the shared table."),
        (column("v", physical="x"), "Its column v has another name in its files than in those of the shared"),
        (column("_SOURCE"), "It has a column _SOURCE, and that of the shared table has the same name."),
    ],
)
def test_columns_that_contradict_are_named(own: SchemaField, sentence: str) -> None:
    with pytest.raises(NotSharable) as caught:
        added_fields(shared(column("id"), column("v")), part("a", column("id"), own))
    assert str(caught.value).startswith(sentence)


def test_what_all_sources_have_changed_is_followed() -> None:
    table = shared(column("id"), column("v", "integer"), column("gone"))
    renamed = column("w", "integer", physical="v")
    fields = derived_fields(table, part("a", column("id"), renamed), [part("b", column("id"), renamed)])
    assert [(each.name, each.physical_name) for each in fields] == [
        ("id", "id"),
        ("w", "v"),
        ("gone", "gone"),
    ]


def test_what_one_source_has_changed_is_not_followed() -> None:
    table = shared(column("v"))
    with pytest.raises(NotSharable):
        derived_fields(table, part("a", column("v", "string")), [part("b", column("v"))])


def test_column_mapping_gives_each_column_an_id_once() -> None:
    reader = {"minReaderVersion": 2, "minWriterVersion": 5}
    mapped = {"delta__columnMapping__mode": "name"}
    own = part("a", column("id"), column("w", physical="v"), protocol=reader, **mapped)
    table = shared(column("id"))
    actions = table_actions(table, added_fields(table, own), [own])
    assert actions[0]["protocol"]["writerFeatures"] == ["appendOnly", "columnMapping", "invariants"]
    metadata = metadata_of(actions)
    fields = TableSchema.of_json(metadata["schemaString"]).fields
    assert [(each.name, each.metadata["delta.columnMapping.id"], each.physical_name) for each in fields] == [
        ("_source", 1, "_source"), ("id", 2, "id"), ("w", 3, "v"),
    ]  # fmt: skip
    configuration = metadata["configuration"]
    assert configuration["delta.columnMapping.maxColumnId"] == "3"
    protocol = actions[0]["protocol"]
    text = metadata["schemaString"]
    again = Snapshot("/lake/t", 2, "id", text, ("_source",), configuration, protocol, metadata=metadata)
    assert table_actions(again, added_fields(again, own), [own]) == []


def test_widened_columns_keep_what_readers_need() -> None:
    change = [{"fromType": "integer", "toType": "long"}]
    protocol = {"minReaderVersion": 3, "readerFeatures": ["typeWidening"]}
    widened = SchemaField("v", "long", {CHANGES: change})
    table, own, other = (
        shared(column("v", "integer")),
        part("a", widened, protocol=protocol),
        part("b", column("v")),
    )
    fields = derived_fields(table, own, [other])
    assert fields[0].metadata[CHANGES] == change
    configuration = metadata_of(table_actions(table, fields, [own, other]))["configuration"]
    assert configuration["delta.enableTypeWidening"] == "true"


@pytest.mark.parametrize(
    ("known", "own", "kind", "changes"),
    [
        ("integer", "long", "long", ["integer"]),
        ("long", "integer", "long", ["integer"]),
        ("long", "decimal(12,2)", "decimal(22,2)", ["long", "decimal(12,2)"]),
        ("float", "double", "double", ["float"]),
        ("timestamp_ntz", "date", "timestamp_ntz", ["date"]),
    ],
)
def test_the_type_is_one_that_holds_those_of_all(known: str, own: str, kind: str, changes: list[str]) -> None:
    table, source = shared(column("v", known)), part("a", column("v", own))
    actions = table_actions(table, added_fields(table, source), [source])
    metadata, protocol = metadata_of(actions), actions[0]["protocol"]
    field = TableSchema.of_json(metadata["schemaString"]).fields[1]
    assert field.type == kind
    assert field.metadata[CHANGES] == [{"toType": kind, "fromType": each} for each in changes]
    assert "typeWidening" in protocol["readerFeatures"]
    again = replace(
        table, schema_string=metadata["schemaString"], metadata=metadata, protocol=protocol,
        configuration=metadata["configuration"],
    )  # fmt: skip
    for each in (source, part("b", column("v", known))):
        assert table_actions(again, added_fields(again, each), [each]) == []


def test_features_that_are_not_known_are_refused() -> None:
    protocol = {"minReaderVersion": 3, "readerFeatures": ["timestampNtz", "other"]}
    with pytest.raises(NotSharable, match="feature other"):
        part("a", column("id"), protocol=protocol).check()
    with pytest.raises(NotSharable, match="column mapping by id"):
        part("a", column("id"), delta__columnMapping__mode="id").check()


def test_the_features_of_other_writers_stay() -> None:
    foreign = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
    foreign |= {"writerFeatures": ["checkConstraints", "deletionVectors"]}
    own = part("a", column("id"), column("at", "timestamp_ntz"), protocol=NTZ)
    table = shared(column("id"), protocol=foreign, x="1")
    [protocol, metadata] = table_actions(table, added_fields(table, own), [own])
    assert protocol["protocol"]["readerFeatures"] == ["deletionVectors", "timestampNtz"]
    assert protocol["protocol"]["writerFeatures"] == ["checkConstraints", "deletionVectors", "timestampNtz"]
    assert metadata["metaData"]["configuration"] == {"x": "1"}


@pytest.mark.parametrize(
    ("features", "properties", "sentence"),
    [
        (["inCommitTimestamp"], {}, "The shared table has the table feature inCommitTimestamp, which only"),
        (
            ["clustering", "rowTracking"],
            {},
            "has the table feature clustering, rowTracking, which only Spark",
        ),
        ([], {"delta__constraints__few": "id < 9"}, "has the constraint few, which only Spark writes."),
        ([], {"delta__enableChangeDataFeed": "true"}, "has the property delta.enableChangeDataFeed, which"),
        ([], {"delta__appendOnly": "true"}, "has the property delta.appendOnly, which only Spark writes."),
        ([], {"delta__columnMapping__mode": "id"}, "has column mapping by id, which only Spark writes."),
    ],
)
def test_what_another_writer_added_is_refused(
    features: list[str], properties: dict[str, str], sentence: str
) -> None:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["variantType", *features]}
    with pytest.raises(NotSharable, match=sentence):
        check_shared(shared(column("id"), protocol=protocol, **properties))
    check_shared(shared(column("id"), protocol={**protocol, "writerFeatures": ["variantType"]}))


def test_other_partitions_are_refused() -> None:
    with pytest.raises(NotSharable, match="not partitioned by _source any more"):
        check_shared(replace(shared(column("id")), partition_columns=()))
