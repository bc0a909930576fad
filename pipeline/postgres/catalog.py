"""What the stream does not carry about a relation's columns, looked up in the catalog as it is NOW.

The catalog may be ahead of the stream. Facts are returned only where every column of the Relation message
still stands there under its name, type and modifier and in the same order; else, or when the table is gone,
there are none (None), and nothing is guessed. The message may lack columns: column lists and generated
columns leave some out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

import psycopg
from psycopg.pq import TransactionStatus

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, describe, for_server
from pipeline.protocol.messages import Relation


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """One column: its type, the type beneath its domains, the element of an array, the fast default.

    `base_modifier` is that of an array's element. `type_kind` and `element_kind` are pg_type.typtype.
    `output` is the function in the server's source that writes a value, or an array's element, as text: types
    of extensions are known by it. `missing_value` is the text that rows from before the column read for it,
    None when `has_missing` is false or, before 11, cannot be known. An identity column has a default
    too, and one whose type has.
    """

    attribute_number: int
    type_schema: str
    type_name: str
    type_kind: str
    base_oid: int
    base_modifier: int
    element_oid: int | None
    element_kind: str | None
    element_base_oid: int | None
    output: str
    has_missing: bool
    missing_value: str | None
    not_null: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class CatalogRelation:
    """The columns of a Relation message in its order, the table's primary key, and when that was seen."""

    columns: tuple[CatalogColumn, ...]
    primary_key: tuple[str, ...]
    read_at: datetime

    @property
    def attribute_numbers(self) -> tuple[int, ...]:
        """Return which columns they are, whatever their names."""
        return tuple(column.attribute_number for column in self.columns)


# Whether no row has NULL in a column. From 18 on attnotnull is also true where the constraint is NOT VALID:
# rows from before it may have NULL.
NOT_NULL = {
    18: "(a.attnotnull AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint c"
    " WHERE c.conrelid = a.attrelid AND c.contype = 'n' AND NOT c.convalidated"
    " AND a.attnum = ANY (c.conkey)))",
    10: "a.attnotnull",
}

# A domain is followed down to its base type; a modifier stands on the innermost domain at most, or on the
# column. A true array is what array_out writes: int2vector and oidvector have elements but no braces.
_COLUMNS = """
WITH RECURSIVE attribute AS (
    SELECT attnum, attname, atttypid, atttypmod, {not_null} AS not_null,
           atthasdef OR attidentity <> '' OR EXISTS (
               SELECT FROM pg_catalog.pg_type WHERE pg_type.oid = atttypid AND typdefault IS NOT NULL
           ) AS has_default, {missing}
    FROM pg_catalog.pg_attribute a
    WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped
), unrolled (attnum, is_element, type_oid, modifier, depth) AS (
    SELECT attnum, false, atttypid, atttypmod, 0 FROM attribute
    UNION ALL
    SELECT u.attnum, u.is_element OR t.typtype <> 'd',
           CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END,
           CASE WHEN t.typtype = 'd' AND u.modifier = -1 THEN t.typtypmod ELSE u.modifier END,
           u.depth + 1
    FROM unrolled u JOIN pg_catalog.pg_type t ON t.oid = u.type_oid
    WHERE t.typtype = 'd'
       OR NOT u.is_element AND t.typelem <> 0 AND t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc
), base AS (
    SELECT DISTINCT ON (attnum) attnum, type_oid, modifier
    FROM unrolled WHERE NOT is_element ORDER BY attnum, depth DESC
), element AS (
    SELECT DISTINCT ON (attnum) attnum,
           pg_catalog.first_value(type_oid) OVER (PARTITION BY attnum ORDER BY depth) AS type_oid,
           pg_catalog.first_value(type_oid) OVER (PARTITION BY attnum ORDER BY depth DESC) AS base_oid,
           pg_catalog.first_value(modifier) OVER (PARTITION BY attnum ORDER BY depth DESC) AS modifier
    FROM unrolled WHERE is_element
)
SELECT a.attname::text, a.atttypid::bigint, a.atttypmod, a.attnum::integer, n.nspname::text, t.typname::text,
       t.typtype::text, base.type_oid::bigint, coalesce(element.modifier, base.modifier),
       element.type_oid::bigint, kind.typtype::text,
       element.base_oid::bigint, output.prosrc, a.has_missing, a.missing_value, a.not_null, a.has_default
FROM attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
JOIN base ON base.attnum = a.attnum
LEFT JOIN element ON element.attnum = a.attnum
LEFT JOIN pg_catalog.pg_type kind ON kind.oid = element.type_oid
JOIN pg_catalog.pg_type value ON value.oid = coalesce(element.base_oid, base.type_oid)
JOIN pg_catalog.pg_proc output ON output.oid = value.typoutput
ORDER BY a.attnum
"""
_XID_MASK = 0xFFFFFFFF
_MISSING = {
    11: "atthasmissing AS has_missing, pg_catalog.array_to_string(attmissingval, '') AS missing_value",
    10: "false AS has_missing, NULL::text AS missing_value",
}

