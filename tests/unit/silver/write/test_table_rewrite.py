"""Operations on columns composed into one commit that writes the table again."""

from pipeline.delta.definition import Definition
from pipeline.delta.features import Feature
from pipeline.delta.schema import TableSchema
from pipeline.silver.schema.schema_operations import (
    AddColumn,
    DropColumn,
    LeaveFeatures,
    RenameColumn,
    SchemaOperation,
    WidenColumn,
)
from pipeline.silver.types.text_parsers import BIGINT, STRING
from pipeline.silver.write.table_rewrite import plan_rewrite


def new(ddl: str) -> Definition:
    return Definition.of_new(TableSchema.of_ddl(ddl), {})


def test_operations_become_columns_and_where_their_values_are_from() -> None:
    added = AddColumn("d", STRING, "x")
    operations: list[SchemaOperation] = [
        RenameColumn("a", "a__0"),
        RenameColumn("b", "a"),
        RenameColumn("a__0", "b"),
        WidenColumn("n", BIGINT, "INT"),
        added,
        AddColumn("e", STRING),
        DropColumn("gone"),
    ]
    found = plan_rewrite(new("a INT, b STRING, n INT, gone DATE"), operations)
    columns = [(each.name, each.ddl) for each in found.definition.fields]
    assert columns == [("b", "INT"), ("a", "STRING"), ("n", "BIGINT"), ("d", "STRING"), ("e", "STRING")]
    assert found.sources == {"a": "b", "b": "a", "n": "n"}
    assert found.added == {"d": added}
    assert found.definition.asks_readers == (1, frozenset())
    assert found.new_names({"a": "a", "b": "b", "n": "n", "gone": "gone"}) == {"b": "a", "a": "b", "n": "n"}


def test_a_column_that_an_earlier_run_added_is_not_added_again() -> None:
    found = plan_rewrite(
        new("a INT, b STRING"), [AddColumn("b", STRING, "x"), WidenColumn("a", BIGINT, "INT")]
    )
    assert (found.sources, found.added) == ({"a": "a", "b": "b"}, {})


def test_a_table_with_features_is_written_as_it_is_without_them() -> None:
    mapped = new("a INT, b STRING").enabled(Feature.COLUMN_MAPPING).renamed("a", "x")
    found = plan_rewrite(mapped, [LeaveFeatures()])
    assert found.sources == {"x": "x", "b": "b"}
    assert found.new_names({"x": "a", "b": "b"}) == {"a": "x", "b": "b"}
    assert found.definition.asks_readers == (1, frozenset())
