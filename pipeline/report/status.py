"""How a pipeline stands, as its lake says: how far each table is, why not further, and what did not fit.

The source is asked how its slot stands; where it does not answer, the lake is all there is to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone

from pyspark.sql import SparkSession

from pipeline.bronze.activity import Activity, read_activity
from pipeline.bronze.copy_history import CopyHistory
from pipeline.bronze.copy_states import DROPPED, READING
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.spark.session import start_session
from pipeline.delta.table import Lake
from pipeline.errors import SourceError
from pipeline.metadata.events import Event
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.metadata.reconciliations import Reconciliations
from pipeline.metadata.records import Records
from pipeline.metadata.status import FAILED, Failure, StatusTable
from pipeline.postgres.replication.slot_status import query_source
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.report.lag import lag_bytes, lag_seconds, wal_rate
from pipeline.report.status_page import HOLDING, Status, TableStatus
from pipeline.table_name import TableName


def read_status(config: Config, *, spark: SparkSession | None = None, is_offline: bool = False) -> Status:
    """Read how the pipeline stands; nothing is changed, and the source is asked unless `is_offline`."""
    source, unreachable = None, None
    if not is_offline:
        try:
            source = query_source(config)
        except SourceError as error:
            unreachable = str(error)
    lake = Lake(spark or start_session(f"pgdelta status {config.pipeline}"), config.storage.root)
    bronze, records = Bronze(lake, config.pipeline), Records(lake)
    point = bronze.captured_offset() if bronze.changes.exists() else None
    manifest = Manifests(lake).last() or Manifest(INVALID)
    failures = StatusTable(lake).failures()
    tables = [
        _failed(table, failures.get(table.name)) for table in read_tables(config, bronze, records, manifest)
    ]
    captured = point.lsn if point else INVALID
    now = source.now if source else datetime.now(timezone.utc)
    positions = {table.applied for table in tables}
    activity = read_activity(bronze, point, positions, now) if point else Activity()
    end = source.wal_lsn if source else captured
    return Status(
        config.pipeline,
        captured,
        manifest.lsn,
        manifest.commit_time,
        tuple(
            replace(
                with_lag(table, manifest, activity.commit_times, end, now),
                operations=activity.operations.get(table.name, {}),
            )
            for table in tables
        ),
        config.source.slot,
        source,
        unreachable,
        wal_rate(activity.since, source) if source else None,
    )


def with_lag(
    table: TableStatus, manifest: Manifest, times: Mapping[LSN, datetime], end: LSN, now: datetime
) -> TableStatus:
    """Return the table with how far it is behind an end; one that silver does not follow has no lag."""
    if table.applied == INVALID:
        return table
    commit_time = times.get(table.applied)
    if table.applied == manifest.lsn and manifest.commit_time is not None:
        commit_time = manifest.commit_time.astimezone(timezone.utc)
    seconds = lag_seconds(table.applied, end, commit_time, now)
    size = lag_bytes(table.applied, end)
    return replace(table, commit_time=commit_time, lag_seconds=seconds, lag_bytes=size)


def read_tables(
    config: Config, bronze: Bronze, records: Records, manifest: Manifest
) -> tuple[TableStatus, ...]:
    """Read how the tables stand that are in the manifest, are being copied, or were there once."""
    misfits, events = records.misfits.counts(), records.events.newest()
    found = {entry.name: _table(entry, misfits, events) for entry in manifest.entries}
    registered = records.tables.read()
    copies = bronze.copies.read()
    for name in copies.states.keys() | copies.open_requests().keys() | events.keys():
        # What holds the copy of a table that silver has not got yet.
        event = events.get(name) if name not in registered else None
        if config.rule_for(name) is None:
            continue
        if (copying := _copying(bronze, copies, name, found.get(name), event)) is not None:
            found[name] = copying
    for name, table in registered.items():
        if name not in found:
            sentence = events[name].sentence if name in events else f"it is kept in {table.path}"
            found[name] = TableStatus(name, "left", INVALID, -1, misfits.get(name, {}), sentence)
    verified = Reconciliations(bronze.lake).verified()
    return tuple(replace(found[name], verified=verified.get(name)) for name in sorted(found))


def _copying(
    bronze: Bronze, copies: CopyHistory, name: TableName, shown: TableStatus | None, event: Event | None
) -> TableStatus | None:
    """Return what there is to say of a table's copy, None where silver shows the newest."""
    last = copies.last(name)
    before = shown or TableStatus(name, "copying", INVALID, -1, {})
    held = None
    if event is not None and event.kind in HOLDING:
        held = replace(before, state=event.kind, sentence=event.sentence)
    if last is not None and last.state == DROPPED:
        return replace(shown, state="left", sentence=last.sentence) if shown else None
    if last is not None and last.state == READING:
        done = int(bronze.changes.offset(bronze.copy_txn(last.id)) or 0)
        if held is not None and done == 0:
            return held
        share = f"{done} of {last.snapshots[-1].range_count} ranges of pages are copied"
        state = shown.state if shown and shown.state in HOLDING else "copying"
        return replace(before, state=state, sentence=share)
    if requests := copies.open_requests().get(name):
        is_whole = not all(request.key_ranges for request in requests)
        what = "the table is" if is_whole else "rows, for which it waits, are"
        return replace(before, sentence=f"{what} to be copied anew by the next ingest")
    return held if shown is None else None


def _failed(table: TableStatus, failure: Failure | None) -> TableStatus:
    """Return the table as one that failed where it did in the last pass, and nothing came of it since."""
    if failure is None or table.state not in (*HOLDING, "behind") or failure.applied != table.applied:
        return table
    return replace(table, state=FAILED, sentence=failure.sentence)


def _table(
    entry: ManifestEntry, misfits: dict[TableName, dict[str, int]], events: dict[TableName, Event]
) -> TableStatus:
    event = events.get(entry.name)
    state = "current"
    if entry.is_behind:
        state = event.kind if event and event.kind in HOLDING else "behind"
    sentence = event.sentence if event else None
    return TableStatus(
        entry.name, state, entry.applied_lsn, entry.version, misfits.get(entry.name, {}), sentence
    )
