"""The rule of a table with the names that its columns have in silver. Pure.

The configuration names columns as the source does. Delta ignores case in names, so silver may name one
otherwise: `A__3` for a column `A` next to `a`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pipeline.bronze.source_relations import SourceRelation
from pipeline.config.tables import TableRule
from pipeline.delta.column_lists import STATISTICS_COLUMNS, join_columns, split_columns
from pipeline.silver.schema.column_mapping import AlignedVersions, SilverColumns
from pipeline.silver.schema.schema_operations import RuleNote

_Value = TypeVar("_Value")


def silver_names(aligned: AlignedVersions) -> dict[str, str]:
    """Return silver's names of the last version's columns by those of the source, where they differ."""
    pairs = ((aligned.source_names[number], name) for number, name in aligned.names.items())
    return {source: name for source, name in pairs if source != name}


def rule_in_silver(rule: TableRule, names: Mapping[str, str], *, has_partitions: bool) -> TableRule:
    """Return a rule with silver's names, given these where they differ from the source's.

    With `has_partitions`, its partition columns are those of the table, under silver's names.
    """
    if not names:
        return rule
    partition_by: Sequence[str] = rule.partition_by
    if not has_partitions:
        partition_by = [names.get(name, name) for name in partition_by]
    return replace(
        rule,
        types=_renamed(rule.types, names),
        misfits=_renamed(rule.misfits, names),
        partition_by=tuple(partition_by),
    )


def properties_in_silver(
    properties: Mapping[str, str], names: Mapping[str, str], columns: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """Return a rule's properties under silver's names, and the names in them that are of no column.

    `names` are silver's by those of the source, earlier ones too; `columns` are all that the table has.
    """
    value = properties.get(STATISTICS_COLUMNS)
    if value is None:
        return dict(properties), []
    named = split_columns(value)
    found = [names.get(name, name) for name in named]
    missing = [name for name, silver in zip(named, found, strict=True) if silver not in columns]
    kept = [silver for silver in dict.fromkeys(found) if silver in columns]
    if kept == named:
        return dict(properties), []
    wanted = {**properties, STATISTICS_COLUMNS: join_columns(kept)}
    if not kept:
        del wanted[STATISTICS_COLUMNS]
    return wanted, missing


def names_of_columns(recorded: SilverColumns, relations: Iterable[SourceRelation]) -> dict[str, str]:
    """Return silver's names of a table's columns by every name that they have had at the source.

    `relations` are the table's versions. A name that a column has now counts before one that another had.
    """
    silver = {number: name for name, number in recorded.numbers.items() if number is not None}
    found = {
        column.name: silver[number]
        for version in sorted(relations, key=lambda each: each.lsn)
        for column in version.columns
        if (number := column.attribute_number) is not None and number in silver
    }
    at_source = {number: name for name, number in recorded.source_names.items()}
    now = {at_source.get(number, name): name for number, name in silver.items()}
    return found | now


def unknown_columns(names: Sequence[str]) -> RuleNote:
    """Return the note about names in a property that are of no column."""
    what, are = ("Column", "is") if len(names) == 1 else ("Columns", "are")
    return RuleNote(
        f"{what} {', '.join(names)}, which {STATISTICS_COLUMNS} in tables[].properties names, {are} not in"
        " the table. Correct the property."
    )


def rules_left_behind(
    rule: TableRule,
    recorded: SilverColumns | None,
    versions: Sequence[SourceRelation],
    names: Mapping[int, str],
) -> list[RuleNote]:
    """Return a note for each rule of a column that was renamed at the source: it does not follow.

    `recorded` are the columns as silver has them, `versions` those of the table in order, under the names of
    the source, and `names` those of the last one by attribute number.
    """
    earlier: dict[tuple[int, str], None] = {}  # in order
    if recorded is not None and recorded.relation_id == versions[-1].oid:
        at_source = {number: name for name, number in recorded.source_names.items()}
        numbers = {number: at_source.get(number, name) for name, number in recorded.numbers.items()}
        earlier |= dict.fromkeys((number, name) for number, name in numbers.items() if number is not None)
    columns = [column for version in versions for column in version.columns]
    earlier |= dict.fromkeys((c.attribute_number, c.name) for c in columns if c.attribute_number is not None)
    notes = []
    for key, values in (("types", rule.types), ("misfits", rule.misfits)):
        for number, name in earlier:
            to = names.get(number, name)
            if to != name and name in values and to not in values:
                sentence = (
                    f"Column {name}, which tables[].{key} names, was renamed to {to} at the source. Its rule "
                    f"does not follow. Name {to} in tables[].{key}."
                )
                notes.append(RuleNote(sentence))
    return notes


def _renamed(values: Mapping[str, _Value], names: Mapping[str, str]) -> dict[str, _Value]:
    """Return values by silver's names; one that is given under the name in silver stays."""
    return {names.get(name, name): value for name, value in values.items()} | {
        name: values[name] for name in names.values() if name in values
    }
