"""The types of the source for values in binary format, and the columns whose values cannot be converted.

pgoutput sends a value in the binary format of its type, or as text if the type has no send function. The
names of the functions are those in the server's source, which identify the types of extensions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, for_server, reading
from pipeline.postgres.publication import Publication
from pipeline.postgres.published_tables import IS_PUBLISHED, PUBLISHED
from pipeline.protocol.binary.converters import CatalogType, Types
from pipeline.table_name import TableName
from pipeline.units import format_count

_BINARY_SINCE = 140000
_NAMED_COLUMNS = 5

# The component types: for a domain its base, for a true array its element, for a composite its attributes,
# for a range its subtype, for a multirange its range. int2vector and oidvector are built in.
_TYPE = """
SELECT t.oid::bigint, pg_catalog.format_type(t.oid, NULL), t.typtype::text, coalesce(send.prosrc, ''),
       output.prosrc, t.typdelim::text,
       CASE t.typtype
           WHEN 'd' THEN ARRAY[t.typbasetype::bigint]
           WHEN 'c' THEN ARRAY(
               SELECT a.atttypid::bigint FROM pg_catalog.pg_attribute a
               WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
           WHEN 'r' THEN ARRAY(
               SELECT r.rngsubtype::bigint FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid)
           WHEN 'm' THEN ARRAY(
               SELECT r.rngtypid::bigint FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid)
           ELSE ARRAY(SELECT t.typelem::bigint WHERE t.typelem <> 0 AND output.prosrc = 'array_out')
       END
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_proc output ON output.oid = t.typoutput
LEFT JOIN pg_catalog.pg_proc send ON send.oid = t.typsend
WHERE t.oid = %s::bigint::oid
"""

_COLUMNS = """
SELECT t.schema_name, t.table_name, a.attname::text, a.atttypid::bigint
FROM ROWS FROM (pg_catalog.unnest(%(schemas)s::text[]), pg_catalog.unnest(%(tables)s::text[]))
    AS t (schema_name, table_name)
JOIN pg_catalog.pg_namespace n ON n.nspname = t.schema_name
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.table_name
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN {published} p ON p.relid = c.oid
WHERE {is_published}
ORDER BY 1, 2, a.attnum
"""


def read_type(connection: Connection, oid: int) -> CatalogType | None:
    """Return a type from the catalog as it is now, None if it does not exist."""
    with reading("the types of the source", "Run again."):
        row = connection.execute(_TYPE, (oid,)).fetchone()
    if row is None:
        return None
    oid, name, kind, send, output, delimiter, parts = row
    return CatalogType(oid, name, kind, send, output, delimiter, tuple(parts))


def has_cents(connection: Connection) -> bool:
    """Return whether amounts of money have two digits after the point at the source."""
    return connection.execute("SHOW lc_monetary").fetchone() == ("C",)  # as sessions pin it then


def find_unreadable(connection: Connection, tables: Collection[TableName], publication: str) -> list[str]:
    """Return the columns whose binary values cannot be converted to text, each with its type.

    For a table in the publication, only the published columns count.
    """
    version = connection.info.server_version
    if version < _BINARY_SINCE:
        return []  # The server does not support the option, which is refused.
    published, is_published = (for_server(connection, each) for each in (PUBLISHED, IS_PUBLISHED))
    types = Types(version, lambda oid: read_type(connection, oid), has_cents=has_cents(connection))
    parameters = {
        "schemas": [schema for schema, _ in tables],
        "tables": [table for _, table in tables],
        "publication": publication,
    }
    with reading("the published columns"):
        rows = connection.execute(_COLUMNS.format(published=published, is_published=is_published), parameters)
        return list(_describe_unreadable(types, rows.fetchall()))


def refuse_unreadable(connection: Connection, publication: Publication) -> None:
    """Raise SourceError if a published column has binary values that cannot be converted to text."""
    if columns := find_unreadable(connection, publication.tables, publication.name):
        raise SourceError(f"{unreadable_sentence(columns)} {UNREADABLE_FIX}")


UNREADABLE_FIX = "Set source.protocol.binary to false, so that the server sends text."


def unreadable_sentence(columns: Collection[str]) -> str:
    """Return the sentence that names columns whose values cannot be converted."""
    more = len(columns) - _NAMED_COLUMNS
    named = ", ".join(list(columns)[:_NAMED_COLUMNS]) + (f" and {more} more" if more > 0 else "")
    count = format_count(len(columns), "published column")
    return f"The binary values of {count} cannot be converted to text: {named}."


def _describe_unreadable(types: Types, rows: list[tuple[str, str, str, int]]) -> Iterator[str]:
    for schema, table, column, oid in rows:
        part = types.find_unreadable(oid)
        if part is not None:
            name = types.name_of(oid)
            yield f"{TableName(schema, table)}.{column} ({name if part == name else f'{part} in {name}'})"
