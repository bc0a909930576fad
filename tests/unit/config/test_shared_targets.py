"""Targets with `{table}`: what they may be, and which silver table they name."""

import pytest

from pipeline.delta.table import Lake
from pipeline.metadata.silver_paths import resolve_path
from pipeline.silver.write.shared_tables import SharedTable, shared_path, silver_path, source_of
from pipeline.table_name import TableName
from tests.support.config_texts import load, mistake

HEAD = "pipeline: shop\nstorage: {root: /lake}\n"
ORDERS = TableName("tenant_a", "orders")


def text_of(*lines: str, silver: str = "") -> str:
    return HEAD + (f"silver: {{{silver}}}\n" if silver else "") + "tables:\n" + "\n".join(lines)


SHARED = '  - {source: "tenant_*.*", target: "{table}"}'


def test_tables_of_a_name_have_one_folder() -> None:
    config, lake = load(text_of(SHARED)), Lake("/lake")
    assert silver_path(lake, config, ORDERS) == "file:/lake/silver/orders/_parts/shop.tenant_a"
    assert shared_path(silver_path(lake, config, ORDERS)) == "file:/lake/silver/orders"
    assert shared_path("file:/lake/silver/public/orders") is None
    named = silver_path(lake, config, TableName("tenant_a=b/c", "orders"))
    assert named == "file:/lake/silver/orders/_parts/shop.tenant_a%3Db%2Fc"
    assert SharedTable(lake.table_at(named)).source == "shop.tenant_a=b/c"


def test_pipelines_have_one_folder() -> None:
    config = load(text_of(SHARED, silver="shared_root: /shared/silver"))
    path = silver_path(Lake("/lake"), config, ORDERS)
    assert path == "file:/shared/silver/orders/_shards/shop.tenant_a"
    assert resolve_path(path, ORDERS, "file:/elsewhere") == path


def test_a_lake_that_moves_takes_its_tables_along() -> None:
    path = "file:/lake/silver/orders/_parts/shop.tenant_a"
    assert resolve_path(path, ORDERS, "file:/new") == "file:/new/silver/orders/_parts/shop.tenant_a"


def test_a_source_is_named_without_doubt() -> None:
    assert source_of("shop", "tenant_a") == "shop.tenant_a"
    assert source_of("shop", "a.b") == 'shop."a.b"'
    assert source_of("shop.a", "b") != source_of("shop", "a.b")


@pytest.mark.parametrize(
    ("lines", "silver", "place"),
    [
        (['  - {source: "*.*", target: "{schema}"}'], "", ":4: tables[0].target: A target may have {table}"),
        (['  - {source: "*.*", target: "{table}{table}"}'], "", ":4: tables[0].target: A target may have"),
        (['  - {source: "*.*", target: "all"}'], "", ":4: tables[0].target: A rule with a target matches"),
        (['  - {source: "*.*", target: "{table}", change_feed: true}'], "", ":4: tables[0].target: Sever"),
        (['  - {source: "*.*", target: "{table}", dropped_columns: drop}'], "", ":4: tables[0].target: S"),
        ([SHARED], "detached_tables: archive", ":5: tables[0].target: Several sources share"),
        ([SHARED], "dropped_columns: drop", ":5: tables[0].target: Several sources share"),
        ([SHARED, SHARED.replace('"}', '", mode: append}')], "", ":5: tables[1].target: Several"),
    ],
)
def test_what_cannot_be_shared_is_refused(lines: list[str], silver: str, place: str) -> None:
    assert place in mistake(text_of(*lines, silver=silver))


def test_rules_with_one_target_may_be_several() -> None:
    config = load(text_of(SHARED, '  - {source: "x.*", target: "{table}", misfits: {day: text}}'))
    assert [rule.is_shared for rule in config.tables] == [True, True]


UNION = '  - {source: "public.cities", inheritance: union, descendants: ["public.c*"], target: towns}'


def test_a_union_has_one_folder_of_several_tables() -> None:
    config, lake = load(text_of(UNION)), Lake("/lake")
    parent, child = (silver_path(lake, config, TableName("public", name)) for name in ("cities", "c.d"))
    assert parent == "file:/lake/silver/towns/_parent/shop.public.cities"
    assert child == 'file:/lake/silver/towns/_descendants/shop.public."c.d"'
    assert shared_path(parent) == shared_path(child) == "file:/lake/silver/towns"
    assert resolve_path(child, TableName("public", "c.d"), "file:/new") == child.replace("/lake", "/new")


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        (
            "public.cities",
            "public.*",
            "target: A rule with a target matches one table only. Name the table in",
        ),
        (
            ", target: towns",
            "",
            "inheritance: A union has a folder of its own. Write a target, such as target: c",
        ),
        ("target: towns", 'target: "{table}"', "inheritance: A union has a folder of its own."),
        ('["public.c*"]', "[]", "inheritance: No table is named that inherits. Write descendants, such as"),
        ('"public.c*"', '"c*"', "descendants[0]: Not a `schema.table` glob."),
        (
            "inheritance: union, ",
            "",
            "descendants: They are for inheritance: union. Write that too, or leave",
        ),
        (
            "towns",
            "towns, partition_by: [id]",
            "partition_by: The partitions of a table that several sources",
        ),
        ("towns", "towns, change_feed: true", "target: The tables of a union share one silver table. Delta"),
    ],
)
def test_what_is_no_union_is_refused(before: str, after: str, place: str) -> None:
    assert f":4: tables[0].{place}" in mistake(text_of(UNION.replace(before, after)))
