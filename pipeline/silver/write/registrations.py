"""How a silver table is registered before the rows of a range are written, and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.delta.table import LakeTable
from pipeline.metadata.registry import RegisteredColumn, RegisteredTable, Successor
from pipeline.silver.schema.column_mapping import SilverColumns
from pipeline.silver.schema.foreign_commits import refuse_removed_columns
from pipeline.silver.write.range_plan import Evolution, RangePlan
from pipeline.table_name import TableName


def registrations(plan: RangePlan, found: RegisteredTable) -> tuple[RegisteredTable, RegisteredTable]:
    """Return how the table that has the columns of `found` is registered before a plan's rows, and after.

    Columns are registered before the rows, because a run after a crash must recognize them. Their names
    at the source, and the key, are registered after the rows, which may be applied again, and so is a
    partial copy. If the source table was created again, the first write replaces the old table's rows.
    A new table has no rows that were found by another key.
    """
    registered, copy = plan.registered, plan.start.copy
    if registered is None:
        after = replace(found, copy_id=copy.id if copy else None)
        is_whole = copy is None or not (copy.key_ranges or plan.start.is_later)
        return (after if is_whole else replace(after, copy_id=None)), after
    after = replace(found, copy_id=copy.id if copy else registered.copy_id)
    if registered.relation_id != after.relation_id:
        commit = plan.writes[0].commit
        successor = Successor(
            after.relation_id, after.columns, commit.txn, commit.lsn, after.mode, after.protected
        )
        return replace(registered, successor=successor, metadata_columns=after.metadata_columns), after
    before = replace(after, columns=columns_before(registered, after.columns))
    if copy and (copy.key_ranges or plan.start.is_later):
        before = replace(before, copy_id=registered.copy_id)
    return before, after


def columns_before(
    registered: RegisteredTable, columns: Sequence[RegisteredColumn]
) -> tuple[RegisteredColumn, ...]:
    """Return columns with their names at the source, and the key, as they were registered."""
    earlier = {c.physical_name: c for c in registered.columns}
    known = [(c, earlier.get(c.physical_name)) for c in columns]
    return tuple(replace(c, name=e.name if e else c.name, is_key=e.is_key if e else None) for c, e in known)


def columns_to_register(evolution: Evolution, physical: Mapping[str, str]) -> tuple[RegisteredColumn, ...]:
    """Return the columns of the source after an evolution, given the names in data files by name."""
    recorded, source_names = evolution.recorded, evolution.aligned.source_names
    return tuple(
        replace(
            RegisteredColumn(
                source_names.get(number or 0, name),
                name,
                number,
                physical[name],
                *recorded.types.get(name, (None, None)),
            ),
            is_key=name in recorded.key,
        )
        for name, number in recorded.numbers.items()
        if name in physical
    )


def recorded_columns(table: LakeTable, name: TableName, registered: RegisteredTable) -> SilverColumns:
    """Return the registered columns that a table has, under its current names.

    Raises LakeError if a foreign commit removed one.
    """
    refuse_removed_columns(table, name, registered)
    names = {physical: name for name, physical in table.physical_names().items()}
    columns = {
        # A rebuild that ended early could not register the physical names.
        c: names[c.physical_name] if c.physical_name else c.silver_name
        for c in registered.columns
        if not c.physical_name or c.physical_name in names
    }
    return SilverColumns(
        registered.relation_id,
        {name: c.attribute_number for c, name in columns.items()},
        {c.name: c.attribute_number for c, name in columns.items() if c.name != name},
        {
            name: (c.type_oid, c.type_modifier)
            for c, name in columns.items()
            if c.type_oid is not None and c.type_modifier is not None
        },
        registered.protected,
        frozenset(name for c, name in columns.items() if c.is_key),
    )
