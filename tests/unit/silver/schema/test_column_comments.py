"""Comments of the source are recorded as they change, and planned for the columns that silver has."""

from pathlib import Path

from pipeline.config.tables import TableRule
from pipeline.delta.schema import SchemaField
from pipeline.delta.table import Lake
from pipeline.metadata.source_comments import CommentTable, SourceComment, changed_tables, comments_after
from pipeline.silver.schema.column_comments import column_comments, comments_of, differing, source_comment
from pipeline.silver.schema.schema_evolution import plan_properties
from pipeline.silver.schema.schema_operations import DropColumn, RenameColumn
from pipeline.table_name import TableName

T, U = TableName("public", "t"), TableName("public", "u")


def on(
    name: TableName, oid: int, number: int | None, column: str | None, text: str | None = "x"
) -> SourceComment:
    return SourceComment(*name, oid, number, column, text)


def recorded(*comments: SourceComment) -> dict[TableName, list[SourceComment]]:
    found: dict[TableName, list[SourceComment]] = {}
    for each in comments:
        found.setdefault(each.name, []).append(each)
    return found


def test_a_removed_comment_stays_recorded_as_removed() -> None:
    before = recorded(on(T, 1, 0, None), on(T, 1, 2, "b"))
    removed = [on(T, 1, 0, None, "y"), on(T, 1, 2, "b", None)]
    assert comments_after(before, [on(T, 1, 0, None, "y")], {T: 1}) == removed
    assert comments_after(recorded(*removed), [on(T, 1, 0, None, "y")], {T: 1}) == removed


def test_tables_that_were_not_polled_keep_theirs() -> None:
    assert comments_after(recorded(on(T, 1, 0, None)), [], {U: 2}) == [on(T, 1, 0, None)]


def test_a_renamed_table_or_column_takes_its_comments_along() -> None:
    before = recorded(on(T, 1, 0, None), on(T, 1, 2, "b"), on(T, 1, 3, "c"))
    found = [on(U, 1, 0, None), on(U, 1, 2, "renamed")]
    assert comments_after(before, found, {U: 1}) == [*found, on(U, 1, 3, "c", None)]


def test_what_a_table_had_that_was_created_again_is_removed() -> None:
    before = recorded(on(T, 1, 0, None), on(T, 1, 1, "a"), on(T, 1, 2, "b"))
    found = [on(T, 9, 1, "b", "y")]
    after = [*found, on(T, 9, 0, None, None), on(T, 9, None, "a", None)]
    assert comments_after(before, found, {T: 9}) == after
    assert comments_after(recorded(*after), found, {T: 9}) == after


def test_what_is_recorded_is_read(tmp_path: Path) -> None:
    table = CommentTable(Lake(str(tmp_path)))
    assert table.read() == {}
    rows = [on(T, 1, 0, None, "a\n'b'"), on(T, 1, 2, "b", None), on(U, 2, None, "c", None)]
    table.replace(rows)
    assert CommentTable(Lake(str(tmp_path))).read() == table.read() == recorded(*rows)
    before = table.read()
    table.replace([*rows[:2], on(U, 2, 0, None)])
    assert changed_tables(before, table.read()) == [U]


def test_columns_are_found_by_number_and_by_name_where_that_is_unknown() -> None:
    comments = [on(T, 1, 0, None, "t"), on(T, 1, 2, "b", "two"), on(T, 1, None, "c", None)]
    numbers = {"renamed": 2, "b": 7, "c": 3, "d": None}
    assert column_comments(comments, 1, numbers) == {"renamed": "two", "c": ""}
    assert column_comments(comments, 1, {"b": None}) == {"b": "two"}
    assert source_comment(comments, 1) == "t"
    assert (column_comments(comments, 2, numbers), source_comment(comments, 2)) == ({}, None)


def test_only_comments_that_differ_are_planned() -> None:
    fields = [SchemaField("a", "long", {"comment": "x"}), SchemaField("b", "long"), SchemaField("c", "long")]
    found = comments_of(fields, [RenameColumn("a", "d")])
    assert found == {"d": "x"}
    assert comments_of(fields, [DropColumn("a")]) == {}
    wanted = {"d": "x", "b": "", "c": "new", "left out": "y"}
    assert differing(wanted, found, ["b", "c", "d"]) == {"c": "new"}


def test_the_comment_of_the_rule_precedes_the_source_s() -> None:
    rule = TableRule("*.*", comment="mine")
    assert plan_properties(rule, {}, "mine", "theirs") is None
    plan = plan_properties(TableRule("*.*"), {}, None, "it's", {"b": "x\\", "a`b": "${y}"})
    assert plan is not None
    assert plan.is_native
    assert plan.statements("t") == (
        "ALTER TABLE t SET TBLPROPERTIES ('comment' = 'it\\'s')",
        "ALTER TABLE t ALTER COLUMN `a``b` COMMENT '\\u0024{y}', `b` COMMENT 'x\\\\'",
    )
    assert plan_properties(TableRule("*.*"), {}, None, "") is None
