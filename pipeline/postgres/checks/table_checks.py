"""Check the published tables: what would fail for them at the source itself, or here.

Also has the type of all checks. A passed check with a `fix` is advice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psycopg

from pipeline.config.config import Config
from pipeline.errors import SourceError, describe_error
from pipeline.postgres.binary_format import UNREADABLE_FIX, find_unreadable, unreadable_sentence
from pipeline.postgres.column_rules import find_unusable_rules
from pipeline.postgres.connection import Connection, describe
from pipeline.postgres.idle_rules import read_idle_rules
from pipeline.postgres.partition_names import find_unfollowed
from pipeline.postgres.publication import (
    Publication,
    list_followed,
    sends_roots,
)
from pipeline.postgres.relation_kinds import MatchedRelations
from pipeline.postgres.replica_identities import (
    IdentityFault,
    find_unsafe_identities,
    list_mismatched_leaves,
)
from pipeline.postgres.sql_text import quote_identifier
from pipeline.postgres.unpublished_tables import find_unpublished, group_by_reason, list_generated
from pipeline.table_name import TableName
from pipeline.units import format_count, format_names

NAMED_TABLES = 5


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the source: `sentence` is the finding, `fix` what to do ("" for nothing)."""

    name: str
    ok: bool
    sentence: str
    fix: str = ""


def refused(name: str, error: Exception) -> Check:
    """Return the failed check of a refusal: its first sentence, and what follows as what to do."""
    return split(name, False, describe_error(error))


def split(name: str, ok: bool, text: str) -> Check:
    """Return the check of a text: its first sentence, and what follows as what to do."""
    sentence, stop, fix = text.partition(". ")
    return Check(name, ok, f"{sentence}." if stop else sentence, fix)


def unreadable(name: str, what: str, error: psycopg.Error | SourceError) -> Check:
    """Return the failed check of a catalog that cannot be read."""
    text = describe(error) if isinstance(error, psycopg.Error) else str(error)
    reason = error if isinstance(error, psycopg.Error) else error.__context__
    is_denied = isinstance(reason, psycopg.errors.InsufficientPrivilege)
    fix = "Grant the privilege that it names (see docs/operations/security.md)." if is_denied else ""
    return Check(name, False, f"{what} cannot be read: {text.rstrip('.')}.", fix)


def decide(name: str, ok: bool, *, passed: str, failed: str, fix: str) -> Check:
    """Return the check with the sentence that applies; a passed one has nothing to fix."""
    return Check(name, True, passed) if ok else Check(name, False, failed, fix)


def list_tables(tables: Iterable[TableName]) -> str:
    """Return the names of the tables, of many only the first ones."""
    return format_names(tables, NAMED_TABLES)


def list_identifiers(tables: list[TableName]) -> str:
    """Return the quoted names of the tables for an SQL statement, of many only the first ones."""
    more = ", …" if len(tables) > NAMED_TABLES else ""
    return ", ".join(quote_identifier(*table) for table in tables[:NAMED_TABLES]) + more


def check_tables(connection: Connection, config: Config, publication: Publication | None) -> Iterator[Check]:
    """Yield the checks of the tables that are published or, without a publication, that will be."""
    via_root = sends_roots(connection, config, publication)
    tables = set(list_followed(connection, config, publication))
    follows_changes = publication is None or publication.operations & {"update", "delete"}
    if publication is not None and follows_changes:
        yield from _check_identities(connection, publication)
    if via_root and follows_changes:
        found = _check_leaves(connection, tables)
        yield from (each for each in found if publication is not None or not each.ok)
    if generated := _check_generated(connection, config, tables):
        yield generated
    yield from _check_columns(connection, config, tables)
    if any(rule.columns for rule in config.tables):
        faults = find_unusable_rules(connection, config, tables)
        why, fix = next(iter(faults.values()), ("", ""))
        yield decide(
            "protected columns",
            not faults,
            passed="No column of a key is excluded or masked.",
            failed=f"Tables that are not followed because of rules for columns: {list_tables(faults)}. {why}",
            fix=fix,
        )
    if config.tables and publication is not None:
        yield from _check_unmatched(config, tables)
    if config.source.protocol.binary:
        yield _check_binary(connection, config, tables)


def check_relations(
    connection: Connection, config: Config, publication: Publication | None, relations: MatchedRelations
) -> Iterator[Check]:
    """Yield what of the relations that rules match is not followed, and why."""
    unpublished = find_unpublished(connection, config, publication, relations)
    unfollowed = find_unfollowed(connection, config, publication, relations, unpublished)
    for is_expected, found in ((True, unfollowed.refused), (False, unfollowed.passed_over)):
        for reason, names in group_by_reason(found).items():
            assert reason is not None
            yield Check(
                "relations",
                not is_expected,
                f"Not followed, though a rule matches: {list_tables(names)}. {reason.why}",
                reason.fix_for(list_identifiers(names)),
            )
    followed = list_followed(connection, config, publication)
    for name, sentence in sorted(relations.notes(followed).items()):
        yield Check("relations", True, f"{name}: {sentence}")
    for sentence in read_idle_rules(connection, config, relations, publication.tables if publication else ()):
        yield split("rules", True, sentence)


