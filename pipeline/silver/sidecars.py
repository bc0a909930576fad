"""Columns of silver that the source does not have: the texts that a column's type could not hold.

A column whose values that do not fit are kept as text (the policy `text`) has one beside it, `<name>__text`:
NULL where the value fits.
"""

from collections.abc import Iterable, Sequence

from pipeline.bronze.relations import SourceRelation
from pipeline.config.tables import TableRule
from pipeline.silver.schema_operations import RenameColumn
from pipeline.silver.types import silver_type

SUFFIX = "__text"


def sidecars(relation: SourceRelation, rule: TableRule) -> dict[str, str]:
    """Return the sidecars that a table has: name → the column whose texts it holds."""
    return {
        column.name + SUFFIX: column.name
        for column in relation.columns
        if rule.misfit_of(column.name) == "text"
        and not silver_type(column, rule.types.get(column.name)).is_total
    }


def with_sidecars(renames: Sequence[RenameColumn], silver: Iterable[str]) -> list[RenameColumn]:
    """Return the renames of columns, and with each that of its sidecar where silver has one."""
    present = set(silver)
    both: list[RenameColumn] = []
    for rename in renames:
        both.append(rename)
        before, to = rename.name + SUFFIX, rename.to + SUFFIX
        if before in present and to not in present:
            both.append(RenameColumn(before, to))
            present ^= {before, to}
    return both
