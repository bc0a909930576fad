"""Sidecar columns: texts that a column's silver type cannot hold, kept by the policy `text`.

Such a column has a sidecar `<name>__text`, which is NULL if the value fits.
"""

from collections.abc import Iterable, Sequence

from pipeline.bronze.relations import SourceRelation
from pipeline.config.tables import TableRule
from pipeline.silver.schema_operations import RenameColumn
from pipeline.silver.types import silver_type

SUFFIX = "__text"


def sidecars(relation: SourceRelation, rule: TableRule) -> dict[str, str]:
    """Return the sidecars of a relation version: name → the column whose texts it has."""
    return {
        column.name + SUFFIX: column.name
        for column in relation.columns
        if rule.misfit_of(column.name) == "text"
        and not silver_type(column, rule.types.get(column.name)).is_total
    }


def with_sidecars(renames: Sequence[RenameColumn], silver: Iterable[str]) -> list[RenameColumn]:
    """Return the renames, each followed by the rename of its column's sidecar if silver has one."""
    present = set(silver)
    both: list[RenameColumn] = []
    for rename in renames:
        both.append(rename)
        before, to = rename.name + SUFFIX, rename.to + SUFFIX
        if before in present and to not in present:
            both.append(RenameColumn(before, to))
            present ^= {before, to}
    return both
