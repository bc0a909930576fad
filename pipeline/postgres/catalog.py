"""Read what the stream does not carry about a relation's columns from the catalog, as it is NOW.

The catalog may be ahead of the stream. A result is returned only if every column of the Relation message is
in the catalog with its name, type and modifier, in the same order; otherwise, or if the table does not exist
any more, the result is None, and nothing is guessed. The catalog may have more columns than the message,
which lacks generated columns and those that a column list leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import psycopg
from psycopg.pq import TransactionStatus

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, describe, for_server
from pipeline.protocol.messages import Relation


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """One column: its type, the base type of its domains, the element of an array, the fast default.

    `base_modifier` is that of an array's element; for money see `_MONEY`. `type_kind` and `element_kind` are
    pg_type.typtype.
    `output` is the name, in the server's source, of the output function of a value or an array's element: it
    identifies types of extensions. `delimiter` separates an array's elements. `missing_value` is the text of
    the column in rows older than the column, None without one and always before PostgreSQL 11. Identity
    columns, and columns whose type has a default, count as `has_default`.
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
    delimiter: str | None
    missing_value: str | None
    not_null: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class CatalogRelation:
    """The columns of a Relation message in its order, the table's primary key, and when they were read."""

    columns: tuple[CatalogColumn, ...]
    primary_key: tuple[str, ...]
    read_at: datetime

    @property
    def attribute_numbers(self) -> tuple[int, ...]:
        """The attribute numbers of the columns, which renaming does not change."""
        return tuple(column.attribute_number for column in self.columns)


SNAPSHOT = "(SELECT pg_catalog.txid_snapshot_xmax(pg_catalog.txid_current_snapshot()) AS xmax) s"
#: The 64-bit id of the transaction that wrote a row; it is visible, so it is below the snapshot's end.
WRITTEN_BY = (
    "CASE WHEN {row}.xmin::text::bigint >= 3"
    " THEN s.xmax - ((s.xmax - {row}.xmin::text::bigint) & 4294967295) ELSE {unknown} END"
)
#: Whether no row has NULL in a column. From 18 on, attnotnull is also true for a constraint that is NOT
#: VALID: older rows may have NULL.
NOT_NULL = {
    18: "(a.attnotnull AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint c"
    " WHERE c.conrelid = a.attrelid AND c.contype = 'n' AND NOT c.convalidated"
    " AND a.attnum = ANY (c.conkey)))",
    10: "a.attnotnull",
}

# Domains are resolved to their base type; only the innermost domain, or the column, has a modifier. A true
# array has the output function array_out: int2vector and oidvector have elements but no braces.
_COLUMNS = """
WITH RECURSIVE storage (oid) AS (
    SELECT %(oid)s::bigint::oid
    UNION ALL
    SELECT i.inhrelid
    FROM storage JOIN pg_catalog.pg_class c ON c.oid = storage.oid AND c.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = storage.oid
), missing (attname, value) AS ({missing}
), attribute AS (
    SELECT attnum, attname, atttypid, atttypmod, {not_null} AS not_null,
           atthasdef OR attidentity <> '' OR EXISTS (
               SELECT FROM pg_catalog.pg_type WHERE pg_type.oid = atttypid AND typdefault IS NOT NULL
           ) AS has_default, {written_by} AS written_by, s.xmax
    FROM pg_catalog.pg_attribute a, {snapshot}
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
       t.typtype::text, base.type_oid::bigint, coalesce({money}, element.modifier, base.modifier),
       element.type_oid::bigint, kind.typtype::text,
       element.base_oid::bigint, output.prosrc, kind.typdelim::text,
       missing.value, a.not_null, a.has_default, a.written_by, a.xmax
FROM attribute a
LEFT JOIN missing ON missing.attname = a.attname
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
JOIN base ON base.attnum = a.attnum
LEFT JOIN element ON element.attnum = a.attnum
LEFT JOIN pg_catalog.pg_type kind ON kind.oid = element.type_oid
JOIN pg_catalog.pg_type value ON value.oid = coalesce(element.base_oid, base.type_oid)
JOIN pg_catalog.pg_proc output ON output.oid = value.typoutput
ORDER BY a.attnum
"""
# The number of digits after the point of money (oid 790), if it is not 2: it changes with lc_monetary.
_MONEY = """CASE WHEN value.oid = 790 THEN nullif(pg_catalog.length((('x' || pg_catalog.encode(
    pg_catalog.cash_send('1'::pg_catalog.money), 'hex'))::bit(64)::bigint)::text) - 1, 2) END"""
_XID_MASK = 0xFFFFFFFF
_MAX_COLUMNS = 1 << 15  # above each attribute number
_DROPPED = f"""
SELECT a.attnum::integer FROM pg_catalog.pg_attribute a, {SNAPSHOT}
WHERE a.attrelid = %s::bigint::oid AND a.attnum > 0 AND a.attisdropped
  AND {WRITTEN_BY.format(row="a", unknown=0)} > %s
"""
#: The value that rows have in a column that was added after them; a partitioned table has it in partitions.
_MISSING = {
    11: """
    SELECT a.attname, pg_catalog.min(pg_catalog.array_to_string(a.attmissingval, ''))
    FROM storage JOIN pg_catalog.pg_attribute a ON a.attrelid = storage.oid
    WHERE a.atthasmissing AND NOT a.attisdropped GROUP BY a.attname
    HAVING pg_catalog.min(pg_catalog.array_to_string(a.attmissingval, ''))
         = pg_catalog.max(pg_catalog.array_to_string(a.attmissingval, ''))""",
    10: "SELECT NULL::name, NULL::text WHERE false",
}

