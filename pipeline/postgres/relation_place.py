"""Find one relation by its name, for a person who expects it in silver."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.postgres.connection import connect, limit_connect_time, limit_statement_time, reading
from pipeline.postgres.matched_relations import read_relations
from pipeline.table_name import TableName

_SECONDS = 5.0
_FOUND = """
SELECT n.nspname::text, c.relname::text,
       ARRAY(WITH RECURSIVE root (oid) AS (
           SELECT i.inhparent FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid AND c.relispartition
           UNION SELECT i.inhparent FROM root JOIN pg_catalog.pg_inherits i ON i.inhrelid = root.oid
       ) SELECT ARRAY[rn.nspname::text, r.relname::text] FROM root
         JOIN pg_catalog.pg_class r ON r.oid = root.oid
         JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace),
       ARRAY(SELECT ARRAY[pn.nspname::text, p.relname::text] FROM pg_catalog.pg_inherits i
         JOIN pg_catalog.pg_class p ON p.oid = i.inhrelid
         JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
         WHERE i.inhparent = c.oid AND c.relkind = 'p' ORDER BY 1)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
  AND lower(n.nspname) = lower(%(schema)s) AND lower(c.relname) = lower(%(table)s)
"""


@dataclass(frozen=True, slots=True)
class RelationPlace:
    """What the source has under a name: `near` are names that differ from it only in case.

    `kind` is the sentence of one whose changes are not in the stream. `roots` are the tables that it is a
    partition of, `partitions` those of its first level.
    """

    exists: bool
    near: tuple[TableName, ...] = ()
    kind: str | None = None
    roots: tuple[TableName, ...] = ()
    partitions: tuple[TableName, ...] = ()


def find_relation(config: Config, name: TableName) -> RelationPlace:
    """Return what the source has under a name; raise SourceError if it cannot be read."""
    limited = limit_connect_time(config.source.conninfo, _SECONDS)
    with reading("the source's relations"), connect(limited) as connection:
        limit_statement_time(connection, _SECONDS)
        rows = connection.execute(_FOUND, name._asdict()).fetchall()
        alone = Config(pipeline=config.pipeline, tables=(TableRule(str(name)),))
        reason = read_relations(connection, alone).refused().get(name) if rows else None
    found = {TableName(schema, table): lists for schema, table, *lists in rows}
    if name not in found:
        return RelationPlace(False, tuple(sorted(found)))
    roots, partitions = ([TableName(*each) for each in names] for names in found[name])
    return RelationPlace(True, (), reason and str(reason), tuple(roots), tuple(partitions))
