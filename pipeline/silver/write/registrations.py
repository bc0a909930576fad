"""How a silver table is registered before the rows of a range are written, and after."""

from __future__ import annotations

from dataclasses import replace

from pipeline.metadata.registry import RegisteredTable, Successor
from pipeline.silver.write.range_plan import RangePlan


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
    earlier = {c.physical_name: c for c in registered.columns}
    known = [(c, earlier.get(c.physical_name)) for c in after.columns]
    columns = tuple(
        replace(c, name=e.name if e else c.name, is_key=e.is_key if e else None) for c, e in known
    )
    before = replace(after, columns=columns)
    if copy and (copy.key_ranges or plan.start.is_later):
        before = replace(before, copy_id=registered.copy_id)
    return before, after
