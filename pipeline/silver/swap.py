"""A table that was written beside another put in its place, by one commit, and what is recorded of it.

Until that commit readers see the old rows, after it the new ones. A run that ends between any two steps
leaves a successor on record: the next one knows by the commit's position which of both the table holds.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, TxnId, TxnKind
from pipeline.metadata.events import ONLY_A_COPY_HELPS, Event
from pipeline.metadata.registry import Records, RegisteredTable, Successor
from pipeline.protocol.lsn import INVALID, LSN


# The records of a table that is written beside the one of its name, and what of them others have to know.
class BufferedRecords(Records):
    """The records of a table that is written beside the one of its name: nobody else sees them but misfits.

    Its events are kept: those of what the table of its name had not come to yet are news.
    """

    def __init__(self, records: Records) -> None:
        super().__init__(records.lake)
        self.registered_last: RegisteredTable | None = None
        self._events_kept: list[Event] = []
        self._lock = records._lock  # misfits go to the same table

    def register(self, table: RegisteredTable) -> None:
        """Keep the newest."""
        self.registered_last = table

    def record_events(self, events: Sequence[Event]) -> None:
        """Keep them."""
        self._events_kept += events

    def news(self, shown: LSN) -> list[Event]:
        """Return the events that only a copy helps after, of what lies behind the position that was shown."""
        return [e for e in self._events_kept if e.kind in ONLY_A_COPY_HELPS and e.lsn > shown]


REBUILD = "rewrite"  # what such a commit says it is


def swap_in(
    table: LakeTable,
    beside: LakeTable,
    records: Records,
    entry: RegisteredTable,
    registered: RegisteredTable | None,
    txn: TxnId,
    through: LSN,
) -> None:
    """Replace a table's columns and rows; `entry` is the other's, complete up to an LSN."""
    name = [entry.schema_name, entry.table_name]
    said = {"operation": REBUILD, "table": name, "after": str(INVALID)}
    commit = TableCommit(txn, through, said)
    if (table.offset(txn) or INVALID) >= through:
        # Delta would skip it under an LSN that the table has; the clock alone may go back.
        txn = txn.of(TxnKind.REBUILD)
        number = max(time.time_ns(), (table.offset(txn) or INVALID) + 1)
        commit = TableCommit(txn, LSN(number), said)
    in_files = {physical: name for name, physical in beside.physical_names().items()}
    own = [in_files[physical] for physical in entry.metadata_columns]
    entry = replace(entry, path=table.path)
    # Until the new rows are there the old ones have their names; then what data files call them is new.
    unnamed = tuple(replace(c, physical_name="") for c in entry.columns)
    successor = Successor(entry.relation_id, unnamed, commit.txn, commit.lsn)
    before = registered or replace(entry, columns=(), copy_id=None, metadata_columns=())
    records.register(replace(before, successor=successor))
    with crash_step(CrashStep.SWAP_TABLE):
        table.replace_with(beside, commit)
    physical = table.physical_names()
    columns = tuple(replace(c, physical_name=physical[c.silver_name]) for c in entry.columns)
    own_columns = tuple(physical[name] for name in own)
    records.register(replace(entry, columns=columns, metadata_columns=own_columns))
    beside.remove()
