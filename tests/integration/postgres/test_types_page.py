"""The page that says what silver shows is what the code does on a live server."""

import re
from collections.abc import Iterable

import psycopg
import pytest

from pipeline.bronze.source_relations import SourceColumn
from pipeline.postgres.catalog import CatalogColumn
from pipeline.protocol.messages import Column
from pipeline.silver.types.types import overridden, silver_type
from tests.support.paths import ROOT
from tests.support.postgres.relations import columns_of, receive_relation
from tests.support.servers import Database, MakeServer

pytestmark = pytest.mark.postgres

PAGE = ROOT / "docs" / "reference" / "types.md"
ROW = re.compile(r"\| `([^`]+)`[^|]*\| `([^`]+)` \|\n")


def rows() -> dict[str, str]:
    """Return the page's first table: PostgreSQL's type → silver's."""
    text = PAGE.read_text(encoding="utf-8")
    return dict(ROW.findall(text[: text.index("### By option")]))


def source_column(column: Column, facts: CatalogColumn) -> SourceColumn:
    return SourceColumn(
        column.name, column.type_oid, column.type_modifier, False, facts.attribute_number,
        facts.base_oid, facts.base_modifier, facts.element_base_oid, facts.output,
    )  # fmt: skip


def silver_of(database: Database, types: Iterable[str]) -> dict[str, str]:
    """Return what the code makes of types that a server has."""
    columns = ", ".join(f"c{i} {name}" for i, name in enumerate(types))
    database.run(f"CREATE TABLE t ({columns})")
    relation = receive_relation(database, "INSERT INTO t DEFAULT VALUES")
    facts = columns_of(database, relation)
    return {
        name: silver_type(source_column(column, facts[column.name])).ddl
        for name, column in zip(types, relation.columns, strict=True)
    }


def test_every_type_on_the_page_has_the_silver_type_stated_there(database: Database) -> None:
    types = {name: silver for name, silver in rows().items() if "hstore" not in name}
    assert len(types) > 55
    database.run(
        "CREATE EXTENSION vector",
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN price AS numeric(12,2)",
        "CREATE DOMAIN final_price AS price",
    )
    assert silver_of(database, types) == types


def test_hstore_has_the_silver_type_stated_on_the_page(make_server: MakeServer) -> None:
    types = {name: silver for name, silver in rows().items() if "hstore" in name}
    assert len(types) == 2
    server = make_server(major=16)  # the server that comes with the tests does not have it
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
    database = Database(server, "shop", server.conninfo_of("shop"))
    database.run("CREATE EXTENSION hstore", "CREATE DOMAIN tags AS hstore")
    types["tags"] = types["hstore"]
    assert silver_of(database, types) == types


def test_every_type_that_an_option_names_is_one() -> None:
    text = PAGE.read_text(encoding="utf-8")
    options = text[text.index("### By option") : text.index("### Values")]
    named = re.findall(r"\| `([A-Z][^`]*)` \|", options)
    assert len(named) == 5
    for name in named:
        assert overridden(name.replace("(p,s)", "(10,2)"))
