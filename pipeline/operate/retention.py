"""Compact what bronze has of changes older than `bronze.retention`, as a step of `pgdelta maintain`.

The base of a table is an LSN. Up to it, bronze keeps at most one change or copied row for each row that the
table had at that LSN. Files with other changes are rewritten in one commit, which readers that follow
`changes` skip. The bases and the remaining row count of each copy are recorded before that commit. They
hold for the rows before it, too, so a run may end at any step and the next one continues. Jobs may run
meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.bases import RETENTION, Base
from pipeline.bronze.copies import CopyRow, complete_row
from pipeline.bronze.copy_states import COMPLETE, CopyHistory
from pipeline.bronze.log import Bronze
from pipeline.bronze.merge import sort_changes
from pipeline.bronze.rewritten_files import read_changes, replace_files, write_changes
from pipeline.bronze.schema import CHANGES
from pipeline.bronze.staged_files import RETENTION_FOLDER, StagingFolder
from pipeline.crash_steps import RetentionStep, crash_step
from pipeline.delta.data_files import DataFile
from pipeline.delta.native_commit import removing_uncommitted
from pipeline.delta.native_write import find_unsupported
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.table_log import Snapshot, data_file
from pipeline.errors import LakeError
from pipeline.forget.intent import Intents
from pipeline.metadata.manifests import Manifests
from pipeline.metadata.registry import Records
from pipeline.operate.retention_plan import (
    LakeRecords,
    RetentionPlan,
    Retentions,
    is_due,
    is_in_run,
    last_expired,
    plan_retention,
)
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.write.base_rows import LOADED_COLUMNS, BaseCounts, BaseInput, BaseRows, NotCompacted
from pipeline.table_name import TableName
from pipeline.units import format_count

_RAW = ("raw_old", "raw_new")
_READ = (*LOADED_COLUMNS, "schema_name", "table_name", *_RAW)


@dataclass(frozen=True, slots=True)
class TableBase:
    """What became of one table: its base and how many rows went, or why it keeps all its changes."""

    table: str
    lsn: str | None = None
    removed_rows: int = 0
    kept: str | None = None


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a run compacted: tables that changed or could not, logical messages, and files of `changes`."""

    tables: tuple[TableBase, ...] = ()
    removed_messages: int = 0
    removed_files: int = 0
    added_files: int = 0

    @property
    def removed_rows(self) -> int:
        """How many rows were removed in all."""
        return self.removed_messages + sum(table.removed_rows for table in self.tables)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "tables": [asdict(table) for table in self.tables]}

    def lines(self) -> Iterator[str]:
        """Yield sentences for people."""
        if self.removed_rows:
            yield (
                f"bronze: {format_count(self.removed_rows, 'row')} older than bronze.retention removed, "
                f"{format_count(self.removed_files, 'file')} written again as {self.added_files}"
            )
        for table in self.tables:
            if table.kept:
                yield f"{table.table} keeps all its changes: {table.kept}"
            elif table.removed_rows:
                yield (
                    f"{table.table}: {format_count(table.removed_rows, 'row')} removed, complete "
                    f"from {table.lsn} on"
                )


@dataclass(slots=True)
class _Chosen:
    """What was decided for the rows of one version of `changes`."""

    adds: Sequence[Mapping[str, Any]]
    counts: dict[BaseInput, BaseCounts] = field(default_factory=dict)
    kept: dict[TableName, str] = field(default_factory=dict)
    messages: dict[int, list[int]] = field(default_factory=dict)  # places of a file's messages that go


def compact_bronze(
    bronze: Bronze,
    retentions: Retentions,
    now: datetime,
    *,
    dry_run: bool = False,
    keeps_past: Callable[[TableName], bool] = lambda name: False,
) -> Compaction:
    """Compact the changes that are older than their retention, unless a run did so recently.

    Tables for which `keeps_past` is true keep all their changes: silver is built from every one of them.
    With `dry_run` nothing is written to the lake's tables. Raises LakeError if the lake is not on a file
    system of this machine, or a forget has not ended.
    """
    last = bronze.bases.read().recorded_at
    if not is_due(timedelta(seconds=retentions.shortest), last, now):
        return Compaction()
    return retry_conflicts(lambda: _compact(bronze, retentions, last, now, keeps_past, dry_run=dry_run))


