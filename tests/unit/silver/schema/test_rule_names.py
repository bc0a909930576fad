"""A rule has silver's names where these differ from the source's."""

from pipeline.bronze.source_relations import SourceRelation
from pipeline.config.tables import TableRule
from pipeline.delta.column_lists import STATISTICS_COLUMNS, join_columns, split_columns, with_column_names
from pipeline.silver.schema.column_mapping import SilverColumns, align_versions
from pipeline.silver.schema.rule_names import (
    names_of_columns,
    properties_in_silver,
    rule_in_silver,
    rules_left_behind,
    silver_names,
)
from tests.support.silver.relations import INT4, column, relation

RULE = TableRule(
    "*.*", types={"A": "INT", "b": "STRING"}, misfits={"a": "clamp", "A": "text"}, partition_by=("A",)
)


def test_a_rule_that_a_renamed_column_leaves_behind_is_noted() -> None:
    key = column("id", 1, INT4, is_key=True)
    before, after = (relation(key, column(name, 2), column("c", 3)) for name in ("a", "x"))
    recorded = SilverColumns(500, {"id": 1, "a": 2, "c": 3})

    def found(rule: TableRule, silver: SilverColumns | None, *versions: SourceRelation) -> list[str]:
        names = align_versions(silver, versions).source_names
        return [note.sentence.split(" was")[0] for note in rules_left_behind(rule, silver, versions, names)]

    rule = TableRule("*.*", types={"a": "INT"}, misfits={"a": "clamp", "c": "text"})
    both = ["Column a, which tables[].types names,", "Column a, which tables[].misfits names,"]
    assert found(rule, recorded, after) == both
    assert found(rule, None, before, after) == both
    assert found(rule, recorded, before, after) == both
    assert found(rule, recorded, before) == []
    assert found(rule, SilverColumns(500, {"id": 1, "x": 2, "c": 3}), after) == []
    named = TableRule("*.*", types={"a": "INT", "x": "INT"}, misfits={"c": "text"})
    assert found(named, recorded, after) == []
    assert found(rule, SilverColumns(499, {"a": 2}), after) == []  # another table
    other = SilverColumns(500, {"id": 1, "a__2": 2, "c": 3}, {"a": 2})  # that silver names otherwise
    assert found(rule, other, after) == both


def test_a_rule_has_the_names_of_silver() -> None:
    versions = [relation(column("id", 1, INT4, is_key=True), column("a", 2), column("A", 3), column("b", 4))]
    names = silver_names(align_versions(None, versions))
    assert names == {"A": "A__3"}
    found = rule_in_silver(RULE, names, has_partitions=False)
    assert found.types == {"A__3": "INT", "b": "STRING"}
    assert found.misfits == {"a": "clamp", "A__3": "text"}
    assert found.partition_by == ("A__3",)
    assert rule_in_silver(found, names, has_partitions=False) == found
    # the table has its partition columns under silver's names
    assert rule_in_silver(RULE, names, has_partitions=True).partition_by == ("A",)
    assert rule_in_silver(RULE, {}, has_partitions=False) is RULE
    # a column of the configuration may have silver's name
    own = TableRule("*.*", types={"A": "INT", "A__3": "STRING"})
    assert rule_in_silver(own, names, has_partitions=False).types == {"A__3": "STRING"}


def test_a_property_names_columns_as_silver_does() -> None:
    key = column("id", 1, INT4, is_key=True)
    versions = [relation(key, column(name, 2), column("c", 3)) for name in ("a", "b", "x y")]
    recorded = SilverColumns(500, {"id": 1, "x y": 2, "c": 3})
    names = names_of_columns(recorded, versions)

    def found(value: str) -> tuple[str | None, list[str]]:
        wanted, missing = properties_in_silver(
            {STATISTICS_COLUMNS: value, "o": "1"}, names, {*names.values()}
        )
        assert wanted.pop("o") == "1"
        return wanted.get(STATISTICS_COLUMNS), missing

    assert found("id, c") == ("id, c", [])
    assert found("a,id") == found("b, id") == found("`x y`,a,id") == ("`x y`,id", [])
    assert found("nope,c,`no,pe`") == ("c", ["nope", "no,pe"])
    assert found("nope") == (None, ["nope"])
    assert properties_in_silver({"o": "1"}, names, {}) == ({"o": "1"}, [])


def test_a_list_of_columns_follows_as_in_spark() -> None:
    assert split_columns(" a , `b``,c`,_d ") == ["a", "b`,c", "_d"]
    assert split_columns(join_columns(["a", "b`,c", "é"])) == ["a", "b`,c", "é"]
    before = {STATISTICS_COLUMNS: "a,b", "o": "1"}
    assert with_column_names(before, {"a": "x y", "b": None}) == {STATISTICS_COLUMNS: "`x y`", "o": "1"}
    assert with_column_names(before, {"c": "d"}) == before
