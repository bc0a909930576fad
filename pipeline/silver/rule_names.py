"""The rule of a table with the names that its columns have in silver. Pure.

The configuration names columns as the source does. Delta ignores case in names, so silver may name one
otherwise: `A__3` for a column `A` next to `a`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pipeline.config.tables import TableRule
from pipeline.silver.column_mapping import AlignedVersions

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


def _renamed(values: Mapping[str, _Value], names: Mapping[str, str]) -> dict[str, _Value]:
    """Return values by silver's names; one that is given under the name in silver stays."""
    return {names.get(name, name): value for name, value in values.items()} | {
        name: values[name] for name in names.values() if name in values
    }