def _compact(
    bronze: Bronze,
    retentions: Retentions,
    last: datetime | None,
    now: datetime,
    keeps_past: Callable[[TableName], bool],
    *,
    dry_run: bool,
) -> Compaction:
    if bronze.lake.working_root is None:
        raise LakeError(
            "bronze.retention needs a lake on a file system of this machine or on an object store, and "
            f"{bronze.lake.root} is on other storage. Set bronze.retention to forever."
        )
    plan = _plan(bronze, retentions, last, now, keeps_past)
    if plan is None:
        return Compaction()
    if Intents(bronze.lake.working_root).has_any():
        raise LakeError("A run of pgdelta forget has not ended. Run it again with its keys first.")
    history, snapshot = bronze.copies.read(), bronze.changes.snapshot()
    if any(add.get("deletionVector") for add in snapshot.files.values()):
        raise LakeError(
            f"{bronze.changes.path} has deletion vectors, which pgdelta never writes there. Run OPTIMIZE on "
            "it, then pgdelta maintain again."
        )
    if (feature := find_unsupported(snapshot, removes=True)) is not None:
        raise LakeError(
            f"{bronze.changes.path} has {feature}, which only Spark writes, so bronze.retention cannot "
            "shorten it. Remove it from the table, then run pgdelta maintain again."
        )
    with closing(StagingFolder(bronze.lake, RETENTION_FOLDER)) as folder:
        rows = BaseRows(folder.path, bronze.source_relations())
        with closing(rows):
            chosen = _choose(bronze, plan, snapshot, rows)
            changed = sorted({*rows.changed_files(), *chosen.messages})
            found = _result(chosen, len(changed))
            if dry_run:
                return found
            with crash_step(RetentionStep.RECORD_BASES):
                bronze.bases.record(plan.messages_lsn, _bases(chosen), found.removed_messages)
            if not changed:
                return found
            with crash_step(RetentionStep.RECORD_COPIES):
                _record_copies(bronze, history, chosen)
            with crash_step(RetentionStep.COMPACT_CHANGES):
                added = _commit(bronze, snapshot, changed, chosen, rows, found)
    return replace(found, added_files=added)


def _plan(
    bronze: Bronze,
    retentions: Retentions,
    last: datetime | None,
    now: datetime,
    keeps_past: Callable[[TableName], bool],
) -> RetentionPlan | None:
    """Return what to compact, None if silver showed nothing the shortest retention ago."""
    manifests = Manifests(bronze.lake)
    written = list(manifests.written())

    @cache
    def end_lsn(seconds: int | None) -> LSN:
        if seconds is None or not is_in_run(timedelta(seconds=seconds), last, now):
            return INVALID
        return last_expired(written, timedelta(seconds=seconds), now)

    manifest = manifests.last()
    if manifest is None or last_expired(written, timedelta(seconds=retentions.shortest), now) == INVALID:
        return None
    relations = bronze.source_relations().values()
    records = LakeRecords(
        manifest,
        bronze.copies.read(),
        Records(bronze.lake).tables.read(),
        relations,
        {name: base.lsn for name, base in bronze.bases.read().tables.items()},
        {relation.name for relation in relations if keeps_past(relation.name)},
    )
    return plan_retention(lambda name: end_lsn(retentions.of(name)), records, end_lsn(retentions.messages))


def _choose(bronze: Bronze, plan: RetentionPlan, snapshot: Snapshot, rows: BaseRows) -> _Chosen:
    chosen = _Chosen(list(snapshot.files.values()), kept=dict(plan.kept))
    tables = {table.name: table for table in plan.tables}
    assert bronze.changes.local_path is not None
    for number, add in enumerate(chosen.adds):
        if _least_lsn(add) > plan.end_lsn:
            continue
        place = 0
        for found in read_changes(data_file(bronze.changes.local_path, add["path"]), _READ):
            _load(found, number, place, tables, plan, rows, chosen)
            place += found.num_rows
    for table in plan.tables:
        try:
            counts = rows.compact(table)
        except NotCompacted as reason:
            chosen.kept[table.name] = str(reason)
            continue
        if counts.removed:
            chosen.counts[table] = counts
    return chosen


def _load(
    found: pa.Table,
    number: int,
    first: int,
    tables: Mapping[TableName, BaseInput],
    plan: RetentionPlan,
    rows: BaseRows,
    chosen: _Chosen,
) -> None:
    """Load what a row group has of the tables up to the plan's LSN, and record the messages that go."""
    places = pa.array(range(first, first + found.num_rows), pa.int64())
    is_old = pc.less_equal(found.column("end_lsn"), int(plan.end_lsn))
    is_copied, is_message = (pc.equal(found.column("op"), op) for op in ("R", "M"))
    goes = pc.and_(is_message, pc.less_equal(found.column("end_lsn"), int(plan.messages_lsn)))
    if messages := places.filter(goes.combine_chunks()).to_pylist():
        chosen.messages.setdefault(number, []).extend(messages)
    names = zip(*(found.column(n).to_pylist() for n in ("schema_name", "table_name")), strict=True)
    numbers = pa.array([_number(tables, schema, table) for schema, table in names], pa.int32())
    is_raw = pc.or_(*(pc.is_valid(found.column(name)) for name in _RAW))
    found = found.select(LOADED_COLUMNS)
    for name, column in (("table_number", numbers), ("place", places), ("is_raw", is_raw)):
        found = found.append_column(name, column)
    found = found.append_column("file", pa.repeat(pa.scalar(number, pa.int32()), found.num_rows))
    wanted = pc.and_(pc.or_(is_copied, is_old), pc.and_(pc.is_valid(numbers), pc.invert(is_message)))
    found = found.filter(wanted)
    if found.num_rows:
        rows.load(found)


