"""Tables that a query names, by PostgreSQL's rule: quoted names are exact, others are in lower case.

DuckDB does not tell names apart that differ only in case. It parses the query here, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb

from pipeline.engine import DUCKDB
from pipeline.table_name import TableName

DEFAULT_SCHEMA = "public"
_NO_PLACE = 2**64 - 1


def named_tables(connection: duckdb.DuckDBPyConnection, sql: str) -> list[TableName]:
    """Return the tables that a SELECT statement names, each once, without its own WITH queries.

    A name without a schema is one of schema public. An empty list is returned for SQL that DuckDB does not
    parse.
    """
    found = connection.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()
    nodes = list(_nodes(json.loads(found[0][0])))
    own = {entry["key"].lower() for node in nodes for entry in node.get("cte_map", {}).get("map", ())}
    text = sql.encode()
    names = [
        _name(node, text)
        for node in nodes
        if node.get("type") == "BASE_TABLE"
        and not (len(_path(node)) == 1 and node["table_name"].lower() in own)
    ]
    return list(dict.fromkeys(names))


def folded(name: TableName) -> tuple[str, str]:
    """Return what DuckDB compares of a name."""
    return name.schema.lower(), name.table.lower()


def quoted(name: TableName) -> str:
    """Return a name as a query writes it."""
    return f"{DUCKDB.quoted(name.schema)}.{DUCKDB.quoted(name.table)}"


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects within a JSON value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nodes(inner)


def _path(node: dict[str, Any]) -> list[str]:
    path: list[str] = node["qualified_name"]["path"]
    return path[-2:]


def _name(node: dict[str, Any], text: bytes) -> TableName:
    """Return the table of a reference, which is at a place in the text; DESCRIBE does not say its place."""
    start = node["query_location"]
    written = text if start == _NO_PLACE else text[start : start + node["query_location_length"]]
    parts = [part if DUCKDB.quoted(part).encode() in written else part.lower() for part in _path(node)]
    return TableName(DEFAULT_SCHEMA, parts[0]) if len(parts) == 1 else TableName(*parts)
