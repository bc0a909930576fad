"""Which writer takes a step: each row of the decision, and the order of the rows."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pipeline.delta.table_log import Snapshot
from pipeline.silver.fold.fold import Fold, FoldColumn
from pipeline.silver.fold.write import WriteKind
from pipeline.silver.types.text_parsers import DOUBLE, HSTORE, INT, STRING, VARIANT, array_of
from pipeline.silver.write.writer_choice import (
    MAX_CHANGE_BYTES,
    MAX_CHANGES,
    MAX_COMPARED_BYTES,
    MAX_READ_ONCE,
    WriteFacts,
    choose,
    other_types,
    unsupported_feature,
)

SMALL = WriteFacts(WriteKind.MERGE, changes=3)


def test_a_small_write_needs_no_spark() -> None:
    for kind in WriteKind:
        assert str(choose(replace(SMALL, kind=kind))) == "without Spark (3 changes)"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (replace(SMALL, setting="spark"), "silver.writer is spark"),
        (replace(SMALL, is_local=False), "only Spark reads storage.root"),
        (replace(SMALL, unsupported="deletion vectors"), "the table has deletion vectors"),
        (replace(SMALL, other_types=("VARIANT", "MAP<STRING,STRING>")), "VARIANT, MAP<STRING,STRING>"),
        (replace(SMALL, change_bytes=None), "only Spark can read the changes"),
    ],
)
def test_spark_writes_what_only_it_can_whatever_the_setting(facts: WriteFacts, reason: str) -> None:
    found = choose(facts)
    assert not found.is_native
    assert reason in found.reason
    if facts.setting != "spark":
        assert choose(replace(facts, setting="native")) == found


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (replace(SMALL, changes=MAX_CHANGES + 1), "1,000,001 changes"),
        (replace(SMALL, change_bytes=MAX_CHANGE_BYTES + 1), "128.0 MiB of bronze are read"),
        (replace(SMALL, compared_bytes=MAX_COMPARED_BYTES + 1), "64.0 MiB of the table are compared"),
    ],
)
def test_spark_writes_much_unless_the_setting_is_native(facts: WriteFacts, reason: str) -> None:
    assert str(choose(facts)) == f"by Spark ({reason})"
    assert choose(replace(facts, setting="native")).reason == "silver.writer is native"
    limits = {
        "changes": MAX_CHANGES,
        "change_bytes": MAX_CHANGE_BYTES,
        "compared_bytes": MAX_COMPARED_BYTES,
    }
    assert choose(replace(SMALL, **limits)).is_native  # type: ignore[arg-type]


def test_rows_that_are_only_added_need_no_spark_however_many_they_are() -> None:
    many = replace(SMALL, changes=10**9, change_bytes=1 << 40, only_adds=True)
    assert str(choose(many)) == "without Spark (1,000,000,000 rows, only added)"
    for without in ({"setting": "spark"}, {"other_types": ("VARIANT",)}):
        assert not choose(replace(many, **without)).is_native


def test_rows_that_are_written_as_read_need_spark_only_if_very_many() -> None:
    many = replace(SMALL, changes=MAX_READ_ONCE, change_bytes=1 << 40, is_read_once=True)
    assert str(choose(many)) == "without Spark (4,000,000 changes into an empty table)"
    assert not choose(replace(many, changes=MAX_READ_ONCE + 1)).is_native
    assert not choose(replace(many, is_read_once=False)).is_native


def test_types_that_only_spark_writes_are_named_once() -> None:
    columns = [
        FoldColumn(str(i), kind, {1: i}) for i, kind in enumerate((INT, VARIANT, STRING, HSTORE, VARIANT))
    ]
    assert other_types(Fold(tuple(columns), (), (1,))) == ("VARIANT", "MAP<STRING,STRING>")
    assert other_types(Fold(tuple(columns[:1]), (), (1,))) == ()


def test_keys_whose_text_the_engines_write_differently_are_left_to_spark() -> None:
    columns = tuple(FoldColumn(kind.ddl, kind, {1: 0}) for kind in (INT, DOUBLE, array_of(STRING)))
    assert other_types(Fold(columns, (), (1,))) == ()
    assert other_types(Fold(columns, (0,), (1,))) == ()
    assert other_types(Fold(columns, (0, 1, 2), (1,))) == ("DOUBLE key", "ARRAY<STRING> key")


def snapshot(metadata: dict[str, Any] | None = None, **options: Any) -> Snapshot:
    column = {"name": "id", "type": "integer", "nullable": True, "metadata": metadata or {}}
    schema = json.dumps({"type": "struct", "fields": [column]})
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    return Snapshot("/lake/t", 0, schema_string=schema, **{"protocol": protocol, **options})


def with_features(*features: str) -> dict[str, Any]:
    return {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": [*features]}


@pytest.mark.parametrize(
    "found",
    [
        snapshot(configuration={"delta.columnMapping.mode": "id"}),
        snapshot(configuration={"delta.enableChangeDataFeed": "true"}),
        snapshot(configuration={"delta.appendOnly": "true"}),
        snapshot(configuration={"delta.enableRowTracking": "true"}),
        snapshot(configuration={"delta.constraints.positive": "id > 0"}),
        snapshot({"delta.generationExpression": "1"}),
        snapshot({"CURRENT_DEFAULT": "1"}),
        snapshot(protocol=with_features("clustering")),
        snapshot(protocol=with_features("rowTracking")),
        snapshot(protocol=with_features("a feature of the future")),
        snapshot(protocol=with_features("allowColumnDefaults")),
    ],
)
def test_tables_with_more_than_whole_files_are_left_to_spark(found: Snapshot) -> None:
    assert unsupported_feature(found) is not None


def test_tables_as_pgdelta_makes_them_need_no_spark() -> None:
    assert unsupported_feature(snapshot()) is None
    assert unsupported_feature(snapshot(partition_columns=("id",))) is None
    assert (
        unsupported_feature(snapshot(protocol=with_features("timestampNtz", "invariants", "appendOnly")))
        is None
    )
