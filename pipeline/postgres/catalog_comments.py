"""Read the comments on tables and their columns (`COMMENT ON`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pipeline.postgres.connection import Connection, reading

MAX_CHARACTERS = 65_536
"""Of a comment; what exceeds them is cut off."""

# An SQL_ASCII database has bytes of any encoding, which the session's encoding would refuse.
_COMMENTS = """
SELECT d.objoid::bigint, d.objsubid,
       pg_catalog.convert_to(a.attname::text, e.name),
       pg_catalog.convert_to(pg_catalog."left"(d.description, %s), e.name)
FROM pg_catalog.pg_description d
CROSS JOIN (
    SELECT CASE pg_catalog.current_setting('server_encoding') WHEN 'SQL_ASCII' THEN 'SQL_ASCII'
           ELSE 'UTF8' END AS name
) e
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = d.objoid AND a.attnum = d.objsubid
WHERE d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objsubid >= 0
  AND d.objoid = ANY (%s::oid[])
"""


class CatalogComment(NamedTuple):
    """The comment on a table, whose `attribute_number` is 0 and column None, or on a column.

    Bytes that are not UTF-8 are lone surrogates.
    """

    relation_id: int
    attribute_number: int
    column_name: str | None
    comment: str


def read_comments(connection: Connection, relation_ids: Collection[int]) -> list[CatalogComment]:
    """Return the comments on tables, given by their OIDs, and on their columns."""
    with reading("the comments on the source's tables"):
        rows = connection.execute(_COMMENTS, (MAX_CHARACTERS, list(relation_ids))).fetchall()
    return [
        CatalogComment(relation_id, number, None if column is None else _text(column), _text(comment))
        for relation_id, number, column, comment in rows
    ]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
