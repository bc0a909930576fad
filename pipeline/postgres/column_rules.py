"""Compare the rules for columns (`tables[].columns`) with the keys of the tables that they concern."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pipeline.config.config import Config
from pipeline.errors import ConfigError
from pipeline.postgres.connection import Connection, for_server
from pipeline.postgres.replica_identities import KEY_COLUMNS
from pipeline.table_name import TableName

_KEYS = """
SELECT n.nspname::text, c.relname::text, pg_catalog.array_agg(a.attname::text)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY ({key})
WHERE i.indimmediate AND i.indisvalid
  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
GROUP BY 1, 2 ORDER BY 1, 2
"""


def refuse_unusable_rules(connection: Connection, config: Config, tables: Collection[TableName]) -> None:
    """Raise ConfigError for the first rule that leaves out or masks a column of a key."""
    for fault in find_unusable_rules(connection, config, tables):
        raise ConfigError(fault)


def find_unusable_rules(
    connection: Connection, config: Config, tables: Collection[TableName]
) -> Iterable[str]:
    """Return an error for each column of a key of these tables that a rule leaves out or masks."""
    if not any(rule.columns for rule in config.tables):
        return []
    found = []
    for schema, table, key in connection.execute(
        _KEYS.format(key=for_server(connection, KEY_COLUMNS))
    ).fetchall():
        name = TableName(schema, table)
        rule = config.rule_for(name)
        if rule is None or name not in tables:
            continue
        columns = rule.columns
        unusable = (column for column in key if columns.excludes(column) or column in columns.mask)
        found += [columns.key_fault(column, str(name)) for column in unusable]
    return found
