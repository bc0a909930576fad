"""From silver's columns to those of a relation version: followed, held, and continued after a crash."""

from collections.abc import Mapping

import pytest

from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.config.tables import TableRule, TypeChanges
from pipeline.silver.schema.column_mapping import SilverColumns, align_versions
from pipeline.silver.schema.schema_evolution import columns_after, plan_evolution, rule_for_rebuild
from pipeline.silver.schema.schema_operations import (
    AddColumn,
    CreateTable,
    DropColumn,
    Hold,
    NeedsRebuild,
    NeedsResync,
    SchemaNote,
    SchemaOperation,
    WidenColumn,
)
from tests.support.silver.relations import FLOAT8, INT4, INT8, NUMERIC, TEXT, column, relation

ID = column("id", 1, INT4, is_key=True)
NAME = column("name", 2)
BEFORE = relation(ID, NAME)
RECORDED = SilverColumns(500, {"id": 1, "name": 2})
SILVER = {"id": "INT", "name": "STRING"}
KEPT = (
    " Until then silver keeps the table as it was before this change, and bronze keeps the changes that "
    "follow."
)


def plan(
    to: SourceRelation,
    recorded: SilverColumns | None = RECORDED,
    silver: Mapping[str, str] | None = SILVER,
    overrides: Mapping[str, str] | None = None,
) -> list[SchemaOperation]:
    return plan_evolution(recorded, to, silver, TableRule("*.*", types=overrides or {}))


def held(
    to: SourceRelation, recorded: SilverColumns | None = RECORDED, silver: Mapping[str, str] | None = SILVER
) -> str:
    [operation] = plan(to, recorded, silver)
    assert isinstance(operation, Hold)
    assert operation.sentence.endswith(KEPT)
    reason, _, action = operation.sentence.removesuffix(KEPT).partition(". ")
    if " changed from " in reason:
        assert action == f"Set type_changes to rebuild or resync, or run pgdelta rebuild --table {to.name}."
    else:
        assert action == "Rename one of the two at the source."
    return reason


def test_table_is_created_with_the_columns_of_the_relation_in_order() -> None:
    to = relation(ID, column("amount", 2, NUMERIC, modifier=((10 << 16) | 2) + 4), column("tags", 3, 1009))
    [operation] = plan(to, None, None)
    assert isinstance(operation, CreateTable)
    assert [(name, kind.ddl) for name, kind in operation.columns] == [
        ("id", "INT"),
        ("amount", "DECIMAL(10,2)"),
        ("tags", "ARRAY<STRING>"),
    ]
    assert not bool(operation.features)


def test_name_that_delta_accepts_with_column_mapping_only_enables_it() -> None:
    for name in ("a b", "a,b", "a;b", "{a", "a}", "(a", "a)", "a\nb", "a\tb", "a=b"):
        [operation] = plan(relation(column(name, 1)), None, None)
        assert isinstance(operation, CreateTable)
        assert bool(operation.features)
    [operation] = plan(relation(column("a.b`c/日", 1)), None, None)
    assert isinstance(operation, CreateTable)
    assert not bool(operation.features)


def test_same_columns_need_nothing() -> None:
    assert plan(BEFORE) == []
    assert plan(relation(NAME, ID)) == []


def test_new_column_is_added() -> None:
    [operation] = plan(relation(ID, NAME, column("more `x`", 3, INT4)))
    assert isinstance(operation, AddColumn)
    assert (operation.statements("t"), operation.backfill) == (
        ("ALTER TABLE t ADD COLUMNS (`more ``x``` INT)",),
        None,
    )
    assert operation.sentence == "Column more `x` was added."


def test_new_column_with_a_default_is_filled_in_the_rows_that_are_there() -> None:
    [operation] = plan(relation(ID, NAME, column("n", 3, INT4, default="7")))
    assert isinstance(operation, AddColumn)
    assert (operation.backfill, operation.sentence) == ("7", "Column n was added with a default.")
    [empty] = plan(relation(ID, NAME, column("n", 3, default="")))
    assert isinstance(empty, AddColumn)
    assert (empty.backfill, empty.sentence) == ("", "Column n was added with a default.")


def test_column_that_leaves_the_relation_stays_in_silver() -> None:
    assert plan(relation(ID)) == []


def test_changed_type_is_held() -> None:
    sentence = "Table public.t is held: column name changed from STRING to INT"
    assert held(relation(ID, column("name", 2, INT4))) == sentence
    assert held(relation(ID, column("name", 9, INT4))) == sentence


