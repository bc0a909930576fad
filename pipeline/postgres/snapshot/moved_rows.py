"""Whether what was read under a snapshot is what the snapshot has of a table.

A query finds tables and columns by the names that they have now, and the rows of a file that may be new. The
catalog's tables are read as the snapshot sees them, and the functions below show what is there now.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import errors as sqlstate
from psycopg import sql

from pipeline.postgres.connection import Connection
from pipeline.postgres.publication import Leaf, PublishedTable
from pipeline.postgres.snapshot.export import RowsMoved

_SAME_LEAVES = """
SELECT pg_catalog.count(*)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL pg_catalog.pg_identify_object_as_address(c.tableoid, c.oid, 0) now
WHERE c.oid = ANY (%s::bigint[]::oid[])
  AND c.relfilenode = pg_catalog.pg_relation_filenode(c.oid)
  AND now.object_names = ARRAY[n.nspname::text, c.relname::text]
"""
_OTHER_COLUMNS = """
SELECT pg_catalog.count(*)
FROM pg_catalog.pg_attribute a
CROSS JOIN LATERAL pg_catalog.pg_identify_object_as_address(
    'pg_catalog.pg_class'::pg_catalog.regclass, a.attrelid, a.attnum
) now
WHERE a.attrelid = %s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
  AND now.object_names[3] IS DISTINCT FROM a.attname::text
"""


def refuse_moved(connection: Connection, table: PublishedTable, leaves: Sequence[Leaf], verb: str) -> None:
    """Raise RowsMoved if rows that were read of these leaves may not be those that the snapshot has.

    A leaf may have been rewritten, another table or column may have its name, and a column another type. Call
    it in the transaction that read them, whose locks keep all that as it is. `verb` is what was done:
    "copied", "compared".
    """
    try:
        is_same = (
            _count(connection, _SAME_LEAVES, [leaf.oid for leaf in leaves]) == len(leaves)
            and _count(connection, _OTHER_COLUMNS, table.relation.oid) == 0
            # what a root's columns become those of its leaves become, too
            and (not leaves or _types_now(connection, table, leaves[0]) == _types(table))
        )
    except sqlstate.InternalError_:  # older servers, if a table is gone
        is_same = False
    if not is_same:
        raise RowsMoved(f"The table {table.name} was truncated, rewritten or altered while it was {verb}.")


def _count(connection: Connection, query: str, parameter: object) -> int:
    row = connection.execute(query.encode(), (parameter,)).fetchone()
    assert row is not None
    return int(row[0])


def _types(table: PublishedTable) -> tuple[int, ...]:
    return tuple(column.type_oid for column in table.relation.columns)


def _types_now(connection: Connection, table: PublishedTable, leaf: Leaf) -> tuple[int, ...]:
    types = [
        sql.SQL("pg_catalog.pg_typeof(t.{})::oid::bigint").format(sql.Identifier(column.name))
        for column in table.relation.columns
    ]
    query = sql.SQL("SELECT {} FROM (SELECT) s LEFT JOIN ONLY {} t ON false").format(
        sql.SQL(", ").join(types), sql.Identifier(leaf.schema_name, leaf.table_name)
    )
    row = connection.execute(query.as_bytes()).fetchone()  # UTF-8, also in a session of `use_raw_encoding`
    assert row is not None
    return tuple(row)
