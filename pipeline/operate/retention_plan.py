"""Plan up to which LSN the changes of each table may be compacted. Pure.

Bronze keeps what is younger than the retention, and what a silver table, a copy or a rebuild still needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from pipeline.bronze.copy_states import DROPPED, CompleteCopy, CopyHistory
from pipeline.bronze.source_relations import SourceRelation
from pipeline.metadata.manifests import Manifest
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.write.base_rows import BaseInput
from pipeline.table_name import TableName

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_RUNS = 10  # within a retention: each run reads all that is left of the older changes


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What to compact: the tables, and for each other one the reason why it keeps all its changes.

    Logical messages go up to `messages_lsn`.
    """

    messages_lsn: LSN = INVALID
    tables: tuple[BaseInput, ...] = ()
    kept: Mapping[TableName, str] = field(default_factory=dict)

    @property
    def end_lsn(self) -> LSN:
        """The LSN beyond which nothing is compacted."""
        return LSN(max(self.messages_lsn, *(table.end_lsn for table in self.tables), INVALID))


@dataclass(frozen=True, slots=True)
class Retentions:
    """How long what bronze has is kept, in seconds, None for ever.

    `of` is for the changes of a table, `messages` for logical messages; no table has less than `shortest`.
    """

    of: Callable[[TableName], int | None]
    messages: int | None
    shortest: int


@dataclass(frozen=True, slots=True)
class LakeRecords:
    """What the lake records of its tables, as of one read."""

    manifest: Manifest
    history: CopyHistory
    registered: Collection[TableName]
    relations: Iterable[SourceRelation]
    bases: Mapping[TableName, LSN]
    with_past: Collection[TableName] = ()  # tables that silver builds from every change


def is_due(retention: timedelta, last: datetime | None, now: datetime) -> bool:
    """Return whether a tenth of the retention has passed since the last run."""
    return last is None or now - last >= retention / _RUNS


def is_in_run(retention: timedelta, last: datetime | None, now: datetime) -> bool:
    """Return whether tables of a retention are compacted by a run that a shorter one makes due.

    Time is divided into tenths of the retention: they are if one has ended since the last run.
    """
    if last is None:
        return True
    tenth = retention / _RUNS
    return (now - _EPOCH) // tenth > (last - _EPOCH) // tenth


def last_expired(manifests: Iterable[tuple[LSN, datetime]], retention: timedelta, now: datetime) -> LSN:
    """Return the LSN up to which silver was complete a retention ago, INVALID if that is not known.

    `manifests` are the LSNs of manifests with the times at which they were written.
    """
    return LSN(max((lsn for lsn, written_at in manifests if written_at <= now - retention), default=INVALID))


def plan_retention(
    end_lsn_of: Callable[[TableName], LSN], records: LakeRecords, messages_lsn: LSN = INVALID
) -> RetentionPlan:
    """Return the tables to compact up to their LSN, or up to what silver has of them if that is less.

    A table whose LSN is INVALID is not compacted now.
    """
    relations = list(records.relations)
    names: dict[int, set[TableName]] = {}
    first_lsns: dict[TableName, LSN] = {}
    for relation in relations:
        names.setdefault(relation.oid, set()).add(relation.name)
        first_lsns[relation.name] = LSN(min(relation.lsn, first_lsns.get(relation.name, relation.lsn)))
    renamed = {name for found in names.values() if len(found) > 1 for name in found}
    tables: list[BaseInput] = []
    kept: dict[TableName, str] = {}
    for name, first_lsn in sorted(first_lsns.items()):
        end_lsn = end_lsn_of(name)
        if end_lsn == INVALID or first_lsn > end_lsn:
            continue
        found = _plan_table(len(tables), name, end_lsn, records, has_other_names=name in renamed)
        if isinstance(found, str):
            kept[name] = found
        elif found.end_lsn >= records.bases.get(name, INVALID):
            tables.append(found)
    return RetentionPlan(messages_lsn, tuple(tables), kept)


def _plan_table(
    number: int, name: TableName, end_lsn: LSN, records: LakeRecords, *, has_other_names: bool
) -> BaseInput | str:
    """Return the input of a table's base, or why it has none."""
    history, manifest = records.history, records.manifest
    last = history.last(name)
    if last is not None and last.state == DROPPED:
        if name in records.registered:
            return "it is not published any more, and silver still has it"
        if last.dropped_at > end_lsn:
            return "it left the publication within the retention"
        return BaseInput(number, name, end_lsn, is_gone=True)
    if name in records.with_past:
        return "its mode or rule keeps rows that are gone"
    if history.unfinished(name):
        return "a copy of it is not complete"
    entry = manifest.by_name.get(name)
    if entry is None and name in records.registered:
        return "silver does not show it"
    if entry is not None:  # also of a table that silver is about to begin
        end_lsn = min(end_lsn, entry.applied_lsn if entry.is_behind else manifest.lsn)
    newest = history.newest(end_lsn)
    copy = newest.get(name)
    if name in history.returning(newest, end_lsn) or (copy is None and history.gaps):
        return "it waits for a copy"
    partial = tuple(each for each in history.partial_copies(name, copy) if each.lsn <= end_lsn)
    if any(each.end_lsn >= end_lsn for each in partial):
        return "some of its keys were being copied again at that time"
    if partial and _is_copied_since(history, name, partial[0]):
        return "all its rows were copied after some of its keys, within the retention"
    return BaseInput(number, name, end_lsn, copy, has_other_names=has_other_names, partial_copies=partial)


def _is_copied_since(history: CopyHistory, name: TableName, keys: CompleteCopy) -> bool:
    """Return whether all rows were copied after a copy of keys, or will be: silver may lack the keys."""
    newest = history.newest().get(name)
    requests = history.open_requests.get(name, ())
    return (newest is not None and newest.id > keys.id) or not all(each.key_ranges for each in requests)
