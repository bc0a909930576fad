"""SQL for the tables of a publication, by catalogs alone.

The view pg_publication_tables has the same rows, but from 16 on it opens each table, so that one table that
another session has locked exclusively (VACUUM FULL, LOCK TABLE) makes every query on the view wait. A test
compares both on each version.

`PUBLISHED` is a subquery with the OID of each table (`relid`) and of the publication (`pubid`). From 15 on it
has the attribute numbers of a column list (`attrs`, NULL for all columns) and the expression of a row filter
(`qual`), from 18 on `publishes_stored`, whether stored generated columns are published. The statement has the
publication's name as the parameter `publication`. `PUBLISHED_TABLE` is the row of the table whose OID is the
parameter `oid`, at a cost that does not grow with the number of tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

#: Whether the table `c` can be in a publication: temporary and unlogged tables, and those of initdb cannot.
IS_LOGGED = "c.relpersistence = 'p' AND c.oid >= 16384"

_IS_TABLE = "c.oid = %(oid)s::bigint::oid"
_TABLES = f"""(
    SELECT c.oid AS relid, owner.oid AS pubid
    FROM pg_catalog.pg_publication owner
    JOIN pg_catalog.pg_class c ON CASE
        WHEN owner.puballtables THEN c.relkind = 'r' AND {IS_LOGGED}
        ELSE EXISTS (
            SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = owner.oid AND r.prrelid = c.oid)
        END
    WHERE owner.pubname = %(publication)s AND {{only}}
)"""

# The entries of FOR ALL TABLES are the tables that it excludes (EXCEPT, from 19 on), with their partitions.
# Partitions are published as themselves, or by their partitioned table (publish_via_partition_root). They may
# be foreign tables, which have no changes.
_FAMILIES = """(
    WITH RECURSIVE owner AS (
        SELECT p.* FROM pg_catalog.pg_publication p WHERE p.pubname = %(publication)s
    ), {chain}entry (oid) AS ({entries}
    ), below (oid) AS (
        SELECT i.inhrelid FROM entry JOIN pg_catalog.pg_class c ON c.oid = entry.oid AND c.relkind = 'p'
        JOIN pg_catalog.pg_inherits i ON i.inhparent = c.oid AND {is_attached}
        UNION
        SELECT i.inhrelid FROM below
        JOIN pg_catalog.pg_inherits i ON i.inhparent = below.oid AND {is_attached}
    )
    SELECT c.oid AS relid, owner.oid AS pubid{more}
    FROM owner JOIN pg_catalog.pg_class c ON CASE
        WHEN owner.puballtables
            AND c.oid IN (SELECT entry.oid FROM entry UNION SELECT below.oid FROM below) THEN false
        WHEN owner.puballtables AND owner.pubviaroot
            THEN c.relkind IN ('r', 'p') AND NOT c.relispartition AND {is_logged}
        WHEN owner.puballtables THEN c.relkind = 'r' AND {is_logged}
        WHEN owner.pubviaroot
            THEN c.oid IN (SELECT entry.oid FROM entry) AND c.oid NOT IN (SELECT below.oid FROM below)
        ELSE c.relkind <> 'p' AND c.oid IN (SELECT entry.oid FROM entry UNION SELECT below.oid FROM below)
        END{join_entry}
    WHERE {only}
)"""
_ENTRIES = """
        SELECT r.prrelid FROM owner JOIN pg_catalog.pg_publication_rel r ON r.prpubid = owner.oid{of_table}"""
_ENTRIES_BY_SCHEMA = f"""{_ENTRIES}
        UNION
        SELECT c.oid FROM owner
        JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = owner.oid
        JOIN pg_catalog.pg_class c
            ON c.relnamespace = s.pnnspid AND c.relkind IN ('r', 'p') AND {IS_LOGGED}{{of_schema}}"""
# One table and those above it: only their entries decide whether it is published.
_CHAIN = """chain (oid) AS (
        SELECT %(oid)s::bigint::oid
        UNION
        SELECT i.inhparent FROM chain JOIN pg_catalog.pg_inherits i ON i.inhrelid = chain.oid
    ), """
# Column lists and row filters do not hold for tables that are published with their schema.
_JOIN_ENTRY = """
    LEFT JOIN pg_catalog.pg_publication_rel r
        ON r.prpubid = owner.oid AND r.prrelid = c.oid AND NOT owner.puballtables AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_publication_namespace s
            WHERE s.pnpubid = owner.oid AND s.pnnspid = c.relnamespace)"""
_FACTS = ", r.prattrs::pg_catalog.int2[] AS attrs, r.prqual AS qual"


def _families(
    *, alone: bool, entries: str = _ENTRIES, more: str = "", is_attached: str = "true", join_entry: str = ""
) -> str:
    def in_chain(oid: str) -> str:
        return f" AND {oid} IN (SELECT chain.oid FROM chain)" if alone else ""

    return _FAMILIES.format(
        chain=_CHAIN if alone else "",
        entries=entries.format(of_table=in_chain("r.prrelid"), of_schema=in_chain("c.oid")),
        more=more,
        is_attached=is_attached + in_chain("i.inhrelid"),
        join_entry=join_entry,
        is_logged=IS_LOGGED,
        only=_IS_TABLE if alone else "true",
    )


#: Whether a partition is not being detached (DETACH PARTITION … CONCURRENTLY).
_IS_ATTACHED = "NOT i.inhdetachpending"


def _published(*, alone: bool) -> dict[int, str]:
    newest = partial(
        _families,
        alone=alone,
        entries=_ENTRIES_BY_SCHEMA,
        is_attached=_IS_ATTACHED,
        join_entry=_JOIN_ENTRY,
    )
    return {
        18: newest(more=f"{_FACTS}, owner.pubgencols = 's' AS publishes_stored"),
        15: newest(more=_FACTS),
        14: _families(alone=alone, is_attached=_IS_ATTACHED),
        13: _families(alone=alone),
        10: _TABLES.format(only=_IS_TABLE if alone else "true"),
    }


PUBLISHED: Mapping[int, str] = _published(alone=False)
PUBLISHED_TABLE: Mapping[int, str] = _published(alone=True)

#: Whether the column `a` of a table is published, where `p` is its row of `PUBLISHED`, maybe of NULLs.
IS_PUBLISHED: Mapping[int, str] = {
    18: "CASE WHEN p.attrs IS NULL THEN a.attgenerated = '' OR a.attgenerated = 's' AND p.publishes_stored"
    " ELSE a.attnum = ANY (p.attrs) END",
    15: "a.attgenerated = '' AND (p.attrs IS NULL OR a.attnum = ANY (p.attrs))",
    12: "a.attgenerated = ''",
    10: "true",
}

#: Subquery with the OIDs of the table `c` and its partitions at all levels. pg_partition_tree() locks them.
FAMILY = """(
    WITH RECURSIVE family (oid) AS (
        SELECT c.oid
        UNION ALL
        SELECT i.inhrelid FROM family f
        JOIN pg_catalog.pg_class parent ON parent.oid = f.oid AND parent.relkind = 'p'
        JOIN pg_catalog.pg_inherits i ON i.inhparent = parent.oid
    )
    SELECT family.oid FROM family
)"""

#: Subquery with the OIDs of tables that a session has locked exclusively, or an index of theirs: a function
#: that measures one waits for the lock.
LOCKED = """(
    SELECT coalesce(i.indrelid, l.relation) FROM pg_catalog.pg_locks l
    JOIN pg_catalog.pg_database d ON d.oid = l.database AND d.datname = pg_catalog.current_database()
    LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = l.relation
    WHERE l.granted AND l.mode = 'AccessExclusiveLock' AND l.relation IS NOT NULL
)"""
