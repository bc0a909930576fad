"""Erase all that the lake has of one subject, by the key of its rows in one table.

The source has deleted the row, and silver shows that. Bronze, old versions of silver, misfits, recorded
differences, requests and the bounds in Delta's logs still have its values. Rows are erased first, from
bronze last, then the history of each table that had them is ended, and at last everything that remains is
searched. Each step can be run again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.bronze.erasures import FORGET, ErasureLog, erasures_in
from pipeline.bronze.log import Bronze
from pipeline.bronze.rewritten_files import read_changes
from pipeline.bronze.staged_files import remove_dead_runs
from pipeline.config.config import Config
from pipeline.crash_steps import ForgetStep, crash_step
from pipeline.delta.ended_history import (
    RemovedFiles,
    cut_log,
    empty_folders,
    old_files,
    remove_old_files,
)
from pipeline.delta.fence import fence_of
from pipeline.delta.filesystem import remove_folder
from pipeline.delta.locks import claim_table, lock_apply
from pipeline.delta.log import commit_info, user_metadata_of
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.store.mirror import fetch, mirror_at
from pipeline.delta.table import Lake, LakeTable, path_segment
from pipeline.errors import ConfigError, LakeError, SlotBusyError
from pipeline.forget.bronze_rows import ErasedRows, count_rows, erase_rows, find_keys
from pipeline.forget.intent import Intent, Intents
from pipeline.forget.plan import (
    SilverKeys,
    check_pending,
    check_rows,
    check_tables,
    find_silver_tables,
)
from pipeline.forget.receipt import ForgetReceipt, PlaceReceipt
from pipeline.forget.records import (
    RecordPlace,
    check_requests,
    count_records,
    erase_records,
    record_places,
)
from pipeline.metadata.manifests import Manifest, Manifests
from pipeline.metadata.registry import Records
from pipeline.postgres.connection import connect
from pipeline.postgres.replication.slot_lock import lock_slot
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.reading.row_keys import ForgottenTable, SubjectRows, find_table, plan_table
from pipeline.silver.lake_facts import detached_tables
from pipeline.silver.read.missing_tables import no_match
from pipeline.silver.read.versions import manifest_entry
from pipeline.silver.write.shared_tables import SharedTable, refresh_shared
from pipeline.table_name import TableName
from pipeline.units import format_count

_BUSY_SECONDS = 5.0  # the server may take a while to notice that a session ended
_CHANGES, _PREPARED = "bronze/changes", "bronze/prepared"


def run_forget(
    config: Config,
    glob: str,
    keys: Sequence[Sequence[str]],
    *,
    is_dry_run: bool = False,
) -> ForgetReceipt:
    """Erase the keys, each given by the texts of its columns, of the table that a glob names.

    With `is_dry_run` nothing is changed, and the receipt has what would be erased. Raises ConfigError for a
    glob that names no or several tables, and for keys that are none of the table; LakeError if keys cannot
    be erased, or a job is running.
    """
    lake = Lake.for_writing(config.storage, application=f"pgdelta forget {config.pipeline}")
    if lake.working_root is None:
        raise LakeError(
            "pgdelta forget needs a lake on a file system of this machine or on an object store, and "
            f"{lake.root} is on other storage. Erase the rows there by Spark, and end the tables' histories."
        )
    bronze = Bronze(lake, config.pipeline)
    if bronze.captured_offset() is None:
        raise no_match(lake, config, [glob])
    with _stopped_jobs(config, lake):
        forgetting = _Forgetting(config, bronze, find_table(config, bronze, glob))
        return forgetting.run(keys, is_dry_run=is_dry_run)


@contextmanager
def _stopped_jobs(config: Config, lake: Lake) -> Iterator[None]:
    """Hold the locks of both jobs; raise LakeError if one is running."""
    conninfo = config.source.conninfo
    with lock_apply(lake, config.pipeline), connect(conninfo, application_name="pgdelta forget") as source:
        try:
            lock_slot(source, config.source.slot, busy_timeout=_BUSY_SECONDS)
        except SlotBusyError:
            raise LakeError(
                f"An ingest of the slot {config.source.slot} is running. Stop it, or wait until it ends, "
                "then run pgdelta forget again."
            ) from None
        yield


@dataclass(frozen=True, slots=True)
class _Work:
    """What is erased, and from where."""

    intent: Intent
    given: int  # how many keys were given
    subject: SubjectRows
    silver: list[SilverKeys]
    records: list[RecordPlace]
    manifest: Manifest | None


class _Forgetting:
    """One run, with the locks of both jobs held."""

    def __init__(self, config: Config, bronze: Bronze, name: TableName) -> None:
        self._config = config
        self._bronze = bronze
        self._lake = bronze.lake
        self._root = Path(bronze.lake.working_root or "")
        self._intents = Intents(str(self._root))
        self._manifests = Manifests(self._lake)
        self._unreadable: set[Path] = set()
        self._table = plan_table(name, bronze.source_relations().values())

    def run(self, keys: Sequence[Sequence[str]], *, is_dry_run: bool) -> ForgetReceipt:
        keys = self._table.hashed(keys, self._config.source.hash_key)
        work = self._plan(keys)
        found = count_rows(self._bronze.changes, work.subject)
        self._check(work, keys, found)
        work.intent.commit_lsns |= found.commit_lsns
        work = replace(work, records=self._record_places(work.intent))
        if is_dry_run:
            return self._receipt(work, self._count(work, found), is_dry_run=True)
        with crash_step(ForgetStep.RECORD_INTENT):
            self._intents.write(work.intent)
        keeps_versions = self._intents.keeps_versions(work.intent)
        places = self._erase(work)
        proven = self._prove(work)
        receipt = self._receipt(work, places)
        receipt = replace(receipt, files_searched=proven, keeps_versions=keeps_versions)
        with crash_step(ForgetStep.RECORD_RECEIPT):
            self._record(work.intent, receipt)
        with crash_step(ForgetStep.REMOVE_INTENT):
            self._intents.remove()
        return receipt

    def _plan(self, keys: Sequence[Sequence[str]]) -> _Work:
        given = _parse_keys(self._table, keys)
        intent = self._intents.read(self._table.name)
        intent.keys |= find_keys(self._bronze, self._table, [*given, *intent.keys])
        silver = find_silver_tables(self._bronze, Records(self._lake).tables.read(), self._table)
        names = frozenset(tuple(table.columns) for table in silver)
        self._table = replace(self._table, key_names=self._table.key_names | names)
        subject = SubjectRows(self._table, intent.keys)
        return _Work(intent, len(given), subject, silver, [], self._manifests.last())

    def _record_places(self, intent: Intent) -> list[RecordPlace]:
        copies = self._bronze.copies.table
        return record_places(self._lake, copies, self._table, intent.keys, intent.commit_lsns)

    def _check(self, work: _Work, keys: Sequence[Sequence[str]], found: ErasedRows) -> None:
        own = [place.table for place in self._record_places(work.intent)]
        check_tables(self._bronze, work.silver, own)
        prepared = count_rows(self._bronze.prepared, work.subject).rows
        history = self._bronze.copies.read()
        newest = max([*found.changes, *found.commit_lsns], default=INVALID)
        names, end = [table.name for table in work.silver], self._bronze.require_offset()
        detached = detached_tables(self._config, history, names, end)
        check_pending(self._bronze, history, work.silver, work.manifest, newest, prepared, detached)
        check_rows(work.silver, work.intent.keys, set(_parse_keys(self._table, keys)), detached)
        check_requests(history, self._table, work.intent.keys)

    def _count(self, work: _Work, found: ErasedRows) -> list[PlaceReceipt]:
        """Return what would be erased."""
        places = [PlaceReceipt(_CHANGES, found.rows, found.files)]
        places += [PlaceReceipt(place.name, count_records(place)) for place in work.records]
        tables = dict(self._tables(work))
        for n, place in enumerate(places):
            old = [file.size for file in old_files(tables[place.place], log_too=False)]
            places[n] = replace(place, files_removed=len(old), byte_count=sum(old))
        for silver in work.silver:
            old = [file.size for file in old_files(silver.table, log_too=False)]
            places.append(PlaceReceipt(_silver_name(silver), 0, 0, len(old), sum(old)))
        return places

    def _tables(self, work: _Work) -> Iterator[tuple[str, LakeTable]]:
        yield _CHANGES, self._bronze.changes
        yield from ((place.name, place.table) for place in work.records)

    def _erase(self, work: _Work) -> list[PlaceReceipt]:
        places = []
        for place in work.records:
            with crash_step(ForgetStep.ERASE_RECORDS):
                erase = partial(erase_records, place, work.intent.id)
                rows, files, _ = retry_conflicts(erase)
            places.append(PlaceReceipt(place.name, rows, files))
        with crash_step(ForgetStep.ERASE_BRONZE):
            found = retry_conflicts(lambda: erase_rows(self._bronze, work.subject, work.intent.id))
        places.insert(0, PlaceReceipt(_CHANGES, found.rows, found.files))
        self._remove_dead_folders()
        tables = dict(self._tables(work))
        for n, receipt in enumerate(places):
            must_go = partial(self._has_keys, work, receipt.place)
            removed = self._end(tables[receipt.place], must_go, cuts=receipt.place != _CHANGES)
            places[n] = receipt.with_removed(removed)
        if self._bronze.prepared.exists():
            must_go = partial(self._has_keys, work, _PREPARED)
            removed = self._end(self._bronze.prepared, must_go)
            places.append(PlaceReceipt(_PREPARED).with_removed(removed))
        for silver in work.silver:
            places.append(self._end_silver(work, silver))
        self._record_manifest(work)
        return places

    def _end_silver(self, work: _Work, silver: SilverKeys) -> PlaceReceipt:
        table = silver.table
        claim_table(table)
        if any(add.get("deletionVector") for add in table.snapshot().files.values()):
            # rows that a deletion vector marks are still in their file
            table.run(f"REORG TABLE {table.identifier} APPLY (PURGE)", FORGET)
        name = _silver_name(silver)
        if not refresh_shared(table):
            raise LakeError(
                f"The shared table of {silver.name} does not show its newest rows, so its history cannot end."
                " Run pgdelta apply, then pgdelta forget again."
            )
        removed = self._end(table, partial(self._has_keys, work, name))
        if (shared := SharedTable.of(table)) is not None:  # its log has the bounds of removed files
            cut_log(shared.table, {"operation": FORGET})
        return PlaceReceipt(name).with_removed(removed)

    def _end(self, table: LakeTable, must_go: partial[bool], *, cuts: bool = True) -> RemovedFiles:
        with crash_step(ForgetStep.END_HISTORY):
            if (fence := fence_of(table.path)) is not None:
                fence.lease.check()
            removed = remove_old_files(table, must_go)
            if cuts:
                cut_log(table, {"operation": FORGET})
            return removed

    def _has_keys(self, work: _Work, place: str, path: Path) -> bool:
        """Return whether a data file that no commit names has rows of the subject."""
        if path.suffix != ".parquet":
            return False
        try:
            fetch(str(path))
            return self._count_in_file(work, place, path) > 0
        except Exception:  # it may be half written
            self._unreadable.add(path)
            return False

    def _count_in_file(self, work: _Work, place: str, path: Path) -> int:
        if place in (_CHANGES, _PREPARED):
            groups = read_changes(str(path), SubjectRows.COLUMNS)
            return sum(work.subject.mask(rows).true_count for rows in groups)
        for record in work.records:
            if record.name == place:
                return record.transform(pq.read_table(path))[0]
        for silver in work.silver:
            if _silver_name(silver) == place:
                return silver.count_in_file(path, work.intent.keys)
        raise AssertionError(place)

    def _remove_dead_folders(self) -> None:
        """Remove what runs that ended left behind; nothing of it is needed."""
        remove_dead_runs(str(self._root))
        own = self._root / "_pgdelta"
        if (mirror := mirror_at(self._lake.root)) is not None:
            mirror.store.remove_unfinished()
            rebuilds = [("rebuilds", *name) for name in self._table.names]
            for names in (("checkpoints",), ("reconcile",), *rebuilds):
                remove_folder(self._lake.sessions, self._lake.path("_pgdelta", *names))
            return
        for name in ("checkpoints", "reconcile"):
            shutil.rmtree(own / name, ignore_errors=True)
        for schema, table in self._table.names:
            rebuilt = own / "rebuilds" / path_segment(schema) / path_segment(table)
            shutil.rmtree(rebuilt, ignore_errors=True)

    def _record_manifest(self, work: _Work) -> None:
        """Record the versions that silver has now: those of earlier manifests are gone."""
        manifest = self._manifests.last()
        if manifest is None:
            return
        for silver in work.silver:
            entry = manifest.by_name.get(silver.name)
            if entry is not None:
                txn = self._bronze.txn
                now = manifest_entry(
                    silver.table, silver.name, entry.applied_lsn, txn, is_behind=entry.is_behind
                )
                manifest = manifest.with_entry(now)
        if manifest != work.manifest:
            self._manifests.record(manifest)

    def _prove(self, work: _Work) -> int:
        """Search everything that remains, and return how many files were read.

        Raises LakeError if a row of the subject, or a file of an old version, is still there.
        """
        self._unreadable.clear()
        rows = count_rows(self._bronze.changes, work.subject).rows
        rows += count_rows(self._bronze.prepared, work.subject).rows
        rows += sum(count_records(place) for place in work.records)
        rows += sum(silver.count(work.intent.keys) for silver in work.silver)
        tables = [*self._tables(work), *((_silver_name(each), each.table) for each in work.silver)]
        if self._bronze.prepared.exists():
            tables.append((_PREPARED, self._bronze.prepared))
        files = left = 0
        for name, table in tables:
            files += table.snapshot().file_count
            left += len(empty_folders(table.folder))  # of partitions, whose names have values
            for path in (file.path for file in old_files(table, log_too=name != _CHANGES)):
                files += 1
                is_log = "_delta_log" in path.parts
                left += is_log or self._has_keys(work, name, path)
        if rows or left or self._unreadable:
            raise LakeError(
                f"The keys are not erased: they are still in {format_count(rows, 'row')} and "
                f"{format_count(left, 'old file')}, and "
                f"{format_count(len(self._unreadable), 'file')} that no commit names cannot be "
                "read. End pgdelta optimize "
                "and other writers, wait an hour, and run pgdelta forget again with the same keys."
            )
        return files

    def _receipt(
        self, work: _Work, places: Sequence[PlaceReceipt], *, is_dry_run: bool = False
    ) -> ForgetReceipt:
        lsn = work.manifest.lsn if work.manifest else LSN(INVALID)
        counts = (work.given, len(work.intent.keys))
        return ForgetReceipt(self._bronze.pipeline, self._table.name, *counts, tuple(places), lsn, is_dry_run)

    def _record(self, intent: Intent, receipt: ForgetReceipt) -> None:
        erasures = ErasureLog(self._lake)
        if erasures.is_recorded(intent.id):
            return
        metadata = (
            user_metadata_of(commit_info(actions))
            for _, actions in self._bronze.changes.actions_after(-1, is_whole=False)
        )
        found = erasures_in(each for each in metadata if each.get("forget_id") == intent.id)
        erasures.record(
            {
                "forget_id": intent.id,
                "schema_name": self._table.name.schema,
                "table_name": self._table.name.table,
                "places": [place.as_row() for place in receipt.places],
                "copies": [{"copy_id": copy, "rows": rows} for copy, rows in sorted(found.copies.items())],
                "as_of_lsn": int(receipt.as_of_lsn),
            }
        )


def _silver_name(silver: SilverKeys) -> str:
    return f"silver {silver.name}"


def _parse_keys(table: ForgottenTable, keys: Sequence[Sequence[str]]) -> list[str]:
    """Return the keys; raise ConfigError for those that have other columns or types."""
    if not keys:
        raise ConfigError("pgdelta forget needs --key, with a value for each column of the key.")
    return [table.parse_key(texts, "--key") for texts in keys]