def _number(tables: Mapping[TableName, BaseInput], schema: str | None, table: str | None) -> int | None:
    found = tables.get(TableName(schema or "", table or ""))
    return None if found is None else found.number


def _least_lsn(add: Mapping[str, Any]) -> int:
    statistics = json.loads(add.get("stats") or "{}")
    return int((statistics.get("minValues") or {}).get("end_lsn", 0))


def _result(chosen: _Chosen, file_count: int) -> Compaction:
    tables = [
        TableBase(str(table.name), str(table.end_lsn), counts.removed)
        for table, counts in chosen.counts.items()
    ]
    tables += [TableBase(str(name), kept=reason) for name, reason in sorted(chosen.kept.items())]
    return Compaction(tuple(tables), sum(map(len, chosen.messages.values())), file_count)


def _bases(chosen: _Chosen) -> list[Base]:
    found = []
    for table, counts in chosen.counts.items():
        copy = table.copy
        copied = counts.copied.get(copy.id, 0) if copy else 0
        found.append(Base(table.name, table.end_lsn, copy.id if copy else None, copied, counts.removed))
    return found


def _record_copies(bronze: Bronze, history: CopyHistory, chosen: _Chosen) -> None:
    """Record how many rows of complete copies stay: a rebuild needs no more."""
    rows: list[CopyRow] = []
    for table, counts in chosen.counts.items():
        for state in history.states.get(table.name, ()):
            left = counts.copied.get(state.id)
            if state.state == COMPLETE and left is not None and left < state.row_count:
                rows.append(complete_row(replace(state, row_count=left), state.invisible_commits))
    if rows:
        bronze.copies.record(rows)


def _commit(
    bronze: Bronze,
    snapshot: Snapshot,
    changed: Sequence[int],
    chosen: _Chosen,
    rows: BaseRows,
    found: Compaction,
) -> int:
    """Replace the files that change by new ones in one commit, and return how many there are."""
    table = bronze.changes
    files: list[DataFile] = []
    with removing_uncommitted(table.folder, snapshot.version, files):
        for number in changed:
            files += write_changes(table.folder, _remaining(bronze, number, chosen, rows))
        replaced = [chosen.adds[number] for number in changed]
        metadata = {"operation": RETENTION, "removed": found.removed_rows}
        replace_files(table, snapshot, replaced, files, found.removed_rows, metadata)
    return len(files)


def _remaining(bronze: Bronze, number: int, chosen: _Chosen, rows: BaseRows) -> Iterator[pa.Table]:
    """Yield what stays of a file, a row group at a time."""
    assert bronze.changes.local_path is not None
    gone = np.concatenate([rows.removed_places(number), np.array(chosen.messages.get(number, []), np.int64)])
    replaced = rows.replaced_rows(number)
    replaced_places = replaced.column("place").to_numpy()
    first = 0
    for group in read_changes(
        data_file(bronze.changes.local_path, chosen.adds[number]["path"]), CHANGES.names
    ):
        end = first + group.num_rows
        stays = np.ones(group.num_rows, bool)
        stays[gone[(gone >= first) & (gone < end)] - first] = False
        here = (replaced_places >= first) & (replaced_places < end)
        stays[replaced_places[here] - first] = False
        written = group.filter(pa.array(stays))
        if here.any():
            changed = group.take(pa.array(replaced_places[here] - first))
            written = pa.concat_tables([written, _replace(changed, replaced.filter(pa.array(here)))])
        yield sort_changes(written)
        first = end


def _replace(group: pa.Table, values: pa.Table) -> pa.Table:
    """Return changes with other values, as changes that have no old row."""
    for name in ("op", "new", "unsent", "old_kind", "old"):
        kind = CHANGES.field(name).type
        column = values.column(name).cast(kind) if name in values.column_names else None
        if column is None:
            column = pa.nulls(group.num_rows, kind)
        group = group.set_column(CHANGES.get_field_index(name), CHANGES.field(name), column)
    return group