NUMERIC_10_2, NUMERIC_12_4 = (((p << 16) | s) + 4 for p, s in ((10, 2), (12, 4)))
WIDER = {
    "SMALLINT to INT": ("SMALLINT", column("v", 2, INT4), "INT"),
    "INT to BIGINT": ("INT", column("v", 2, INT8), "BIGINT"),
    "INT to DOUBLE": ("INT", column("v", 2, FLOAT8), "DOUBLE"),
    "FLOAT to DOUBLE": ("FLOAT", column("v", 2, FLOAT8), "DOUBLE"),
    "INT to DECIMAL": ("INT", column("v", 2, NUMERIC, modifier=NUMERIC_12_4 + (2 << 16)), "DECIMAL(14,4)"),
    "DECIMAL": ("DECIMAL(10,2)", column("v", 2, NUMERIC, modifier=NUMERIC_12_4), "DECIMAL(12,4)"),
    "INT to DECIMAL that holds both": (
        "INT",
        column("v", 2, NUMERIC, modifier=NUMERIC_12_4),
        "DECIMAL(14,4)",
    ),
    "DECIMAL that holds both": (
        "DECIMAL(10,2)",
        column("v", 2, NUMERIC, modifier=((10 << 16) | 4) + 4),
        "DECIMAL(12,4)",
    ),
    "DATE to TIMESTAMP_NTZ": ("DATE", column("v", 2, 1114), "TIMESTAMP_NTZ"),
}


@pytest.mark.parametrize("name", WIDER)
def test_type_that_holds_every_former_value_is_widened_and_stays_wide(name: str) -> None:
    before, wide, after = WIDER[name]
    recorded = SilverColumns(500, {"id": 1, "v": 2})
    [operation] = plan(relation(ID, wide), recorded, {"id": "INT", "v": before})
    assert isinstance(operation, WidenColumn)
    assert (operation.type.ddl, operation.sentence.split(".")[0]) == (
        after,
        f"Column v was widened from {before} to {after}",
    )
    silver = columns_after({"id": "INT", "v": before}, [operation])
    assert silver == {"id": "INT", "v": after}
    assert plan(relation(ID, wide), recorded, silver) == []


@pytest.mark.parametrize(
    ("before", "to"),
    [
        ("BIGINT", column("name", 2, FLOAT8)),
        ("DECIMAL(38,2)", column("name", 2, NUMERIC, modifier=NUMERIC_12_4)),
        ("DATE", column("name", 2, 1184)),
        ("TIMESTAMP_NTZ", column("name", 2, 1184)),
    ],
)
def test_type_that_does_not_hold_every_value_is_held(before: str, to: SourceColumn) -> None:
    assert "column name changed from" in held(relation(ID, to), RECORDED, {"id": "INT", "name": before})


@pytest.mark.parametrize(
    ("type_changes", "operation"), [("hold", Hold), ("rebuild", NeedsRebuild), ("resync", NeedsResync)]
)
def test_a_rule_decides_what_follows_a_type_that_silver_does_not_hold(
    type_changes: TypeChanges, operation: type[SchemaOperation]
) -> None:
    to = relation(ID, column("name", 2, INT4))
    [found] = plan_evolution(RECORDED, to, SILVER, TableRule("*.*", type_changes=type_changes))
    assert type(found) is operation
    assert "olumn name changed from STRING to INT" in (found.sentence or "")
    # nothing else is copied again
    collision = relation(column("Id", 3), NAME)
    [other] = plan_evolution(RECORDED, collision, SILVER, TableRule("*.*", type_changes=type_changes))
    assert type(other) is Hold


def test_narrower_type_leaves_silver_as_wide_as_it_is() -> None:
    assert plan(relation(ID, column("name", 2, INT4)), silver={"id": "INT", "name": "BIGINT"}) == []


def test_override_keeps_the_type_that_silver_has() -> None:
    assert plan(relation(ID, column("name", 2, INT4)), overrides={"name": "string"}) == []
    [operation] = plan(relation(ID, NAME), overrides={"name": "DECIMAL(20, 4)"})
    assert isinstance(operation, Hold)


def test_names_that_differ_only_in_case_are_held() -> None:
    sentence = "Table public.t is held: columns Id and id differ only in case, which Delta cannot hold"
    assert held(relation(column("Id", 1), column("id", 2)), None, None) == sentence
    present = {"Id": "INT", "name": "STRING"}
    assert (
        held(relation(column("id", 3), NAME), SilverColumns(500, {"Id": 1, "name": 2}), present) == sentence
    )


def test_evolution_that_a_crash_interrupted_is_repeated() -> None:
    to = relation(ID, NAME, column("a", 3, default="7"), column("b", 4))
    whole = plan(to)
    for added in ({}, {"a": "STRING"}, {"a": "STRING", "b": "STRING"}):
        again = plan(to, silver=SILVER | added)
        assert again == whole
    assert [type(operation) for operation in whole] == [AddColumn, AddColumn]


