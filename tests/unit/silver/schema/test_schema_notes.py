"""What the stream does not carry about a column becomes a note: silver may differ from the source."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pipeline.bronze.source_relations import SourceRelation
from pipeline.config.tables import TableRule
from pipeline.silver.schema.column_mapping import SilverColumns
from pipeline.silver.schema.schema_evolution import plan_evolution
from pipeline.silver.schema.schema_operations import SchemaNote
from pipeline.silver.types.types import keeps_texts, keeps_values
from tests.support.silver.relations import INT4, INT8, NUMERIC, TEXT, column, relation

ID = column("id", 1, INT4, is_key=True)
NAME = column("name", 2)
RECORDED = SilverColumns(500, {"id": 1, "name": 2})
SILVER = {"id": "INT", "name": "STRING"}
ANY = TableRule("*.*")
VARCHAR, BPCHAR, TIMESTAMP, JSON, JSONB = 1043, 1042, 1114, 114, 3802
NUMERIC_10_2, NUMERIC_12_4 = (((p << 16) | s) + 4 for p, s in ((10, 2), (12, 4)))


def notes(
    to: SourceRelation, recorded: SilverColumns, silver: Mapping[str, str], rule: TableRule = ANY
) -> list[tuple[str, str]]:
    """Return the kind of each note, and its sentence up to the first comma."""
    found = plan_evolution(recorded, to, silver, rule)
    return [(n.kind, n.sentence.split(", ")[0]) for n in found if isinstance(n, SchemaNote)]


@pytest.mark.parametrize(
    ("before", "after", "keeps"),
    [
        ((VARCHAR, 14), (VARCHAR, 24), True),
        ((VARCHAR, 14), (TEXT, -1), True),
        ((VARCHAR, 24), (VARCHAR, 14), False),
        ((TEXT, -1), (VARCHAR, 14), False),
        ((BPCHAR, 14), (BPCHAR, 24), False),
        ((BPCHAR, 14), (TEXT, -1), False),
        ((JSON, -1), (JSONB, -1), False),
        ((TIMESTAMP, 3), (TIMESTAMP, -1), True),
        ((TIMESTAMP, -1), (TIMESTAMP, 3), False),
        ((NUMERIC, NUMERIC_10_2), (NUMERIC, NUMERIC_12_4), True),
        ((NUMERIC, NUMERIC_12_4), (NUMERIC, NUMERIC_10_2), False),
        ((NUMERIC, -1), (NUMERIC, NUMERIC_10_2), False),
        ((INT8, -1), (INT4, -1), True),
        ((INT4, -1), (NUMERIC, NUMERIC_10_2), True),
        ((NUMERIC, NUMERIC_10_2), (INT4, -1), False),
        ((INT4, -1), (701, -1), True),
        ((1082, -1), (TIMESTAMP, -1), True),
        ((TIMESTAMP, -1), (1082, -1), False),
    ],
)
def test_type_that_changes_values_without_a_message_is_noted(
    before: tuple[int, int], after: tuple[int, int], keeps: bool
) -> None:
    assert keeps_values(before, after) is keeps
    assert keeps_values(after, after)
    assert keeps_texts(after, after)


@pytest.mark.parametrize(
    ("before", "after", "keeps"),
    [
        ((NUMERIC, NUMERIC_10_2), (NUMERIC, NUMERIC_12_4), False),
        ((NUMERIC, NUMERIC_10_2), (NUMERIC, NUMERIC_10_2 + (2 << 16)), True),
        ((NUMERIC, NUMERIC_10_2), (NUMERIC, -1), True),
        ((INT4, -1), (NUMERIC, NUMERIC_10_2), False),
        ((INT4, -1), (NUMERIC, -1), True),
        ((INT4, -1), (INT8, -1), True),
        ((1082, -1), (TIMESTAMP, -1), False),
        ((700, -1), (701, -1), False),
    ],
)
def test_numbers_with_another_spelling_are_noted_where_silver_has_texts(
    before: tuple[int, int], after: tuple[int, int], keeps: bool
) -> None:
    assert keeps_texts(before, after) is keeps
    recorded = replace(RECORDED, types={"id": before, "name": (TEXT, -1)})
    to = relation(column("id", 1, after[0], modifier=after[1], is_key=True), NAME, version=2)
    silver, rule = {**SILVER, "id": "STRING"}, TableRule("*.*", types={"id": "STRING"})
    found = notes(to, recorded, silver, rule)
    assert (("resync", "The type of column id changed") in found) is not keeps


def test_change_of_type_that_silver_does_not_see_is_noted() -> None:
    silver = {"id": "INT", "v": "STRING"}
    recorded = SilverColumns(500, {"id": 1, "v": 2}, types={"id": (INT4, -1), "v": (BPCHAR, 9)})
    to = relation(ID, column("v", 2, BPCHAR, modifier=14))
    assert notes(to, recorded, silver) == [("resync", "The type of column v changed")]
    assert notes(to, recorded.after(to), silver) == []
    unknown = relation(ID, column("v", None, 16_400))
    assert notes(unknown, recorded, silver) == []
    assert notes(to, recorded.after(unknown), silver) == [("resync", "The type of column v changed")]


def test_column_that_was_not_published_for_some_time_is_noted() -> None:
    recorded = SilverColumns(500, {"id": 1, "name": 2}, types={"id": (INT4, -1)})
    assert notes(relation(ID, NAME), recorded, SILVER) == [
        (
            "resync",
            "Column name was not published for some time. Run a resync to copy what changed meanwhile.",
        )
    ]
    never = SilverColumns(500, {"id": 1, "last": 3}, types={"id": (INT4, -1), "last": (TEXT, -1)})
    to = relation(ID, NAME, column("last", 3))
    assert [kind for kind, _ in notes(to, never, {"id": "INT", "last": "STRING"})] == ["resync"]


def test_default_that_may_vary_by_row_is_noted() -> None:
    serial = replace(column("n", 3, INT4), has_default=True)
    assert [kind for kind, _ in notes(relation(ID, NAME, serial), RECORDED, SILVER)] == ["resync"]
    constant = replace(serial, missing_value="7")
    assert notes(relation(ID, NAME, constant), RECORDED, SILVER) == []


def test_not_null_column_without_a_default_is_noted() -> None:
    required = replace(column("u", 3), is_not_null=True)
    [(kind, sentence)] = notes(relation(ID, NAME, required), RECORDED, SILVER)
    assert kind == "resync"
    assert sentence.startswith("Column u was added as NOT NULL")
    assert notes(relation(ID, NAME, replace(required, missing_value="7")), RECORDED, SILVER) == []
    assert notes(relation(ID, NAME, column("c", 3, INT4)), RECORDED, SILVER) == []
