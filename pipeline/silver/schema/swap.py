"""Swap a table that was written under another path into a silver table, by one commit.

Before that commit readers see the old columns and rows, after it the new ones. A run that ends between any
two steps leaves a successor registered; the next run sees by the recorded offset which rows the table has.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.log import LoggedOperation
from pipeline.delta.replacement import replace_table
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import OURS, TableCommit, TxnId, TxnKind
from pipeline.metadata.events import NEEDS_RESYNC, Event, EventLog
from pipeline.metadata.misfits import MisfitLog
from pipeline.metadata.registry import (
    Records,
    RegisteredColumn,
    RegisteredTable,
    Successor,
    TableRegistry,
)
from pipeline.protocol.lsn import INVALID, LSN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

REBUILD = "rebuild"
"""The operation in the user metadata of a commit that replaces all rows."""
COPY = "copy"
"""The key in the user metadata of a commit of copied rows: the id of the copy."""


def copy_metadata(copy_id: int | None) -> dict[str, object]:
    """Return what the user metadata has of a write of copied rows; empty without a copy."""
    return {} if copy_id is None else {COPY: copy_id}


def is_copied(operation: LoggedOperation) -> bool:
    """Return whether a commit wrote rows of a table copy, or replaced all rows by a rebuild."""
    metadata = operation.metadata
    return OURS in metadata and (metadata.get("operation") == REBUILD or COPY in metadata)


class BufferedRegistry(TableRegistry):
    """Keeps the registered table in memory."""

    registered: RegisteredTable | None = None

    def register(self, *tables: RegisteredTable) -> None:
        """Keep the table instead of the one that was registered before."""
        (self.registered,) = tables


class BufferedEvents(EventLog):
    """Keeps events in memory."""

    def __init__(self, records: Records) -> None:
        super().__init__(records.lake)
        self._events: list[Event] = []

    def record(self, events: Sequence[Event]) -> None:
        """Keep the events."""
        self._events += events

    def resyncs_after(self, lsn: LSN) -> list[Event]:
        """Return the events after an LSN that need a resync."""
        return [event for event in self._events if event.kind in NEEDS_RESYNC and event.lsn > lsn]


class DiscardedMisfits(MisfitLog):
    """Records no misfits."""

    def record(self, misfits: DataFrame) -> None:
        """Do nothing."""

    def record_rows(self, misfits: pa.Table) -> None:
        """Do nothing."""


class BufferedRecords(Records):
    """The records of a table that is written under another path: in memory, but for misfits and comments."""

    tables: BufferedRegistry
    events: BufferedEvents

    def __init__(self, records: Records, *, discards_misfits: bool = False) -> None:
        self.lake = records.lake
        self.tables = BufferedRegistry(records.lake)
        self.events = BufferedEvents(records)
        self.misfits = DiscardedMisfits(records.lake) if discards_misfits else records.misfits
        self.comments = records.comments


def commit_beside_offset(table: LakeTable, txn: TxnId, metadata: Mapping[str, object]) -> TableCommit:
    """Return a commit that replaces all rows of a table, and leaves its offset as it is."""
    txn = txn.of(TxnKind.REBUILD)
    number = max(time.time_ns(), (table.offset(txn) or INVALID) + 1)  # as clocks may go backwards
    return TableCommit(txn, LSN(number), metadata)


def successor_of(
    entry: RegisteredTable, columns: Sequence[RegisteredColumn], commit: TableCommit
) -> Successor:
    """Return what a table has columns like after a commit; only it gives them their names in data files."""
    unnamed = tuple(replace(column, physical_name="") for column in columns)
    return Successor(entry.relation_id, unnamed, commit.txn, commit.lsn, entry.mode, entry.protected)


def swap_in(
    table: LakeTable,
    new: LakeTable,
    records: Records,
    entry: RegisteredTable,
    registered: RegisteredTable | None,
    txn: TxnId,
    end_lsn: LSN,
    *,
    by_spark: bool,
) -> None:
    """Replace the columns and rows of `table` by those of `new`, complete up to an LSN; remove `new`.

    `entry` is how `new` is registered, `registered` how `table` is. Without `by_spark` Spark commits only
    what nothing else can.
    """
    metadata = {
        "operation": REBUILD,
        "table": [entry.schema_name, entry.table_name],
        "start_lsn": str(INVALID),
    }
    commit = TableCommit(txn, end_lsn, metadata)
    if (table.offset(txn) or INVALID) >= end_lsn:
        # Delta would skip a commit at an LSN that the table records.
        commit = commit_beside_offset(table, txn, metadata)
    names = {physical: name for name, physical in new.physical_names().items()}
    metadata_columns = [names[physical] for physical in entry.metadata_columns]
    entry = replace(entry, path=table.path)
    successor = successor_of(entry, entry.columns, commit)
    before = registered or replace(entry, columns=(), copy_id=None, metadata_columns=())
    records.tables.register(replace(before, successor=successor))
    with crash_step(CrashStep.SWAP_TABLE):
        versions = {str(commit.txn): int(commit.lsn)}
        if by_spark or not replace_table(table, new, versions, commit.user_metadata):
            table.replace_with(new, commit)
    physical = table.physical_names()
    columns = tuple(replace(c, physical_name=physical[c.silver_name]) for c in entry.columns)
    metadata_names = tuple(physical[name] for name in metadata_columns)
    records.tables.register(replace(entry, columns=columns, metadata_columns=metadata_names))
    new.remove()
