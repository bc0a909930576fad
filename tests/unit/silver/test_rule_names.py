"""A rule has silver's names where these differ from the source's."""

from __future__ import annotations

from pipeline.config.tables import TableRule
from pipeline.silver.column_mapping import align_versions
from pipeline.silver.rule_names import rule_in_silver, silver_names
from tests.support.silver.relations import INT4, column, relation

RULE = TableRule(
    "*.*", types={"A": "INT", "b": "STRING"}, misfits={"a": "clamp", "A": "text"}, partition_by=("A",)
)


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
