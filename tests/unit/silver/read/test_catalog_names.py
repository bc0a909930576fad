"""The names of silver tables in a catalog: valid, unique, and the same in every run."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.jobs import Catalog
from pipeline.metadata.catalog_entries import CatalogName
from pipeline.silver.read.catalog_names import catalog_names
from pipeline.table_name import TableName

HOSTILE = (
    *("Order items", "order_items", "ORDER_ITEMS", "Größe", "a.b", "a`b", "a/b", "", " ", "$x", "a\nb"),
    *("'; DROP TABLE t; --", "x" * 63, "ß" * 31, "SELECT", "select", "1", "_", "ſ", "İ", "K"),
    *("${env:HOME}", "a|b", "a*", "日本語", "日本", "\u202e"),
)
VALID = re.compile("[a-z0-9_]{1,128}")


def names_of(
    *tables: tuple[str, str],
    rule: Catalog = Catalog("{schema}"),  # noqa: B008 - frozen
    recorded: dict[TableName, CatalogName] | None = None,
) -> dict[TableName, CatalogName]:
    return catalog_names(rule, "shop", [TableName(*table) for table in tables], recorded or {})


@pytest.mark.parametrize(
    ("rule", "name", "expected"),
    [
        (Catalog("{schema}"), ("sales", "orders"), "sales.orders"),
        (Catalog("{schema}"), ("sales", "OrderItems"), "sales.orderitems"),
        (Catalog("{pipeline}"), ("sales", "orders"), "shop.orders"),
        (Catalog("raw_{schema}", "{schema}_{table}"), ("sales", "orders"), "raw_sales.sales_orders"),
        (Catalog("Raw"), ("sales", "1st"), "raw.`1st`"),
        (Catalog("{schema}"), ("sales", "Order items"), "sales.order_items_6f822927"),
        (Catalog("{schema}"), ("Sales DE", "orders"), "sales_de_35f5f08b.orders"),
        (Catalog(None), ("sales", "orders"), None),
    ],
)
def test_a_name_follows_the_rule(rule: Catalog, name: tuple[str, str], expected: str | None) -> None:
    found = names_of(name, rule=rule)
    assert [str(each) for each in found.values()] == ([expected] if expected else [])


def test_hostile_names_are_valid_and_unique() -> None:
    for rule in (Catalog("{schema}"), Catalog("one"), Catalog("{schema}", "{pipeline}_{schema}_{table}")):
        tables = [(schema, table) for schema in HOSTILE for table in HOSTILE]
        found = names_of(*tables, rule=rule)
        assert len(set(found.values())) == len(tables)
        assert all(VALID.fullmatch(part) for name in found.values() for part in name)
        assert found == names_of(*reversed(tables), rule=rule)


def test_of_two_names_that_become_one_the_recorded_one_stays() -> None:
    upper, lower = TableName("s", "Orders"), TableName("s", "orders")
    first = names_of(upper)
    assert str(first[upper]) == "s.orders"
    both = names_of(upper, lower, recorded=first)
    assert both[upper] == first[upper]
    assert str(both[lower]) == "s.orders_96935fa1"
    # the name that is left stays too, when the other table is gone
    assert names_of(lower, recorded=both) == {lower: both[lower]}
    # without records the one whose name needs no change has it
    assert str(names_of(upper, lower)[lower]) == "s.orders"


def test_a_recorded_name_that_the_rule_does_not_give_is_replaced() -> None:
    name = TableName("s", "t")
    recorded = {name: CatalogName("old", "t")}
    assert names_of(name, recorded=recorded) == {name: CatalogName("s", "t")}


@pytest.mark.promise("hostile catalog names")
@given(
    st.lists(st.tuples(st.text(max_size=8), st.text("aAbB_ é", max_size=4)), unique=True, max_size=20),
    st.data(),
)
def test_names_stay_as_tables_come_and_go(tables: list[tuple[str, str]], data: st.DataObject) -> None:
    recorded: dict[TableName, CatalogName] = {}
    for _ in range(3):
        present = [TableName(*t) for t in tables if data.draw(st.booleans())]
        found = catalog_names(Catalog("one"), "shop", present, recorded)
        assert found.keys() == set(present)
        assert len(set(found.values())) == len(found)
        assert all(VALID.fullmatch(part) for name in found.values() for part in name)
        assert all(found[name] == kept for name, kept in recorded.items() if name in found)
        recorded = found
