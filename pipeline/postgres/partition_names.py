"""Find the relations that rules match and that are not followed, also because their rows have other names.

A publication sends the rows of a partitioned table under the table's name or under those of its partitions
(`publish_via_partition_root`). A rule that names the other yields nothing, and is named with what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.config import Config
from pipeline.postgres.column_rules import find_unusable_rules
from pipeline.postgres.connection import Connection
from pipeline.postgres.publication import (
    PUBLISHES_SCHEMAS,
    Publication,
    list_publishable,
    plan_scope,
    sends_roots,
)
from pipeline.postgres.relation_kinds import MatchedRelations, Reason
from pipeline.postgres.sql_text import quote_identifier
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """Relations that are not followed though rules match them, each with why.

    `refused` ones are named or missed; `passed_over` ones only a wildcard matches, or silver has their rows
    under other names that match, too. Of `unusable` ones, rules for columns leave no key or no column.
    """

    refused: Mapping[TableName, Reason]
    passed_over: Mapping[TableName, Reason]
    unusable: Mapping[TableName, Reason]


def find_unfollowed(
    connection: Connection,
    config: Config,
    publication: Publication | None,
    relations: MatchedRelations,
    unpublished: Mapping[TableName, Reason | None],
) -> Unfollowed:
    """Return what rules match and is not followed, now or once the publication is created.

    `unpublished` is the result of `find_unpublished`, which has reasons of its own.
    """
    published = frozenset() if publication is None else publication.tables
    refused, passed_over = relations.refused(published), relations.passed_over(published)
    unusable = find_unusable_rules(connection, config, published)
    sent = publication
    if sent is None and relations.families:
        sent = _plan_publication(connection, config, relations)
    if sent is None:
        return Unfollowed(refused, passed_over, unusable)
    below: dict[TableName, list[TableName]] = {}
    for name, member in relations.families.items():
        for above in member.above if not member.is_partitioned else ():
            below.setdefault(above, []).append(name)
    for name, member in relations.families.items():
        rule, partitions = config.rule_for(name), below.get(name, [])
        has_reason = name in refused or name in passed_over or unpublished.get(name) is not None
        is_sent = name in sent.tables and (sent.via_root or not member.is_partitioned)
        if rule is None or has_reason or is_sent:
            continue
        if root := next((each for each in reversed(member.above) if each in sent.tables), None):
            has_rule = config.rule_for(root) is not None
            if rule.is_exact_for(name) or not has_rule:
                refused[name] = _sent_by_root(sent, root, has_rule=has_rule)
        elif member.is_partitioned and (not sent.via_root or not sent.tables.isdisjoint(partitions)):
            is_in_silver = partitions and all(config.rule_for(each) is not None for each in partitions)
            found = passed_over if is_in_silver and not rule.is_exact_for(name) else refused
            found[name] = _sent_by_partitions(sent, config)
    return Unfollowed(refused, passed_over, unusable)


def _plan_publication(
    connection: Connection, config: Config, relations: MatchedRelations
) -> Publication | None:
    """Return the publication that ingest will create, with its members of families; None if it will not."""
    plan = config.source.create.publication
    is_refused = plan == "schemas" and connection.info.server_version < PUBLISHES_SCHEMAS
    if plan == "never" or is_refused or (scope := plan_scope(connection, config)) is None:
        return None
    families, via_root = relations.families, sends_roots(connection, config)
    entries = {
        name
        for name in list_publishable(connection)
        if scope.all_tables or name.schema in scope.schemas or name in scope.tables
    }
    if via_root:
        tables = set(relations.without_partitions(entries))
    else:
        tables = {
            name
            for name in list_publishable(connection)
            if not (name in families and families[name].is_partitioned)
            and (name in entries or (name in families and not entries.isdisjoint(families[name].above)))
        }
    name, operations = config.source.publication, frozenset({"insert", "update", "delete", "truncate"})
    return Publication(name, scope.all_tables, operations, via_root, frozenset(tables))


def _sent_by_root(sent: Publication, root: TableName, *, has_rule: bool) -> Reason:
    name = quote_identifier(sent.name)
    what = "Leave it out of tables" if has_rule else f"Name {root} in tables"
    return Reason(
        f"It is a partition of {root}, and the publication {sent.name} sends its rows under that name"
        + ("." if has_rule else ", which no rule matches."),
        f"{what}. Or run ALTER PUBLICATION {name} SET (publish_via_partition_root = false): then silver gets"
        " a table for each partition that a rule matches, and that of a partitioned table no more changes.",
    )


def _sent_by_partitions(sent: Publication, config: Config) -> Reason:
    name = quote_identifier(sent.name)
    change = "ADD TABLE …" if sent.via_root else "SET (publish_via_partition_root = true)"
    copied = ", which is copied" if config.source.copy == "initial" else ""
    return Reason(
        f"It is partitioned, and the publication {sent.name} sends its rows under the names of its"
        " partitions.",
        f"Run ALTER PUBLICATION {name} {change}: then silver gets one table for each partitioned table that a"
        f" rule matches{copied}, and those of its partitions no more changes. Or name the partitions in"
        " tables.",
    )
