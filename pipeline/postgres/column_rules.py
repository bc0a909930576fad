"""Compare the rules for columns (`tables[].columns`) with the columns and keys of their tables."""

from __future__ import annotations

from collections.abc import Collection

from pipeline.config.config import Config
from pipeline.postgres.connection import Connection, for_server, reading
from pipeline.postgres.relation_kinds import Reason
from pipeline.postgres.replica_identities import KEY_COLUMNS
from pipeline.table_name import TableName

_COLUMNS = """
SELECT n.nspname::text, c.relname::text, pg_catalog.array_agg(a.attname::text ORDER BY a.attnum),
       coalesce(pg_catalog.array_agg(a.attname::text ORDER BY a.attnum)
                FILTER (WHERE a.attnum = ANY ({key})), ARRAY[]::text[])
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384
GROUP BY 1, 2 ORDER BY 1, 2
"""
_HASH = "Hash it instead, or remove the rule."
_KEEP = "Name fewer columns in exclude, or those of the table in include."


def find_unusable_rules(
    connection: Connection, config: Config, tables: Collection[TableName]
) -> dict[TableName, Reason]:
    """Return those of the tables whose rules leave out or mask a column of the key, or leave no column."""
    if not any(rule.columns for rule in config.tables):
        return {}
    found = {}
    with reading("the columns of the source's keys"):
        rows = connection.execute(_COLUMNS.format(key=for_server(connection, KEY_COLUMNS))).fetchall()
    for schema, table, columns, key in rows:
        name = TableName(schema, table)
        rule = config.rule_for(name)
        if rule is None or name not in tables or not rule.columns:
            continue
        rules = rule.columns
        if unusable := [each for each in key if rules.excludes(each) or each in rules.mask]:
            found[name] = Reason(rules.key_fault(unusable[0], str(name)), _HASH)
        elif all(rules.excludes(column) for column in columns):
            found[name] = Reason(rules.nothing_left(str(name)), _KEEP)
    return found
