"""Find the rules of `tables` that no table follows, with what they match instead or the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.postgres.connection import Connection, connect, limit_connect_time
from pipeline.postgres.matched_relations import read_relations
from pipeline.postgres.publication import list_publishable
from pipeline.postgres.relation_kinds import MatchedRelations
from pipeline.table_name import TableGlob, TableName
from pipeline.units import format_names

_SIMILARITY = 0.75  # of a name that is named as the nearest one
_CONNECT_SECONDS = 5.0


def read_idle_rules(
    connection: Connection,
    config: Config,
    relations: MatchedRelations,
    published: Collection[TableName] = (),
) -> tuple[str, ...]:
    """Return a sentence for each rule that no table of the source follows; raise SourceError."""
    odd = {*relations.refused(published), *relations.passed_over(published)}
    return find_idle_rules(config, [n for n in list_publishable(connection) if n not in odd], odd)


def read_idle_rules_of(config: Config) -> tuple[str, ...]:
    """Return the sentences of `read_idle_rules` from a session of its own; raise SourceError."""
    with connect(limit_connect_time(config.source.conninfo, _CONNECT_SECONDS)) as connection:
        return read_idle_rules(connection, config, read_relations(connection, config))


def find_idle_rules(
    config: Config, tables: Collection[TableName], odd: Collection[TableName]
) -> tuple[str, ...]:
    """Return a sentence for each rule that no table follows.

    `tables` are those that exist and may be followed, `odd` relations that are not followed. A rule that
    names one of these is left out: a sentence about the relation says why. So is one that follows narrower
    rules which match all of its tables, as a last rule for all others does.
    """
    used = {id(config.rule_for(name)) for name in tables}
    idle = (rule for rule in config.tables if id(rule) not in used and not any(map(rule.is_exact_for, odd)))
    sentences = (_sentence(config, rule, tables, odd) for rule in idle)
    return tuple(sentence for sentence in sentences if sentence is not None)


def _sentence(
    config: Config, rule: TableRule, tables: Collection[TableName], odd: Collection[TableName]
) -> str | None:
    start = f"The rule {rule.source} of tables has no table"
    earlier = [first for name in tables if rule.matches(name) and (first := config.rule_for(name))]
    if earlier:
        wider = [first for first in earlier if TableGlob(rule.source).is_within(TableGlob(first.source))]
        if not wider:
            return None
        sources = sorted({first.source for first in wider})
        advice = "Remove one of the two." if rule.source in sources else "Move it before them."
        if advice.startswith("Move") and any(first.columns for first in wider):
            advice = "Move it before them, and give it their columns too: else it shows what they protect."
        return f"{start}: earlier rules match all of its tables ({format_names(sources)}). {advice}"
    if matched := sorted(str(name) for name in odd if rule.matches(name)):
        return f"{start}: it only matches relations that are not followed ({format_names(matched)})."
    nearest = _nearest(rule.source, [*tables, *odd])
    advice = f"The nearest name is {nearest}." if nearest else "Correct it, or create the table."
    return f"{start}: nothing in the database matches it. {advice}"


def _nearest(source: str, names: Collection[TableName]) -> str | None:
    """Return the glob of the name, or of the schema, that is most like a rule's glob."""
    schema, table = _key(source)
    found: dict[str, str] = {}
    near = set(_close(schema, {_key(str(name))[0] for name in names}))
    for name in sorted(names, reverse=True):
        each = TableName(name.schema, "*") if table == "*" else name
        if _key(str(each))[0] in near:
            found[_key(str(each))[1]] = str(each)
    return next((found[key] for key in _close(table, found)), None)


def _close(text: str, texts: Collection[str]) -> list[str]:
    return difflib.get_close_matches(text, texts, 1, _SIMILARITY)


def _key(glob: str) -> tuple[str, str]:
    """Return the parts of a glob without quotes and case."""
    schema, _, table = glob.replace('"', "").casefold().partition(".")
    return schema, table
