"""What of the published tables would fail: at the source itself, or here.

A check is a name, whether it passed, a sentence, and what to do where something is to be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.config.config import Config
from pipeline.postgres.connection import Connection
from pipeline.postgres.publication import (
    Publication,
    list_blind_leaves,
    list_configured,
    list_unpublished_generated,
    list_without_identity,
)
from pipeline.postgres.types import UNREADABLE_FIX, find_unreadable, unreadable_sentence
from pipeline.table_name import TableName

NAMED_TABLES = 5


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the source: `sentence` is what was found, `fix` what to do ("" for nothing)."""

    name: str
    ok: bool
    sentence: str
    fix: str = ""


def check_tables(connection: Connection, config: Config, publication: Publication | None) -> Iterator[Check]:
    """Yield the checks of the tables that are published, or that will be."""
    tables = set(list_configured(connection, config)) if publication is None else set(publication.tables)
    yield from _check_identities(connection, publication, tables)
    yield from _check_columns(connection, config, tables)
    if config.tables and publication is not None:
        yield from _check_unmatched(config, tables)
    if config.source.protocol.binary:
        yield _check_binary(connection, config, tables)


_COLUMNS = """
SELECT n.nspname::text, c.relname::text, pg_catalog.array_agg(a.attname::text)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p')
GROUP BY 1, 2
"""


def _check_columns(connection: Connection, config: Config, tables: set[TableName]) -> Iterator[Check]:
    """Yield whether the columns that rules name are in a table that they are for."""
    named = {(rule.source, name) for rule in config.tables for name in (*rule.types, *rule.misfits)}
    if not named:
        return
    for schema, table, columns in connection.execute(_COLUMNS).fetchall():
        rule = config.rule_for(TableName(schema, table))
        if rule is not None and TableName(schema, table) in tables:
            named -= {(rule.source, column) for column in columns}
    missing = ", ".join(f"{column} of {source}" for source, column in sorted(named)[:NAMED_TABLES])
    yield Check(
        "configured columns",
        not named,
        f"No table has these columns that tables[].types or misfits name: {missing}."
        if named
        else "Every column that the configuration names is in a table.",
        "Correct their names, case and all; a column that was renamed goes by its new name." if named else "",
    )


def _check_unmatched(config: Config, tables: set[TableName]) -> Iterator[Check]:
    """Yield which published tables no rule is for, where there are any."""
    unmatched = sorted(name for name in tables if config.rule_for(name) is None)
    if unmatched:
        yield Check(
            "tables without a rule",
            True,
            f"{len(unmatched)} published tables match no rule, so that bronze has them and silver does not:"
            f" {list_tables(unmatched)}.",
            "Add rules to tables for those that silver shall have.",
        )


def _check_identities(
    connection: Connection, publication: Publication | None, tables: set[TableName]
) -> Iterator[Check]:
    """Yield what makes the source's own UPDATE and DELETE fail once its tables are published."""
    if publication is None:
        operations = frozenset({"update", "delete"})
        has_generated = False
    else:
        operations = publication.operations
        has_generated = publication.generated_columns
    if not operations & {"update", "delete"}:
        return
    without = sorted(set(list_without_identity(connection)) & tables)
    yield Check(
        "replica identity",
        not without,
        f"{len(without)} published tables have no replica identity, so that UPDATE and DELETE fail on them at"
        f" the source: {list_tables(without)}."
        if without
        else "Every published table has a replica identity.",
        "Give each a primary key, or run ALTER TABLE … REPLICA IDENTITY FULL." if without else "",
    )
    if publication is not None and publication.via_root:
        yield _check_leaves(connection, tables)
    if connection.info.server_version >= 180000:
        unpublished = sorted(set(list_unpublished_generated(connection, has_generated)) & tables)
        yield Check(
            "generated columns",
            not unpublished,
            f"{len(unpublished)} tables with REPLICA IDENTITY FULL have generated columns that are not"
            f" published, so that UPDATE and DELETE fail on them at the source: {list_tables(unpublished)}."
            if unpublished
            else "No replica identity holds an unpublished generated column.",
            "Run ALTER PUBLICATION … SET (publish_generated_columns = stored), or give the tables another"
            " replica identity (a must for virtual columns)."
            if unpublished
            else "",
        )


def _check_leaves(connection: Connection, tables: set[TableName]) -> Check:
    """Return whether the leaves of published roots log of old rows what their root says that they do."""
    found = list_blind_leaves(connection)
    leaves = sorted(TableName(schema, leaf) for *root, schema, leaf in found if (root[0], root[1]) in tables)
    return Check(
        "identities of partitions",
        not leaves,
        f"{len(leaves)} partitions have another replica identity than their partitioned table, so that their"
        f" updates and deletes do not say which row they mean: {list_tables(leaves)}."
        if leaves
        else "The replica identity of every partition of a published table says what that of the table says.",
        "Run ALTER TABLE … REPLICA IDENTITY FULL for each of them (or DEFAULT, where their primary key is"
        " that of the partitioned table), then pgdelta resync for their table."
        if leaves
        else "",
    )


def _check_binary(connection: Connection, config: Config, tables: set[TableName]) -> Check:
    columns = find_unreadable(connection, tables, config.source.publication)
    if columns:
        return Check("binary values", False, unreadable_sentence(columns), UNREADABLE_FIX)
    return Check(
        "binary values", True, "The binary values of every published column can be turned into text."
    )


def list_tables(tables: Iterable[TableName]) -> str:
    """Return the names of tables, and of many the first ones."""
    names = [f"{schema}.{table}" for schema, table in tables]
    more = len(names) - NAMED_TABLES
    return ", ".join(names[:NAMED_TABLES]) + (f" and {more} more" if more > 0 else "")