_PRIMARY_KEY = """
SELECT a.attname::text
FROM pg_catalog.pg_index i
CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::pg_catalog.int2[]) WITH ORDINALITY AS k (attnum, number)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %(oid)s AND i.indisprimary
ORDER BY k.number
"""


def read_relation(
    connection: Connection, relation: Relation, xid: int | None = None
) -> CatalogRelation | None:
    """Return the catalog's columns of a Relation message, None if the catalog contradicts the message.

    It does, too, if a column may be one that was dropped after the transaction (32-bit id) which sent the
    message, and whose name another one has since. Returns None if the server refuses the query, too; a lost
    connection is a SourceError.
    """
    if connection.closed:  # for_server() needs the server's version
        raise SourceError("Lost the connection to the source. Run again.")
    missing = for_server(connection, _MISSING)
    not_null = for_server(connection, NOT_NULL)
    parameters = {"oid": relation.oid}
    read_at = datetime.now(timezone.utc)
    try:
        # One snapshot for both queries; a session that is in a transaction already keeps its own.
        is_new = connection.info.transaction_status == TransactionStatus.IDLE
        with connection.transaction():
            if is_new:
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            rows = connection.execute(
                _COLUMNS.format(
                    missing=missing,
                    not_null=not_null,
                    money=_MONEY,
                    written_by=WRITTEN_BY.format(row="a", unknown=0),
                    snapshot=SNAPSHOT,
                ),
                parameters,
            ).fetchall()
            key = connection.execute(_PRIMARY_KEY, parameters).fetchall()
            since = None if xid is None or not rows else _long_xid(xid, rows[0][-1])
            is_altered = since is not None and any(row[-2] > since for row in rows)
            dropped = connection.execute(_DROPPED, (relation.oid, since)).fetchall() if is_altered else []
    except psycopg.Error as error:
        if connection.broken:
            raise SourceError(f"Lost the connection to the source: {describe(error)}. Run again.") from None
        return None
    found = {row[0]: (index, row) for index, row in enumerate(rows)}
    columns: list[CatalogColumn] = []
    altered: list[bool] = []
    last_index = -1
    for column in relation.columns:
        index, row = found.get(column.name, (-1, ()))
        if index <= last_index or (row[1], row[2]) != (column.type_oid, column.type_modifier):
            return None
        last_index = index
        columns.append(CatalogColumn(*row[3:-2]))
        altered.append(since is not None and row[-2] > since)
    if dropped and _may_be_dropped(columns, altered, [number for (number,) in dropped]):
        return None
    if not rows and not _exists(connection, relation.oid):
        return None
    return CatalogRelation(tuple(columns), tuple(name for (name,) in key), read_at)


def _may_be_dropped(
    columns: Sequence[CatalogColumn], altered: Sequence[bool], dropped: Sequence[int]
) -> bool:
    """Return whether a column that was altered may be a dropped one: messages have them by their numbers."""
    numbers = [0, *(column.attribute_number for column in columns), _MAX_COLUMNS]
    between = zip(numbers, altered, numbers[2:], strict=False)
    return any(
        is_altered and any(before < number < after for number in dropped)
        for before, is_altered, after in between
    )


def _long_xid(xid: int, next_xid: int) -> int:
    """Return the 64-bit id of a transaction that is less than 2^31 ids away from the next one."""
    return next_xid + ((xid - next_xid + (1 << 31)) & _XID_MASK) - (1 << 31)


def is_visible(connection: Connection, xid: int) -> bool:
    """Return whether a committed transaction, by its 32-bit xid, is visible to other sessions.

    Returns True if the server refuses the query; a lost connection is a SourceError.
    """
    try:
        return has_ended(connection, xid)
    except psycopg.Error as error:
        if connection.closed:
            raise SourceError(f"Lost the connection to the source: {describe(error)}. Run again.") from None
        return True


def has_ended(connection: Connection, xid: int) -> bool:
    """Return whether a transaction, by its 32-bit xid, has ended for other sessions; raises psycopg.Error."""
    row = connection.execute("SELECT pg_catalog.txid_current_snapshot()::text").fetchone()
    assert row is not None
    _, end, running = row[0].split(":")
    is_later = (xid - int(end)) & _XID_MASK < 1 << 31  # xids wrap around
    return not is_later and xid not in {int(each) & _XID_MASK for each in running.split(",") if each}


def read_type_name(connection: Connection, oid: int, modifier: int) -> str | None:
    """Return the SQL name of a type, None if it does not exist (any more) or cannot be read."""
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
        raise SourceError(f"Lost the connection to the source: {describe(error)}. Run again.") from None
