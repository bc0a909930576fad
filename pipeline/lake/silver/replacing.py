"""A table that was written beside another put in its place, by one commit, and what is recorded of it.

Until that commit readers see the old rows, after it the new ones. A run that ends between any two steps
leaves a successor on record: the next one knows by the commit's position which of both the table holds.
"""

import time
from dataclasses import replace

from pipeline.lake.positions import Commit
from pipeline.lake.records import Records, Registered, Successor
from pipeline.lake.tables import LakeTable
from pipeline.protocol.lsn import INVALID, LSN

REWRITE = "rewrite"  # what such a commit says it is


def put_in_place(
    table: LakeTable,
    beside: LakeTable,
    records: Records,
    entry: Registered,
    registered: Registered | None,
    app_id: str,
    through: LSN,
) -> None:
    """Replace a table's columns and rows; `entry` is the other's, complete up to an LSN."""
    name = [entry.schema_name, entry.table_name]
    said = {"operation": REWRITE, "table": name, "after": str(INVALID)}
    commit = Commit(app_id, through, said)
    if (table.position(app_id) or INVALID) >= through:
        # Delta would skip it under an LSN that the table has; the clock alone may go back.
        app_id = f"{app_id}/rewrite"
        number = max(time.time_ns(), (table.position(app_id) or INVALID) + 1)
        commit = Commit(app_id, LSN(number), said)
    in_files = {physical: name for name, physical in beside.physical_names().items()}
    own = [in_files[physical] for physical in entry.own_columns]
    entry = replace(entry, path=table.path)
    # Until the new rows are there the old ones have their names; then what data files call them is new.
    unnamed = tuple(replace(c, physical_name="") for c in entry.columns)
    successor = Successor(entry.relation_id, unnamed, commit.app_id, commit.lsn)
    before = registered or replace(entry, columns=(), copy_id=None, own_columns=())
    records.register(replace(before, successor=successor))
    table.replace_by(beside, commit)
    physical = table.physical_names()
    columns = tuple(replace(c, physical_name=physical[c.silver_name]) for c in entry.columns)
    own_columns = tuple(physical[name] for name in own)
    records.register(replace(entry, columns=columns, own_columns=own_columns))
    beside.remove()
