"""Preconditions of erasure: no live row and no pending change has the keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.bronze.copy_states import CopyHistory
from pipeline.bronze.log import Bronze
from pipeline.delta.ended_history import why_not_endable
from pipeline.delta.partitions import partition_value
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import TxnKind
from pipeline.errors import LakeError
from pipeline.metadata.manifests import Manifest
from pipeline.metadata.registry import RegisteredTable
from pipeline.metadata.silver_paths import archive_numbers, archived_table
from pipeline.partition_folders import values_in
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.reading.key_types import texts_of
from pipeline.reading.row_keys import ForgottenTable
from pipeline.silver.lake_facts import no_longer_followed
from pipeline.table_name import TableName

_APPLY_FIRST = "Run pgdelta ingest and pgdelta apply, then pgdelta forget again."


class SilverKeys:
    """A silver table of the subject, and the columns of its key."""

    def __init__(self, table: LakeTable, registered: RegisteredTable, forgotten: ForgottenTable) -> None:
        self.table = table
        self.name = registered.name
        self.registered = registered
        self._forgotten = forgotten
        self.columns: list[str] = []
        self.physical_names: list[str] = []
        for wanted in forgotten.key:
            same = [
                column
                for column in registered.columns
                if (
                    column.attribute_number == wanted.attribute_number
                    if wanted.attribute_number is not None
                    and column.attribute_number is not None
                    and registered.relation_id in forgotten.oids
                    and len(forgotten.oids) == 1
                    else column.name == wanted.name
                )
            ]
            if len(same) != 1:
                raise LakeError(
                    f"Silver table {self.name} has no column for the key of {forgotten.name}, so pgdelta "
                    "forget cannot tell whether it still has the row. Nothing was erased."
                )
            self.columns.append(same[0].silver_name)
            self.physical_names.append(same[0].physical_name)

    def count(self, keys: AbstractSet[str]) -> int:
        """Return how many rows of the newest version have one of the keys."""
        return self.count_in(self.table.rows(self.columns), keys)

    def count_in_file(self, path: Path, keys: AbstractSet[str]) -> int:
        """Return how many rows of a data file that no commit names have one of the keys."""
        snapshot, schema = self.table.snapshot(), self.table.schema().arrow
        physical = self.physical_names or self.columns
        values: dict[str, str | None] = {}
        if snapshot.partition_columns:
            values = values_in(path.relative_to(self.table.folder).as_posix())
        with pq.ParquetFile(path) as file:
            found = file.read(columns=[name for name in physical if name not in values])
            count = file.metadata.num_rows
        columns = [
            pa.repeat(partition_value(values[name], schema.field(column).type), count)
            if name in values
            else found.column(name)
            for name, column in zip(physical, self.columns, strict=True)
        ]
        return self.count_in(pa.Table.from_arrays(columns, names=list(physical)), keys)

    def count_in(self, rows: pa.Table, keys: AbstractSet[str]) -> int:
        """Return how many rows have one of the keys; they have the columns of the key only, in order."""
        found = pc.is_in(self._keys_of(rows), value_set=pa.array(sorted(keys), pa.string()))
        return int(pc.sum(found).as_py() or 0)

    def _keys_of(self, rows: pa.Table) -> Any:
        texts = []
        for column, family in zip(rows.columns, self._forgotten.families, strict=True):
            found = texts_of(column.combine_chunks(), family)
            if found is None:
                raise LakeError(
                    f"A column of the key of silver table {self.name} has the type {column.type}, in which "
                    "pgdelta forget cannot find the key. Nothing was erased."
                )
            texts.append(found)
        return self._forgotten.keys_of(texts)


def find_silver_tables(
    bronze: Bronze, registered: Mapping[TableName, RegisteredTable], forgotten: ForgottenTable
) -> list[SilverKeys]:
    """Return the silver tables that show, or showed, rows of the table; raise LakeError if there is none."""
    lake = bronze.lake
    found = []
    for name, table in sorted(registered.items()):
        if name in forgotten.names or table.relation_id in forgotten.oids:
            place = lake.table_at(table.path)
            if place.exists():
                found.append(SilverKeys(place, table, forgotten))
    if not found:
        raise LakeError(
            f"Table {forgotten.name} has no silver table, so pgdelta forget cannot tell whether the source "
            "still has the row. Nothing was erased."
        )
    _check_archive(lake, forgotten, {table.path for table in registered.values()})
    return found


def _check_archive(lake: Lake, forgotten: ForgottenTable, registered: AbstractSet[str]) -> None:
    for name in forgotten.names:
        if numbers := archive_numbers(lake, name, registered):
            raise LakeError(
                f"{archived_table(lake, name, numbers[0]).path} has the rows of a former table {name}, which "
                "pgdelta forget does not change. Remove the folder, then run pgdelta forget again."
            )


def check_tables(bronze: Bronze, silver: Sequence[SilverKeys], own: Sequence[LakeTable]) -> None:
    """Raise LakeError if a table has features with which rows cannot be erased, or its history not ended."""
    rewritten = [bronze.changes, *own]
    for table in (each for each in (*rewritten, bronze.prepared) if each.exists()):
        snapshot = table.snapshot()
        has_vectors = any(add.get("deletionVector") for add in snapshot.files.values())
        if has_vectors or not table.writes_natively(snapshot, removes=True):
            raise LakeError(
                f"The table in {table.path} has deletion vectors or other features that pgdelta does not "
                "write without Spark. Remove them (REORG TABLE … APPLY (PURGE)), then run again."
            )
    for table in (*(each.table for each in silver), *rewritten[1:]):
        if table.exists() and (reason := why_not_endable(table.snapshot())) is not None:
            raise LakeError(
                f"The table in {table.path} has {reason}, so pgdelta forget cannot end its history. Nothing "
                "was erased."
            )


def check_rows(
    silver: Sequence[SilverKeys],
    keys: AbstractSet[str],
    given: AbstractSet[str],
    detached: Mapping[TableName, str],
) -> None:
    """Raise LakeError if a silver table still has a row with one of the keys, or may have one."""
    for table in silver:
        mode = table.registered.mode
        if (reason := detached.get(table.name)) is not None and (table.count(given) or table.count(keys)):
            raise LakeError(
                f"Silver table {table.name} still has a row with one of the keys. "
                f"{no_longer_followed(reason)} Delete the row in {table.table.path} by Spark or another "
                "writer of Delta, then run pgdelta forget again."
            )
        if mode != "mirror" and (table.count(given) or table.count(keys)):
            raise LakeError(
                f"Silver table {table.name} keeps rows that are gone, in mode {mode}, and has one of these "
                "keys. Set its mode to mirror and run pgdelta rebuild, then pgdelta forget again."
            )
        if table.count(given):
            raise LakeError(
                f"Silver table {table.name} still has a row with one of the keys. Delete the row at the "
                "source, run pgdelta ingest and pgdelta apply, then pgdelta forget again."
            )
        if table.count(keys):
            raise LakeError(
                f"A row of {table.name} had one of the keys before its key was changed, and silver still has "
                "it under another key: the row lives on. Delete it at the source, run pgdelta ingest and "
                "pgdelta apply, then pgdelta forget again."
            )


def check_pending(
    bronze: Bronze,
    history: CopyHistory,
    silver: Sequence[SilverKeys],
    manifest: Manifest | None,
    newest_lsn: int,
    prepared_rows: int,
    detached: Collection[TableName],
) -> None:
    """Raise LakeError if bronze has changes or copies of the table that silver does not show yet.

    A detached table gets no changes any more; `check_rows` finds what it has. `newest_lsn` is the greatest
    end LSN of the subject's changes; `prepared_rows` are those of its changes in transactions that are
    prepared and have not ended.
    """
    if prepared_rows:
        raise LakeError(
            "A prepared transaction has changes of one of the keys. Commit it or roll it back at the source. "
            + _APPLY_FIRST
        )
    for table in silver:
        name = table.name
        if name in detached:
            continue
        entry = manifest.by_name.get(name) if manifest else None
        newest = history.newest().get(name)
        if manifest is None or entry is None or entry.is_behind or manifest.lsn < newest_lsn:
            raise LakeError(
                f"Silver table {name} does not show all changes of bronze yet. {_APPLY_FIRST} If apply does "
                "not write the table, pgdelta plan says why."
            )
        if history.unfinished(name):
            raise LakeError(f"A copy of {name} is not complete. {_APPLY_FIRST}")
        applied = table.registered.copy_id or 0
        partial = history.partial_copies(name, newest)
        keys_id = table.table.offsets().get(str(bronze.txn.of(TxnKind.KEY_RANGES)), LSN(INVALID))
        if (newest and newest.id > applied) or any(int(copy.id) > keys_id for copy in partial):
            raise LakeError(f"A copy of {name} is not applied yet. {_APPLY_FIRST}")