_PRIMARY_KEY = """
SELECT a.attname::text
FROM pg_catalog.pg_index i
CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::pg_catalog.int2[]) WITH ORDINALITY AS k (attnum, place)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %(oid)s AND i.indisprimary
ORDER BY k.place
"""


def read_relation(connection: Connection, relation: Relation) -> CatalogRelation | None:
    """Return the facts about the columns of a Relation message, None where the catalog contradicts it.

    A query that the server refuses gives None as well; a lost connection is a SourceError.
    """
    if connection.closed:  # it could not even tell its version
        raise SourceError("Lost the connection to the source: run again.")
    missing = for_server(connection, _MISSING)
    not_null = for_server(connection, NOT_NULL)
    parameters = {"oid": relation.oid}
    looked_up_at = datetime.now(timezone.utc)
    try:
        # One snapshot for both, so that the key is that of the same shape; a session in one keeps it.
        is_own = connection.info.transaction_status == TransactionStatus.IDLE
        with connection.transaction():
            if is_own:
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            rows = connection.execute(
                _COLUMNS.format(missing=missing, not_null=not_null), parameters
            ).fetchall()
            key = connection.execute(_PRIMARY_KEY, parameters).fetchall()
    except psycopg.Error as error:
        if connection.broken:
            raise SourceError(f"Lost the connection to the source: {describe(error)}; run again.") from None
        return None
    live = {row[0]: (place, row) for place, row in enumerate(rows)}
    columns: list[CatalogColumn] = []
    last_place = -1
    for column in relation.columns:
        place, row = live.get(column.name, (-1, ()))
        if place <= last_place or (row[1], row[2]) != (column.type_oid, column.type_modifier):
            return None
        last_place = place
        columns.append(CatalogColumn(*row[3:]))
    if not rows and not _exists(connection, relation.oid):
        return None
    return CatalogRelation(tuple(columns), tuple(name for (name,) in key), looked_up_at)


def is_visible(connection: Connection, xid: int) -> bool:
    """Say whether other sessions see what a transaction did, by its xid of 32 bits, if it is committed.

    A lost connection is a SourceError; where the server refuses to say, nothing is worth waiting for.
    """
    try:
        row = connection.execute("SELECT pg_catalog.txid_current_snapshot()::text").fetchone()
    except psycopg.Error as error:
        if connection.closed:
            raise SourceError(f"Lost the connection to the source: {describe(error)}; run again.") from None
        return True
    assert row is not None
    _, end, running = row[0].split(":")
    is_later = (xid - int(end)) & _XID_MASK < 1 << 31  # as the server compares them
    return not is_later and xid not in {int(each) & _XID_MASK for each in running.split(",") if each}


def read_type_name(connection: Connection, oid: int, modifier: int) -> str | None:
    """Return what SQL calls a type, None where there is none (any more) or nobody can be asked."""
    try:
        query = "SELECT pg_catalog.format_type(oid, %s) FROM pg_catalog.pg_type WHERE oid = %s::bigint::oid"
        row = connection.execute(query, (modifier, oid)).fetchone()
    except psycopg.Error:
        return None
    return None if row is None else str(row[0])


def _exists(connection: Connection, oid: int) -> bool:
    try:
        query = "SELECT 1 FROM pg_catalog.pg_class WHERE oid = %s"
        return connection.execute(query, (oid,)).fetchone() is not None
    except psycopg.Error as error:
        raise SourceError(f"Lost the connection to the source: {describe(error)}; run again.") from None