def test_table_created_again_under_its_name_has_new_attribute_numbers() -> None:
    again = relation(column("name", 1), column("id", 2, INT4, is_key=True), column("more", 3), oid=501)
    [operation] = plan(again)
    assert isinstance(operation, AddColumn)
    assert operation.name == "more"


def test_column_that_appears_while_the_catalog_is_ahead_gets_a_note() -> None:
    to = relation(*(column(c.name, None, c.type_oid) for c in (ID, NAME)), column("more", None))
    added, note = plan_evolution(RECORDED, to, SILVER, TableRule("*.*"), is_certain=False)
    assert isinstance(added, AddColumn)
    assert isinstance(note, SchemaNote)
    assert note.sentence.startswith("Column more appeared while the catalog was ahead of the stream")


@pytest.mark.promise("uncertain columns")
def test_column_that_may_be_one_of_unknown_number_is_added_with_a_note() -> None:
    before = relation(ID, column("old", None, NAME.type_oid))
    recorded = SilverColumns(500, {}).after(before)
    silver = {"id": "INT", "old": "STRING"}
    added, note = plan_evolution(
        recorded, relation(ID, column("new", 2, NAME.type_oid)), silver, TableRule("*.*")
    )
    assert (type(added), type(note)) == (AddColumn, SchemaNote)
    log = TableRule("*.*", mode="append")
    assert note in plan_evolution(recorded, relation(ID, column("new", 2, NAME.type_oid)), silver, log)
    # not if it still has its name, nor if it was dropped before
    later = relation(ID, column("old", 2, NAME.type_oid), column("more", 3))
    assert [type(o) for o in plan_evolution(recorded, later, silver, TableRule("*.*"))] == [AddColumn]
    dropped = recorded.after(relation(ID))
    assert [
        type(o) for o in plan_evolution(dropped, relation(ID, column("more", 3)), silver, TableRule("*.*"))
    ] == [AddColumn]


def test_type_that_only_the_catalog_has_is_silver_s() -> None:
    silver = {"id": "INT", "name": "ARRAY<STRING>"}
    unknown = relation(column("id", None, 16_400), column("name", None, 16_500))
    assert plan(unknown, silver=silver) == []
    assert held(relation(column("id", None, TEXT)), silver=silver).endswith("changed from INT to STRING")


def test_numbers_stay_where_the_catalog_has_none() -> None:
    unnumbered = relation(column("id", None), column("name", None), column("new", None))
    after = RECORDED.after(unnumbered)
    assert after.numbers == {"id": 1, "name": 2, "new": None}
    assert RECORDED.after(relation(ID)).numbers == RECORDED.numbers
    assert RECORDED.after(relation(column("id", 4), oid=9)) == SilverColumns(
        9, {"id": 4}, types={"id": (TEXT, -1)}
    )


def test_dropped_column_stays_unless_the_rule_is_drop() -> None:
    silver = SILVER | {"name__text": "STRING"}
    assert plan_evolution(RECORDED, relation(ID), silver, TableRule("*.*")) == []
    rule = TableRule("*.*", dropped_columns="drop")
    operations = plan_evolution(RECORDED, relation(ID), silver, rule)
    assert operations == [DropColumn("name"), DropColumn("name__text")]
    assert columns_after(silver, operations) == {"id": "INT"}
    # the catalog does not have the columns
    assert plan_evolution(RECORDED, relation(column("id", None, INT4)), silver, rule) == []


def test_a_rebuild_reads_each_column_into_its_last_type_by_silver_s_name() -> None:
    first = relation(ID, column("v", 2, INT4), column("V", 3, INT4), column("gone", 4, INT4))
    second = relation(ID, column("v", 2, INT4), column("V", 3), column("gone", 4), version=2)
    third = relation(ID, column("w", 2, INT8), column("V", 3), version=3)
    aligned = align_versions(None, [first, second, third])
    found = rule_for_rebuild(aligned.relations, TableRule("*.*", type_changes="rebuild"))
    assert found.types == {"id": "INT", "w": "BIGINT", "V": "STRING", "gone": "STRING"}
    assert found.type_changes == "hold"
    aligned = align_versions(None, [first, second])
    found = rule_for_rebuild(aligned.relations, TableRule("*.*", types={"gone": "BIGINT"}))
    assert found.types == {"id": "INT", "v": "INT", "V__3": "STRING", "gone": "BIGINT"}


def test_a_rebuild_keeps_a_type_that_the_last_version_lacks() -> None:
    typed = relation(ID, column("v", 2, 16_400, base_oid=INT4))
    unknown = relation(ID, column("v", None, 16_400), version=2)
    assert rule_for_rebuild([typed, unknown], TableRule("*.*")).types == {"id": "INT", "v": "INT"}
