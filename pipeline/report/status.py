"""Read the status of a pipeline from its lake and its source: how far each table is, and why not further.

Nothing is changed. The source is read if it answers within seconds; the lake is enough without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipeline.bronze.activity import Activity, read_activity
from pipeline.bronze.copy_states import DROPPED, READING, CopyRequest, CopyState
from pipeline.bronze.log import NO_OFFSET, Bronze, BronzeOffset
from pipeline.bronze.source_relations import Relations
from pipeline.config.config import Config
from pipeline.config.schedule import interval_at
from pipeline.delta.log import user_metadata_of
from pipeline.delta.store.looks import look_again, one_look
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import OURS
from pipeline.errors import DataFileError, SourceError
from pipeline.metadata.catalog_entries import CatalogEntries
from pipeline.metadata.events import HOLDING, Event, newest_events
from pipeline.metadata.maintenance import Maintained, MaintenanceTable
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.metadata.reconciliations import ComparedAt
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.metadata.status import FAILED, Failure, StatusTable
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.report.status_page import (
    BEHIND,
    COPYING,
    CURRENT,
    DETACHED,
    IN_DOUBT,
    PAUSED,
    UNPUBLISHED,
    Status,
    TableStatus,
    lag_bytes,
    lag_seconds,
    wal_rate,
)
from pipeline.report.table_details import SourceColumnType, StatusDetails, TableDetails, list_columns
from pipeline.report.web.facts import PageFacts, list_schema_versions, type_name
from pipeline.silver.decision import Decision, Step, decide
from pipeline.silver.doubts import Doubt, find_doubts
from pipeline.silver.lake_facts import LakeFacts, why_detached
from pipeline.silver.read.missing_tables import no_match
from pipeline.silver.write.shared_tables import silver_path
from pipeline.table_name import TableName, match_tables
from pipeline.units import format_count

if TYPE_CHECKING:
    from pipeline.postgres.replication.slot_status import SourceStatus


def read_status(config: Config, *, is_offline: bool = False) -> Status:
    """Read the status of the pipeline; the source is not read if `is_offline`."""
    lake = Lake(config.storage, application=f"pgdelta status {config.pipeline}")
    return _read_status(config, Bronze(lake, config.pipeline), Records(lake), is_offline)


def read_details(config: Config, globs: Sequence[str], *, is_offline: bool = False) -> StatusDetails:
    """Read the status of the tables that `globs` match, with their columns.

    Raises ConfigError if a glob is not `schema.table`, or no table matches.
    """
    match_tables(globs)  # refuses an invalid glob before anything is read
    lake = Lake(config.storage, application=f"pgdelta status {config.pipeline}")
    bronze, records = Bronze(lake, config.pipeline), Records(lake)
    status = _read_status(config, bronze, records, is_offline)
    status = replace(status, tables=_wanted_tables(config, lake, status, globs, is_offline))
    rows = _relation_rows(bronze)
    return StatusDetails(status, tuple(_read_details(bronze, records, status, status.tables, rows)))


def read_page_facts(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    is_detailed: Callable[[TableName], bool] = lambda _: True,
    is_offline: bool = False,
) -> PageFacts:
    """Read what a page of the tables that `globs` match shows; those that are detailed, with their columns.

    Raises ConfigError as `read_details` does.
    """
    is_wanted = match_tables(globs)
    lake = Lake(config.storage, application=f"pgdelta status {config.pipeline}")
    bronze, records = Bronze(lake, config.pipeline), Records(lake)
    status = _read_status(config, bronze, records, is_offline)
    if globs:
        status = replace(status, tables=_wanted_tables(config, lake, status, globs, is_offline))
    detailed = [table for table in status.tables if is_detailed(table.name)]
    rows = _relation_rows(bronze) if detailed else {}
    details = {each.table.name: each for each in _read_details(bronze, records, status, detailed, rows)}
    return PageFacts(
        status,
        datetime.now(timezone.utc),
        details,
        [event for event in reversed(records.events.history()) if is_wanted(event.name)],
        {name: list_schema_versions(rows[name]) for name in details.keys() & rows.keys()},
    )


def _wanted_tables(
    config: Config, lake: Lake, status: Status, globs: Sequence[str], is_offline: bool
) -> tuple[TableStatus, ...]:
    is_wanted = match_tables(globs)
    wanted = tuple(table for table in status.tables if is_wanted(table.name))
    if not wanted:
        raise no_match(lake, config, globs, is_offline=is_offline)
    return wanted


@one_look()
def _read_status(config: Config, bronze: Bronze, records: Records, is_offline: bool) -> Status:
    point = bronze.captured_offset()  # before the end of the WAL, which goes on
    source, unreachable = None, None
    if not is_offline:
        from pipeline.postgres.replication.slot_status import read_source_status

        try:
            source = read_source_status(config)
            source = replace(source, refusal=_why_refused(config, bronze, source, point))
        except SourceError as error:
            unreachable = str(error)
    manifest = Manifests(bronze.lake).last() or Manifest(INVALID)
    failures = StatusTable(bronze.lake).failures()
    tables = [
        _with_failure(table, failures.get(table.name))
        for table in read_tables(config, bronze, records, manifest, point, source=source)
    ]
    captured = point.lsn if point else INVALID
    now = source.now if source else datetime.now(timezone.utc)
    applied = {table.applied for table in tables}
    activity = Activity()
    if point:
        with suppress(DataFileError):  # the tables that need the file name it
            activity = read_activity(bronze, point, applied, now)
    catalog = CatalogEntries(bronze.lake).read_all()
    end = source.wal_lsn if source else captured
    refusal = source.refusal if source else None
    return Status(
        config.pipeline,
        captured,
        manifest.lsn,
        manifest.commit_time,
        tuple(
            replace(
                _behind(table, refusal)
                if refusal
                else with_lag(table, manifest, activity.commit_times, end, now),
                operations=activity.operations.get(table.name, {}),
                catalog=tuple(catalog.get(table.name, ())),
            )
            for table in tables
        ),
        config.source.slot,
        source,
        unreachable,
        wal_rate(activity.since, source) if source else None,
        MaintenanceTable(bronze.lake).read(),
        schedule=config.silver.schedule,
        interval=interval_at(config.silver.schedule, config.silver.min_interval, now),
    )


def _why_refused(
    config: Config, bronze: Bronze, source: SourceStatus, before: BronzeOffset | None
) -> str | None:
    """Return why ingest would not continue with a source; `before` is what bronze had before it was read."""
    if before is None or source.identity is None:
        return None
    from pipeline.postgres.same_source import why_refused

    slot_offset = before.lsn
    if source.slot is not None and source.slot.confirmed_flush_lsn > slot_offset:
        look_again(bronze.changes.local_path)  # ingest commits before it moves the slot
        slot_offset = bronze.require_offset().lsn
    return why_refused(config, bronze.metadata(), source.identity, before.lsn, source.slot, slot_offset)


def _behind(table: TableStatus, sentence: str) -> TableStatus:
    """Return a table of another source, or a restored one: how far it is from the source is not known."""
    return replace(table, state=BEHIND, sentence=sentence) if table.state in (CURRENT, IN_DOUBT) else table


def with_lag(
    table: TableStatus, manifest: Manifest, times: Mapping[LSN, datetime], end: LSN, now: datetime
) -> TableStatus:
    """Return the table with its lag behind `end`; a table without rows in silver, or detached, has none."""
    if table.applied == INVALID:
        return table
    commit_time = times.get(table.applied)
    if table.applied == manifest.lsn and manifest.commit_time is not None:
        commit_time = manifest.commit_time.astimezone(timezone.utc)
    seconds = lag_seconds(table.applied, end, commit_time, now)
    size = lag_bytes(table.applied, end)
    return replace(table, commit_time=commit_time, lag_seconds=seconds, lag_bytes=size)


def read_tables(
    config: Config,
    bronze: Bronze,
    records: Records,
    manifest: Manifest,
    point: BronzeOffset | None,
    relations: Relations | None = None,
    source: SourceStatus | None = None,
) -> tuple[TableStatus, ...]:
    """Read the status of every table that silver has, that waits for a copy, or that is not published.

    `point` is the offset of bronze, None if there is none. `relations` are read unless they are given. What
    `source` would show is else what the last ingest recorded.
    """
    registered, history = records.tables.read(), bronze.copies.read()
    if relations is None:
        relations = bronze.source_relations() if bronze.relations.exists() else {}
    path = partial(silver_path, bronze.lake, config)
    end = point or NO_OFFSET
    pauses = records.pauses.read()
    lake = LakeFacts.of(config, end, manifest, registered, history, relations.values(), path, pauses)

    def chunks(copy: CopyState) -> int:
        return max(bronze.chunk_count(copy.name) - copy.snapshots[0].chunks_before, 0)

    recorded = records.events.history()
    events = newest_events(recorded)
    membership = source or events
    # what is recorded after a table was held does not release it while it stays where it is
    holds = {name: each for name, each in events.holds.items() if manifest.behind.get(name) == each.lsn}
    newest = {**events.tables, **holds}
    found = describe_tables(lake, newest, records.misfits.counts(), chunks, membership.unpublished)
    compared = records.compared()
    doubts = find_doubts(recorded, history, compared)
    equal = {name: each.equal for name, each in compared.items()}
    partial_rows = membership.partial
    return tuple(
        _with_rows(table, equal.get(table.name), partial_rows.get(table.name), doubts.get(table.name))
        for table in found
    )


def _with_rows(
    table: TableStatus, verified: ComparedAt | None, part: str | None, doubt: Doubt | None
) -> TableStatus:
    """Return a table with what is known of its rows; a current one that is in doubt is that."""
    if verified is not None or part is not None:
        table = replace(table, verified=verified, partial=part)
    if doubt is None or table.state != CURRENT:
        return table
    return replace(table, state=IN_DOUBT, sentence=doubt.sentence, doubt=doubt)


def describe_tables(
    lake: LakeFacts,
    events: Mapping[TableName, Event],
    misfits: Mapping[TableName, dict[str, int]],
    chunks: Callable[[CopyState], int],
    unpublished: Mapping[TableName, str] = MappingProxyType({}),
) -> list[TableStatus]:
    """Return the status of each table, by name, without failures of the last batch; reads nothing.

    `events` are the newest of each table; `chunks` gives how many chunks of a running copy bronze has. Tables
    that are `unpublished` match the configuration, and have a sentence.
    """
    found = {e.name: _table(e, misfits, events.get(e.name)) for e in lake.manifest.entries}
    history, captured = lake.history, set(lake.captured)
    requests = history.open_requests
    for name in history.states.keys() | requests.keys() | events.keys() | captured:
        if lake.config.rule_for(name) is None:
            continue
        decision = decide(lake.recorded(name)) if name in captured else None
        holding = events.get(name) if name not in lake.registered else None  # it holds the first copy
        copying = _copying(lake, name, found.get(name), holding, decision, chunks, requests.get(name, ()))
        if copying is not None:
            found[name] = copying
    for name, table in lake.registered.items():
        if name not in found:
            event = events.get(name)
            reason = why_detached(lake.config, history, name, lake.end)
            state, sentence = DETACHED, event.sentence if event else f"Silver keeps it in {table.path}."
            if reason is not None:
                sentence = f"{reason} Silver keeps its rows in {table.path}."
            elif event is not None and event.kind in HOLDING:
                state = event.kind  # it came back, and its copy has not the rows that silver keeps
            found[name] = TableStatus(name, state, INVALID, -1, misfits.get(name, {}), sentence, event=event)
    for name, sentence in unpublished.items():
        before = found.get(name, TableStatus(name, DETACHED, INVALID, -1, {}))
        if lake.config.rule_for(name) is not None and before.state not in (*HOLDING, FAILED):
            found[name] = replace(before, state=UNPUBLISHED, sentence=sentence)
    for name in lake.paused.keys() & found.keys() & captured:
        if found[name].state not in (COPYING, DETACHED):
            found[name] = replace(found[name], state=PAUSED, sentence=lake.paused[name].sentence(name))
    return [found[name] for name in sorted(found)]


def _copying(
    lake: LakeFacts,
    name: TableName,
    shown: TableStatus | None,
    event: Event | None,
    decision: Decision | None,
    chunks: Callable[[CopyState], int],
    requests: Sequence[CopyRequest],
) -> TableStatus | None:
    """Return the status of a table whose copy is in progress, needed, held or dropped; None for any other."""
    last = lake.history.last(name)
    before = shown or TableStatus(name, COPYING, INVALID, -1, {}, event=event)
    held = None
    if event is not None and event.kind in HOLDING:
        held = replace(before, state=event.kind, sentence=event.sentence)
    if last is not None and last.state == DROPPED:
        # Until bronze is where the table was dropped, apply continues with it.
        reason = why_detached(lake.config, lake.history, name, lake.end)
        return replace(shown, state=DETACHED, sentence=reason) if shown and reason else None
    if last is not None and last.state == READING:
        done, count = chunks(last), last.chunk_count
        if held is not None and done == 0:
            return held
        state = shown.state if shown and shown.state in HOLDING else COPYING
        sentence = f"{done} of {format_count(count, 'chunk')} copied."
        return replace(before, state=state, sentence=sentence, copy_share=done / count if count else 1.0)
    if requests:
        if all(request.compares for request in requests):
            if before.state in HOLDING:  # the comparison comes after what holds it
                return shown
            sentence = "The next ingest compares the table with the source."
        elif all(request.key_ranges for request in requests):
            sentence = "The next ingest copies the rows that it waits for."
        else:
            sentence = "The next ingest copies the table."
        return replace(before, sentence=sentence, awaits_copy=True)
    if held is not None:
        return held if shown is None else None
    is_first = shown is None and name not in lake.registered
    if is_first and decision is not None and decision.step in (Step.START_FROM_COPY, Step.APPLY):
        return replace(
            before, state=BEHIND, sentence="Bronze has it, and silver does not. Run pgdelta apply."
        )
    if decision is not None and decision.step is Step.WAIT and before.state not in HOLDING:
        return replace(before, sentence=decision.sentence, awaits_copy=True)
    return None


def _with_failure(table: TableStatus, failure: Failure | None) -> TableStatus:
    """Return the table as failed if the last batch failed at its present offset."""
    if failure is None or table.state not in (*HOLDING, BEHIND) or failure.applied != table.applied:
        return table
    return replace(table, state=FAILED, sentence=failure.sentence)


def _table(
    entry: ManifestEntry, misfits: Mapping[TableName, dict[str, int]], event: Event | None
) -> TableStatus:
    state = CURRENT
    if entry.is_behind:
        state = event.kind if event and event.kind in HOLDING else BEHIND
    return TableStatus(
        entry.name,
        state,
        entry.applied_lsn,
        entry.version,
        misfits.get(entry.name, {}),
        event.sentence if event else None,
        event=event,
    )


def _relation_rows(bronze: Bronze) -> dict[TableName, list[Mapping[str, Any]]]:
    """Return the rows of `bronze/relations` of each table, the newest last."""
    found: dict[TableName, list[Mapping[str, Any]]] = {}
    if bronze.relations.exists():
        for row in sorted(bronze.relations.rows().to_pylist(), key=lambda row: row["lsn"]):
            found.setdefault(TableName(row["schema_name"], row["table_name"]), []).append(row)
    return found


def _read_details(
    bronze: Bronze,
    records: Records,
    status: Status,
    tables: Sequence[TableStatus],
    rows: Mapping[TableName, Sequence[Mapping[str, Any]]],
) -> Iterator[TableDetails]:
    """Read the details of tables; `rows` are those of `bronze/relations`, the newest last."""
    registered = records.tables.read() if tables else {}
    for table in tables:
        relation = rows[table.name][-1] if table.name in rows else None
        maintained = status.maintenance.get(str(table.name))
        yield _details(bronze.lake, table, registered.get(table.name), relation, maintained)


def _details(
    lake: Lake,
    table: TableStatus,
    registered: RegisteredTable | None,
    relation: Mapping[str, Any] | None,
    maintained: Maintained | None,
) -> TableDetails:
    source = {
        column["name"]: SourceColumnType(type_name(column), column["is_key"])
        for column in (relation["columns"] if relation else ())
    }
    silver = lake.table_at(registered.path) if registered else None
    fields = silver.schema().fields if silver is not None and silver.exists() else ()
    types = {field.name: field.ddl for field in fields}
    names = {column.silver_name: column.name for column in registered.columns} if registered else {}
    return TableDetails(
        table,
        list_columns(types, names, source, table.misfits),
        path=registered.path if registered else None,
        writer=_last_writer(silver) if silver is not None and fields else None,
        relation_id=relation["relation_id"] if relation else None,
        relation_lsn=LSN(relation["lsn"]) if relation else None,
        maintained=maintained,
    )


def _last_writer(silver: LakeTable) -> str | None:
    """Return who made the newest commit that recorded an offset: `native` or `spark`."""
    for information in silver.newest_commits():
        if "lsn" in user_metadata_of(information):
            is_native = str(information.get("engineInfo")).startswith(f"{OURS}/")
            return "native" if is_native else "spark"
    return None
