"""Read the types whose change gives stored values another text, and the tables that have such values.

No message carries `ALTER TYPE … RENAME VALUE` of an enum and `ADD` or `DROP ATTRIBUTE` of a composite type,
which is also the row type of a table. The types may be beneath arrays, domains, ranges and other composite
types. Amounts of money change with the server's `lc_monetary`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.postgres.catalog import SNAPSHOT, WRITTEN_BY
from pipeline.postgres.connection import Connection, for_server
from pipeline.postgres.published_tables import PUBLISHED
from pipeline.table_name import TableName

# Types of the server itself cannot be altered. 790 and 791 are money and its array.
_IS_WATCHED = "(a.atttypid >= 16384 OR a.atttypid IN (790, 791))"
_MULTIRANGES = {
    14: "UNION ALL SELECT r.rngtypid FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid",
    10: "",
}
# A renamed value has another xmin, also once it has its old name again; an added one has another OID. The
# attributes of a composite type count with the dropped ones, so that what came and went leaves a trace.
_TYPES = f"""
WITH RECURSIVE used (relid, type) AS (
    SELECT a.attrelid, a.atttypid
    FROM {{published}} p JOIN pg_catalog.pg_attribute a ON a.attrelid = p.relid
    WHERE a.attnum > 0 AND NOT a.attisdropped AND {_IS_WATCHED}
    UNION
    SELECT u.relid, below.type
    FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.type
    CROSS JOIN LATERAL (
        SELECT t.typbasetype AS type WHERE t.typtype = 'd'
        UNION ALL SELECT t.typelem WHERE t.typtype = 'b' AND t.typelem <> 0
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
        {{multiranges}}
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) below
), watched AS (
    SELECT t.oid, t.typnamespace, t.typname, t.typtype, t.typrelid, t.xmin::text AS created_by,
           pg_catalog.array_agg(u.relid::bigint ORDER BY u.relid) AS tables
    FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.type
    WHERE t.typtype IN ('e', 'c') OR t.oid = 790
    GROUP BY t.oid, t.typnamespace, t.typname, t.typtype, t.typrelid, t.xmin::text
), part (type, number, mark, written_by, written_at) AS (
    SELECT w.oid, e.oid::bigint, e.xmin::text::bigint, e.xmin::text, {WRITTEN_BY.format(row="e", unknown=0)}
    FROM watched w JOIN pg_catalog.pg_enum e ON e.enumtypid = w.oid CROSS JOIN {SNAPSHOT}
    UNION ALL
    SELECT w.oid, a.attnum, a.attisdropped::integer, a.xmin::text, {WRITTEN_BY.format(row="a", unknown=0)}
    FROM watched w JOIN pg_catalog.pg_attribute a ON a.attrelid = w.typrelid AND a.attnum > 0
    CROSS JOIN {SNAPSHOT}
    WHERE w.typtype = 'c'
    UNION ALL
    SELECT w.oid, 0, ('x' || pg_catalog.left(pg_catalog.md5(
        pg_catalog.current_setting('lc_monetary')), 15))::bit(60)::bigint, w.created_by, 0
    FROM watched w WHERE w.oid = 790
)
SELECT w.oid::bigint, n.nspname::text, w.typname::text, w.typtype = 'e', w.tables,
       pg_catalog.array_agg(part.number), pg_catalog.array_agg(part.mark),
       CASE WHEN pg_catalog.bool_or(part.written_by <> w.created_by)
            THEN pg_catalog.max(part.written_at) ELSE 0 END
FROM watched w
JOIN part ON part.type = w.oid
JOIN pg_catalog.pg_namespace n ON n.oid = w.typnamespace
GROUP BY w.oid, n.nspname, w.typname, w.typtype, w.tables
ORDER BY w.oid
"""


@dataclass(frozen=True, slots=True)
class WatchedType:
    """A type, its parts by number, each with a mark, and the OIDs of the published tables that have it.

    The parts are the values of an enum by OID, or the attributes of a composite type. `altered_by` is the
    64-bit id of the last transaction that wrote one of them after the type was created, 0 if none did.
    """

    name: TableName
    is_enum: bool
    tables: frozenset[int]
    parts: Mapping[int, int]
    altered_by: int


def read_watched_types(connection: Connection, publication: str) -> dict[int, WatchedType]:
    """Return the types by OID, with money if it is used; raises psycopg.Error."""
    published, multiranges = for_server(connection, PUBLISHED), for_server(connection, _MULTIRANGES)
    rows = connection.execute(
        _TYPES.format(published=published, multiranges=multiranges), {"publication": publication}
    ).fetchall()
    return {
        oid: WatchedType(
            TableName(schema, name),
            is_enum,
            frozenset(tables),
            dict(zip(numbers, marks, strict=True)),
            altered_by,
        )
        for oid, schema, name, is_enum, tables, numbers, marks, altered_by in rows
    }