def _check_identities(connection: Connection, publication: Publication) -> Iterator[Check]:
    """Yield the checks for published tables on which UPDATE and DELETE fail at the source."""
    faults = find_unsafe_identities(connection, publication.name)
    without = sorted(name for name in publication.tables if faults.get(name) is IdentityFault.MISSING)
    yield decide(
        "replica identity",
        not without,
        passed="Every published table has a replica identity.",
        failed=f"{format_count(len(without), 'published table', 'has', 'have')} no replica identity, so"
        f" UPDATE and DELETE fail there at the source: {list_tables(without)}.",
        fix="Add a primary key that is not deferrable to each, or run"
        f" {_alter_each(without, 'REPLICA IDENTITY FULL')}.",
    )
    if connection.info.server_version < 180000:
        return
    generated = sorted(name for name in publication.tables if faults.get(name) is IdentityFault.GENERATED)
    yield decide(
        "generated columns",
        not generated,
        passed="No replica identity has an unpublished generated column.",
        failed=f"{format_count(len(generated), 'published table', 'has', 'have')} a replica identity with"
        " generated columns that are not published, so UPDATE and DELETE fail there at the source:"
        f" {list_tables(generated)}.",
        fix=f"Run ALTER PUBLICATION {quote_identifier(publication.name)} SET (publish_generated_columns ="
        " stored), or set another replica identity, which virtual columns require.",
    )


def _check_generated(connection: Connection, config: Config, tables: set[TableName]) -> Check | None:
    """Return advice if silver lacks generated columns of these tables."""
    name = config.source.publication
    found = list_generated(connection, name)
    columns = [f"{column} of {table}" for table in sorted(found.keys() & tables) for column in found[table]]
    if not columns:
        return None
    sentence = f"Silver lacks generated columns, which are not published: {format_names(columns)}."
    fix = "Compute them in a view over silver."
    if connection.info.server_version >= 180000:
        change = f"ALTER PUBLICATION {quote_identifier(name)} SET (publish_generated_columns = stored)"
        fix = f"Run {change} for those that are stored, and compute the others in a view over silver."
    return Check("generated columns", True, sentence, fix)


def _check_leaves(connection: Connection, tables: set[TableName]) -> Iterator[Check]:
    """Yield whether partitions log what identifies a row of the partitioned table that is published."""
    found = [each for each in list_mismatched_leaves(connection) if each[0] in tables]
    if bare := sorted({root for root, _, is_bare in found if is_bare}):
        yield Check(
            "identities of partitions",
            False,
            f"{format_count(len(bare), 'partitioned table', 'has', 'have')} no replica identity, while the"
            f" partitions have one, so silver is held at the first update or delete: {list_tables(bare)}.",
            f"Run {_alter_each(bare, 'ADD PRIMARY KEY (…)')} with the key of the partitions, or"
            " REPLICA IDENTITY FULL for it and each partition.",
        )
    leaves = sorted(leaf for _, leaf, is_bare in found if not is_bare)
    yield decide(
        "identities of partitions",
        not leaves,
        passed="Every partition of a published table has the columns of the table's replica identity in its"
        " own.",
        failed="Partitions have another replica identity than their partitioned table, so"
        f" their updates and deletes do not identify a row: {list_tables(leaves)}.",
        fix=f"Run {_alter_each(leaves, 'REPLICA IDENTITY FULL')} (or DEFAULT, if the primary key is that of"
        " the partitioned table), then pgdelta resync for the partitioned table.",
    )


_COLUMNS = """
SELECT n.nspname::text, c.relname::text, pg_catalog.array_agg(a.attname::text)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p')
GROUP BY 1, 2
"""


def _check_columns(connection: Connection, config: Config, tables: set[TableName]) -> Iterator[Check]:
    """Yield whether the columns that rules name exist in their tables, if rules name any."""
    missing = {
        (rule.source, name)
        for rule in config.tables
        for name in (*rule.types, *rule.misfits, *rule.columns.names, *rule.partition_by, *rule.cluster_by)
    }
    if not missing:
        return
    for schema, table, columns in connection.execute(_COLUMNS).fetchall():
        name = TableName(schema, table)
        rule = config.rule_for(name)
        if rule is not None and name in tables:
            missing -= {(rule.source, column) for column in columns}
    named = ", ".join(f"{column} of {source}" for source, column in sorted(missing)[:NAMED_TABLES])
    yield decide(
        "configured columns",
        not missing,
        passed="Every column that the configuration names exists.",
        failed=f"No table has these columns, which the rules of tables name: {named}.",
        fix="Correct their names, which are case-sensitive; use the new name of a renamed column.",
    )


def _check_unmatched(config: Config, tables: set[TableName]) -> Iterator[Check]:
    """Yield advice if published tables match no rule."""
    unmatched = sorted(name for name in tables if config.rule_for(name) is None)
    if unmatched:
        verbs = "matches no rule and is", "match no rule and are"
        counted = format_count(len(unmatched), "published table", *verbs)
        yield Check(
            "tables without a rule",
            True,
            f"{counted} in bronze but not in silver: {list_tables(unmatched)}.",
            "Add rules to tables for those that silver is to have.",
        )


def _check_binary(connection: Connection, config: Config, tables: set[TableName]) -> Check:
    columns = find_unreadable(connection, tables, config.source.publication)
    return decide(
        "binary values",
        not columns,
        passed="The binary values of every published column can be converted to text.",
        failed=unreadable_sentence(columns),
        fix=UNREADABLE_FIX,
    )


def _alter_each(tables: list[TableName], action: str) -> str:
    more = "; …" if len(tables) > NAMED_TABLES else ""
    return "; ".join(f"ALTER TABLE {quote_identifier(*t)} {action}" for t in tables[:NAMED_TABLES]) + more
