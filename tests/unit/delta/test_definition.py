"""What a table's log says of the table after its columns change: what Spark 4.2 with Delta 4.4 wrote."""

import json
from typing import Any

import pytest

from pipeline.delta.definition import MAX_COLUMN_ID, Definition
from pipeline.delta.features import Feature
from pipeline.delta.schema import TableSchema

MAPPING = {"delta.columnMapping.mode": "name"}


def new(ddl: str = "a INT, b STRING, p INT", *partition_by: str) -> Definition:
    return Definition.of_new(TableSchema.of_ddl(ddl), {}, partition_by)


def columns(definition: Definition) -> list[tuple[str, str, int, str]]:
    """Return the columns: name, type, id and name in data files."""
    return [
        (each.name, each.ddl, each.metadata["delta.columnMapping.id"], each.physical_name)
        for each in definition.fields
    ]


def test_column_mapping_keeps_the_names_in_files_and_numbers_the_columns() -> None:
    found = new().enabled(Feature.COLUMN_MAPPING)
    assert columns(found) == [("a", "INT", 1, "a"), ("b", "STRING", 2, "b"), ("p", "INT", 3, "p")]
    assert found.configuration == {**MAPPING, MAX_COLUMN_ID: "3"}
    assert found.protocol == {
        "minReaderVersion": 2,
        "minWriterVersion": 7,
        "writerFeatures": ["appendOnly", "columnMapping", "invariants"],
    }
    assert found.enabled(Feature.COLUMN_MAPPING) == found


def test_a_renamed_column_keeps_its_id_and_its_name_in_files() -> None:
    found = new("a INT, p INT", "p").enabled(Feature.COLUMN_MAPPING).renamed("a", "x").renamed("p", "day")
    assert columns(found) == [("x", "INT", 1, "a"), ("day", "INT", 2, "p")]
    assert found.metadata["partitionColumns"] == ["day"]


def test_a_column_that_is_added_again_has_another_id_and_name_in_files() -> None:
    (field,) = TableSchema.of_ddl("b STRING").fields
    found = new().enabled(Feature.COLUMN_MAPPING).without("b").with_column(field)
    assert columns(found)[:2] == [("a", "INT", 1, "a"), ("p", "INT", 3, "p")]
    name, ddl, number, physical = columns(found)[2]
    assert (name, ddl, number) == ("b", "STRING", 4)
    assert physical.startswith("col-")
    assert found.configuration[MAX_COLUMN_ID] == "4"


def test_a_column_of_a_table_without_mapping_has_no_id() -> None:
    (field,) = TableSchema.of_ddl("c STRING").fields
    found = new().with_column(field)
    assert [dict(each.metadata) for each in found.fields] == [{}] * 4
    assert found.configuration == {}


def test_widened_columns_say_what_they_were() -> None:
    found = new().enabled(Feature.TYPE_WIDENING).widened("a", "long").widened("p", "short")
    (a, _, _) = found.fields
    assert (a.ddl, a.metadata) == (
        "BIGINT",
        {"delta.typeChanges": [{"toType": "long", "fromType": "integer"}]},
    )
    again = found.widened("a", "decimal(20,0)").fields[0]
    assert again.metadata["delta.typeChanges"][1] == {"toType": "decimal(20,0)", "fromType": "long"}
    assert found.configuration == {"delta.enableTypeWidening": "true"}
    assert found.protocol["readerFeatures"] == ["typeWidening"]


@pytest.mark.parametrize(
    ("protocol", "reads", "writes"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 2}, [], ["appendOnly", "invariants"]),
        (
            {"minReaderVersion": 2, "minWriterVersion": 5},
            ["columnMapping"],
            [
                "appendOnly",
                "changeDataFeed",
                "checkConstraints",
                "columnMapping",
                "generatedColumns",
                "invariants",
            ],
        ),
        (
            {"minReaderVersion": 2, "minWriterVersion": 7, "writerFeatures": ["columnMapping"]},
            ["columnMapping"],
            ["columnMapping"],
        ),
        (
            {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors", "rowTracking"],
            },
            ["deletionVectors"],
            ["deletionVectors", "rowTracking"],
        ),
    ],
)
def test_a_feature_is_added_to_those_of_every_protocol(
    protocol: dict[str, Any], reads: list[str], writes: list[str]
) -> None:
    found = Definition(protocol, new().metadata).enabled(Feature.TIMESTAMP_NTZ)
    assert found.protocol == {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted([*reads, "timestampNtz"]),
        "writerFeatures": sorted([*writes, "timestampNtz"]),
    }
    assert found.configuration == {}
    assert found.enabled(Feature.TIMESTAMP_NTZ) == found


def test_only_what_differs_is_committed() -> None:
    before = new()
    assert [*before.actions()[0], *before.actions()[1]] == ["protocol", "metaData"]
    assert before.actions(before) == []
    (action,) = before.with_properties({"x": "1"}).actions(before)
    assert action["metaData"] == {**before.metadata, "configuration": {"x": "1"}}
    assert [[*each] for each in before.enabled(Feature.COLUMN_MAPPING).actions(before)] == [
        ["protocol"],
        ["metaData"],
    ]


def test_types_without_time_zone_need_their_feature_wherever_they_are() -> None:
    for ddl in ("t TIMESTAMP_NTZ", "t ARRAY<TIMESTAMP_NTZ>", "t MAP<STRING, TIMESTAMP_NTZ>"):
        assert new(ddl).protocol["readerFeatures"] == ["timestampNtz"], ddl
    assert "readerFeatures" not in new("t TIMESTAMP").protocol


def test_the_rest_of_the_metadata_stays() -> None:
    before = Definition(
        {"minReaderVersion": 1, "minWriterVersion": 2},
        {**new().metadata, "name": "mine", "description": "größe", "configuration": {"x": "1"}},
    )
    after = before.enabled(Feature.COLUMN_MAPPING).renamed("a", "größe").without("b")
    changed = {"schemaString", "configuration"}
    assert {k: v for k, v in after.metadata.items() if k not in changed} == {
        k: v for k, v in before.metadata.items() if k not in changed
    }
    assert after.configuration == {"x": "1", **MAPPING, MAX_COLUMN_ID: "3"}
    assert "größe" in after.metadata["schemaString"]
    assert [each["name"] for each in json.loads(after.metadata["schemaString"])["fields"]] == ["größe", "p"]


def test_a_plain_definition_asks_readers_for_what_its_types_need() -> None:
    mapped = new("a INT, b TIMESTAMP_NTZ", "a").enabled(Feature.COLUMN_MAPPING, Feature.TYPE_WIDENING)
    found = mapped.renamed("a", "x").widened("x", "long").plain()
    assert [(each.name, each.ddl, dict(each.metadata)) for each in found.fields] == [
        ("x", "BIGINT", {}),
        ("b", "TIMESTAMP_NTZ", {}),
    ]
    assert (found.configuration, found.metadata["partitionColumns"]) == ({}, ["x"])
    assert found.asks_readers == (3, frozenset({"timestampNtz"}))
    assert found.without("b").plain().protocol == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert found.plain() == found


def test_a_plain_definition_keeps_the_features_that_files_still_need() -> None:
    mapped = new().enabled(Feature.COLUMN_MAPPING).with_protocol("deletionVectors")
    assert mapped.plain().protocol == {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["appendOnly", "deletionVectors", "invariants"],
    }
