"""Properties that the pipeline or Delta's protocol depends on are refused with file, line and key."""

from pathlib import Path

import pytest

from pipeline.config.load import NOT_FOR_PARTITIONS, load_config
from pipeline.delta.partitions import may_be_partition_column
from tests.support.config_texts import mistake


@pytest.mark.promise("mistakes in the file")
@pytest.mark.parametrize(
    "name",
    [
        "delta.appendOnly",
        "delta.enableChangeDataFeed",
        "DELTA.x",
        "pgdelta.logRetentionCommits",
        "comment",
        "Owner",
    ],
)
def test_a_reserved_property_is_refused(name: str) -> None:
    found = mistake(f"pipeline: p\ntables:\n  - source: a.b\n    properties:\n      {name}: x\n")
    assert found.startswith(f"c.yaml:5: tables[0].properties.{name}: The pipeline or Delta sets")


def test_others_are_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "pipeline: p\ntables:\n  - source: a.b\n    comment: c\n    change_feed: true\n"
        "    properties: {team: sales, delta.dataSkippingNumIndexedCols: '8'}\n"
    )
    [rule] = load_config(file, {}).tables
    assert (rule.comment, rule.change_feed) == ("c", True)
    assert rule.properties == {"team": "sales", "delta.dataSkippingNumIndexedCols": "8"}


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ("cluster_by: []", "3: tables[0].cluster_by: No column is named."),
        ("cluster_by: [a, b, a]", "3: tables[0].cluster_by[2]: The column is named twice."),
        (
            "cluster_by: [a]\n    columns: {exclude: [a]}",
            "3: tables[0].cluster_by[0]: The column is not captured.",
        ),
    ],
)
def test_columns_that_files_cannot_be_sorted_by_are_refused(keys: str, error: str) -> None:
    found = mistake(f"tables:\n  - source: a.b\n    {keys}\npipeline: p\n")
    assert found.startswith(f"c.yaml:{error}")


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ("partition_by: []", "3: tables[0].partition_by: No column is named."),
        ("partition_by: [a, b, a]", "3: tables[0].partition_by[2]: The column is named twice."),
        (
            "partition_by: [b, a]\n    columns: {exclude: [a]}",
            "3: tables[0].partition_by[1]: The column is not captured.",
        ),
        ("partition_by: [a, b, c, d, e]", "3: tables[0].partition_by[4]: A table has at most 4 columns"),
        (
            "types: {b: double}\n    partition_by: [a, b]",
            "4: tables[0].partition_by[1]: types gives the column DOUBLE,",
        ),
        (
            "partition_by: [a]\n    columns: {mask: {a: null}}",
            "3: tables[0].partition_by[0]: All values of the column are masked",
        ),
        (
            "target: '{table}'\n    partition_by: [a]",
            "4: tables[0].partition_by: The partitions of a table that several sources share",
        ),
    ],
)
def test_columns_that_tables_cannot_be_divided_by_are_refused(keys: str, error: str) -> None:
    found = mistake(f"tables:\n  - source: a.b\n    {keys}\npipeline: p\n")
    assert found.startswith(f"c.yaml:{error}")


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "BINARY", "VARIANT", "ARRAY<INT>", "MAP<STRING,STRING>"])
def test_types_without_partitions_are_those_of_the_writers(kind: str) -> None:
    assert kind.startswith(NOT_FOR_PARTITIONS)
    assert not may_be_partition_column(kind)


@pytest.mark.parametrize(
    "kind",
    ["BOOLEAN", "SMALLINT", "INT", "BIGINT", "STRING", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(5,2)"],
)
def test_the_other_types_may_have_partitions(kind: str) -> None:
    assert not kind.startswith(NOT_FOR_PARTITIONS)
    assert may_be_partition_column(kind)


def test_columns_to_divide_by_are_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("pipeline: p\ntables:\n  - source: a.b\n    partition_by: [a, B]\n")
    assert load_config(file, {}).tables[0].partition_by == ("a", "B")


def test_columns_to_sort_by_are_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("pipeline: p\ntables:\n  - source: a.b\n    cluster_by: [a, B]\n")
    assert load_config(file, {}).tables[0].cluster_by == ("a", "B")


@pytest.mark.parametrize(
    ("head", "keys", "error"),
    [
        ("", "readers: all", "4: tables[0].readers: Unknown value."),
        ("", "types: {v: VARIANT}\n    readers: widest", "5: tables[0].readers: Readers of column v need"),
        ("silver: {readers: widest}", "types: {v: VARIANT}", "3: tables[0]: Readers of column v need"),
        ("", "target: '{table}'\n    readers: widest", "5: tables[0].readers: Tables that several sources"),
    ],
)
def test_what_some_readers_refuse_is_refused_for_tables_of_all_readers(
    head: str, keys: str, error: str
) -> None:
    found = mistake(f"pipeline: p\ntables:\n  - source: a.b\n    {keys}\n{head}\n")
    assert found.startswith(f"c.yaml:{error}")
