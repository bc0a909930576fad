"""Facts about columns come from the catalog of the moment, or not at all."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from pipeline.protocol.messages import Column, Relation
from tests.support.postgres.relations import columns_of, facts_of, receive_relation
from tests.support.servers import Database

INT4, TEXT, NUMERIC, VARCHAR, INT2VECTOR = 23, 25, 1700, 1043, 22


def test_types_are_seen_through_domains_and_arrays(database: Database) -> None:
    database.run(
        "CREATE SCHEMA shop",
        "CREATE TYPE shop.mood AS ENUM ('calm', 'wild')",
        "CREATE DOMAIN price AS numeric(12,2)",
        "CREATE DOMAIN final_price AS price CHECK (VALUE > 0)",
        "CREATE DOMAIN prices AS price[]",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TABLE item (id int PRIMARY KEY, gone int, mood shop.mood, moods shop.mood[],"
        " plain numeric(7,3), cost final_price, costs prices, domains final_price[], code varchar(10),"
        " vec int2vector, pair pair, span int4range, label text NOT NULL)",
        "ALTER TABLE item DROP COLUMN gone",
    )
    relation = receive_relation(database, "INSERT INTO item (id, label) VALUES (1, 'x')")
    columns = columns_of(database, relation)
    shown = {
        name: (c.type_schema, c.type_name, c.type_kind, c.base_oid, c.base_modifier, c.element_kind)
        for name, c in columns.items()
    }
    money = ((12 << 16) | 2) + 4
    oids = dict(database.run("SELECT typname::text, oid::bigint FROM pg_type"))
    assert shown == {
        "id": ("pg_catalog", "int4", "b", INT4, -1, None),
        "mood": ("shop", "mood", "e", oids["mood"], -1, None),
        "moods": ("shop", "_mood", "b", oids["_mood"], -1, "e"),
        "plain": ("pg_catalog", "numeric", "b", NUMERIC, ((7 << 16) | 3) + 4, None),
        "cost": ("public", "final_price", "d", NUMERIC, money, None),
        "costs": ("public", "prices", "d", oids["_price"], money, "d"),
        "domains": ("public", "_final_price", "b", oids["_final_price"], money, "d"),
        "code": ("pg_catalog", "varchar", "b", VARCHAR, 14, None),
        "vec": ("pg_catalog", "int2vector", "b", INT2VECTOR, -1, None),
        "pair": ("public", "pair", "c", oids["pair"], -1, None),
        "span": ("pg_catalog", "int4range", "r", oids["int4range"], -1, None),
        "label": ("pg_catalog", "text", "b", TEXT, -1, None),
    }
    elements = {name: (c.element_oid, c.element_base_oid) for name, c in columns.items() if c.element_oid}
    assert elements == {
        "moods": (oids["mood"], oids["mood"]),
        "costs": (oids["price"], NUMERIC),
        "domains": (oids["final_price"], NUMERIC),
    }
    assert [c.attribute_number for c in columns.values()] == [1, *range(3, 14)]
    assert [name for name, c in columns.items() if c.not_null] == ["id", "label"]


def test_a_not_null_constraint_that_is_not_valid_does_not_exclude_null(database: Database) -> None:
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY, a text, b text, c text NOT NULL)",
        "ALTER TABLE item ADD CONSTRAINT a NOT NULL a NOT VALID, ADD CONSTRAINT b NOT NULL b NOT VALID",
        "ALTER TABLE item VALIDATE CONSTRAINT b",
    )
    relation = receive_relation(database, "INSERT INTO item VALUES (1, 'a', 'b', 'c')")
    columns = columns_of(database, relation)
    assert [name for name, c in columns.items() if c.not_null] == ["id", "b", "c"]


def test_a_fast_default_is_found_with_its_text(database: Database) -> None:
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY)",
        "INSERT INTO item VALUES (1)",
        "ALTER TABLE item ADD n int DEFAULT 7, ADD label text DEFAULT 'a \"b\", {c}', ADD none text,"
        " ADD many int[] DEFAULT '{1,2}', ADD corner box DEFAULT '(1,1),(0,0)',"
        " ADD day date DEFAULT '2024-01-02'",
    )
    relation = receive_relation(database, "INSERT INTO item VALUES (2)")
    values = {name: column.missing_value for name, column in columns_of(database, relation).items()}
    missing = {name: value for name, value in values.items() if value is not None}
    assert missing == {
        "n": "7",
        "label": 'a "b", {c}',
        "many": "{1,2}",
        "corner": "(1,1),(0,0)",
        "day": "2024-01-02",
    }


def test_a_default_may_be_the_domain_s_or_dropped_from_a_not_null_column(database: Database) -> None:
    database.run(
        "CREATE DOMAIN five AS int DEFAULT 5",
        "CREATE TABLE item (id int PRIMARY KEY)",
        "INSERT INTO item VALUES (1)",
        "ALTER TABLE item ADD plain int, ADD domain five, ADD u uuid NOT NULL DEFAULT gen_random_uuid()",
        "ALTER TABLE item ALTER u DROP DEFAULT",
    )
    relation = receive_relation(database, "INSERT INTO item VALUES (2, 2, 2, gen_random_uuid())")
    columns = columns_of(database, relation)
    assert {n: (c.has_default, c.not_null, c.missing_value) for n, c in columns.items()} == {
        "id": (False, True, None),
        "plain": (False, False, None),
        "domain": (True, False, columns["domain"].missing_value),
        "u": (False, True, None),
    }


def test_a_column_list_and_unsent_columns_make_the_message_a_subset(database: Database) -> None:
    database.run(
        "CREATE TABLE item (id int, twice int GENERATED ALWAYS AS (id * 2) STORED, a text, b text, c text,"
        " PRIMARY KEY (id))",
        f"CREATE PUBLICATION {database.name} FOR TABLE item (id, a, c)",
    )
    relation = receive_relation(database, "INSERT INTO item (id) VALUES (1)")
    assert [column.name for column in relation.columns] == ["id", "a", "c"]
    assert [c.attribute_number for c in columns_of(database, relation).values()] == [1, 3, 5]


def test_the_primary_key_is_in_the_order_of_the_index(database: Database) -> None:
    database.run("CREATE TABLE item (a int, b int, c int, PRIMARY KEY (c, a))")
    facts = facts_of(database, receive_relation(database, "INSERT INTO item VALUES (1, 2, 3)"))
    assert facts is not None
    assert facts.primary_key == ("c", "a")
    assert abs((datetime.now(timezone.utc) - facts.read_at).total_seconds()) < 60


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE item RENAME b TO bb",
        "ALTER TABLE item ALTER b TYPE varchar(20)",
        "ALTER TABLE item ALTER n TYPE numeric(10,2)",
        "ALTER TABLE item DROP COLUMN b",
        "ALTER TABLE item DROP COLUMN b, ADD COLUMN b text",
        "DROP TABLE item",
    ],
)
def test_a_catalog_that_contradicts_the_message_gives_nothing(database: Database, change: str) -> None:
    database.run("CREATE TABLE item (a int PRIMARY KEY, b text, n numeric(8,2))")
    relation = receive_relation(database, "INSERT INTO item VALUES (1, 'x', 1)")
    assert facts_of(database, relation) is not None
    database.run(change)
    assert facts_of(database, relation) is None


def test_a_catalog_that_has_more_columns_or_another_name_gives_the_facts(database: Database) -> None:
    database.run("CREATE TABLE item (a int PRIMARY KEY, b text)")
    relation = receive_relation(database, "INSERT INTO item VALUES (1, 'x')")
    database.run("ALTER TABLE item ADD COLUMN c int", "ALTER TABLE item RENAME TO thing")
    assert [c.attribute_number for c in columns_of(database, relation).values()] == [1, 2]


def test_a_table_without_columns_has_facts(database: Database) -> None:
    database.run("CREATE TABLE item ()")
    oid = database.run("SELECT 'item'::regclass::oid::bigint")[0][0]
    relation = Relation(oid, "public", "item", "d", ())
    facts = facts_of(database, relation)
    assert facts is not None
    assert (facts.columns, facts.primary_key) == ((), ())
    assert facts_of(database, replace(relation, oid=4_000_000_000)) is None


def test_facts_on_10_have_no_missing_values(old_database: Database) -> None:
    old_database.run(
        "CREATE DOMAIN price AS numeric(12,2)",
        "CREATE TABLE item (id int PRIMARY KEY, cost price, costs numeric[])",
    )
    relation = receive_relation(old_database, "INSERT INTO item VALUES (1)")
    facts = facts_of(old_database, relation)
    assert facts is not None
    assert [c.base_oid for c in facts.columns] == [INT4, NUMERIC, 1231]
    assert [c.element_base_oid for c in facts.columns] == [None, None, NUMERIC]
    assert not any(c.missing_value for c in facts.columns)


def test_oids_above_two_to_the_31_are_accepted_by_the_catalog_query(database: Database) -> None:
    relation = Relation(4_294_967_295, "public", "item", "d", (Column(True, "id", 4_294_967_290, -1),))
    assert facts_of(database, relation) is None
