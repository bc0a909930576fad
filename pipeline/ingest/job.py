"""PostgreSQL → bronze: check publication, slot and offset, then capture in one replication session.

A run that dies loses nothing: the next one starts at the offset that bronze holds, and the server sends the
rest again. A slot ahead of bronze means that something is missing, and is refused.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.bronze.protection import ColumnProtection
from pipeline.bronze.writer import BronzeWriter
from pipeline.config.config import Config
from pipeline.delta.lake_format import record_format
from pipeline.delta.table import Lake
from pipeline.errors import (
    NOTICES,
    RestoredSourceError,
    SlotGapError,
    SlotWaitStopped,
    UndecodableError,
    UnusableSlotError,
)
from pipeline.ingest.capture import Capture
from pipeline.ingest.continuity import cross_gap, first_slot
from pipeline.ingest.start_conditions import (
    Continuation,
    new_lake,
    report_new_name,
    require_continuity,
    require_own_slot,
)
from pipeline.maintenance.background import JobMaintenance
from pipeline.maintenance.job_tables import own_candidates
from pipeline.postgres.binary_format import refuse_unreadable
from pipeline.postgres.connection import Connection, ServerIdentity, connect, identify, newer_server_sentence
from pipeline.postgres.publication import ensure_publication, list_published, managed_comment
from pipeline.postgres.replication.change_stream import ChangeStream
from pipeline.postgres.replication.options import pgoutput_options
from pipeline.postgres.replication.slot import drop_slot
from pipeline.postgres.replication.slot_lock import lock_slot
from pipeline.postgres.replication.sql_stream import start_sql_stream
from pipeline.postgres.replication.walsender import start_walsender
from pipeline.progress import IngestProgress, IngestSummary
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.capture_state import CaptureState
from pipeline.table_copy.coordinator import CopyCoordinator
from pipeline.table_copy.gap_verdicts import TableComparer
from pipeline.table_copy.protected_tables import record_protected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_ingest(
    config: Config,
    *,
    trigger: str = "available-now",
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
    progress: IngestProgress | None = None,
) -> IngestSummary:
    """Capture everything committed up to the WAL end at the start, or continue until `stop`.

    A gap at which the stream ends is closed by another session, as source.lost_slot says. The next one is an
    error in a run up to the WAL end, and in any run if nothing was captured in between.

    On a file system of this machine no Spark is used.
    """
    stop = stop or threading.Event()
    summary = IngestSummary(config.pipeline, config.source.slot)
    gap: UnusableSlotError | None = None
    commits_before_gap: int | None = None
    while True:
        try:
            _run(config, trigger, stop, spark, progress, summary, gap)
        except SlotWaitStopped as stopped:
            NOTICES.info("%s", stopped)
        except UndecodableError as undecodable:
            protocol = config.source.protocol
            if protocol.streaming == "off":
                raise
            NOTICES.info("%s The run continues with streaming off.", undecodable.reason)
            without = replace(protocol, streaming="off")
            config, gap = replace(config, source=replace(config.source, protocol=without)), None
            continue
        except SlotGapError as found:  # the stream ended at it; the next session begins after it
            is_next = commits_before_gap is not None
            is_futile = is_next and (trigger == "available-now" or summary.commits == commits_before_gap)
            if config.source.lost_slot == "stop" or is_futile:
                raise
            # The slot itself shows any other gap to the next session.
            gap = found if isinstance(found, UnusableSlotError) else None
            commits_before_gap = summary.commits
            continue
        return summary


def _run(
    config: Config,
    trigger: str,
    stop: threading.Event,
    spark: SparkSession | None,
    progress: IngestProgress | None,
    summary: IngestSummary,
    gap: UnusableSlotError | None,
) -> None:
    """Run once; with a `gap`, the slot is replaced first."""
    lake = Lake.for_writing(config.storage, spark, application=f"pgdelta ingest {config.pipeline}")
    bronze = Bronze(lake, config.pipeline)
    with connect(config.source.conninfo) as connection:
        lock_slot(connection, config.source.slot, should_stop=stop.is_set)
        bronze.require_tables()
        captured = bronze.captured_offset()  # before anything is made: the lake may be another pipeline's
        identity = identify(connection)
        if newer := newer_server_sentence(identity.server_version):
            NOTICES.info("%s", newer)
        target = identity.wal_flush_lsn if trigger == "available-now" else None
        writer, offset = _open_bronze(config, connection, bronze, captured, identity, gap, stop)
        protection = _protect(config, connection, writer)
        writer.force_logs()  # the stream reports the offset as soon as it runs
        summary.captured_offset = offset
        stream = _start_stream(config, identity, offset, connection, stop)
        try:
            state = CaptureState()
            copier = CopyCoordinator(
                config,
                writer,
                identity,
                summary,
                state,
                protection,
                partial(_open_comparer, config, bronze),
                is_continuous=target is None,
            )
            capture = Capture(
                config,
                writer,
                connection,
                stream,
                summary,
                copier,
                state,
                protection,
                progress,
                lambda lsn: _start_stream(config, identity, lsn, connection, stop),
            )
            maintenance = _maintenance(config, lake, summary, stop, progress)
            if target is None:
                with maintenance.in_background():
                    capture.run(target, stop)
                return
            capture.run(target, stop)
        finally:
            stream.close()
    maintenance.run()


def _open_comparer(config: Config, bronze: Bronze) -> TableComparer:
    from pipeline.silver.compare.gap_comparison import GapComparer  # an ingest without a gap does not load it

    return GapComparer(config, bronze)


def _open_bronze(
    config: Config,
    connection: Connection,
    bronze: Bronze,
    captured: BronzeOffset | None,
    identity: ServerIdentity,
    gap: UnusableSlotError | None,
    stop: threading.Event,
) -> tuple[BronzeWriter, LSN]:
    """Return the writer of bronze and the offset from which the stream continues.

    The publication and the slot are created where they are missing, and have to be this lake's.
    """
    publication, is_marked = ensure_publication(connection, config)
    if config.source.protocol.binary:
        refuse_unreadable(connection, publication)
    recorded = new_lake() if captured is None else bronze.metadata()
    source = {"slot": config.source.slot, **identity.facts}
    mark, is_due = require_own_slot(connection, config, recorded)
    is_marked |= is_due
    if mark is not None:
        source["lake"] = mark.lake_id
    if captured is None:
        offset = first_slot(connection, config, stop.is_set).confirmed_flush_lsn
        record_format(bronze.lake)
        bronze.ensure()
        writer = BronzeWriter(bronze, source)
        writer.start(offset)
    else:
        writer = BronzeWriter(bronze, source)
        offset = _continue(config, connection, writer, captured, recorded, identity, gap, stop)
    if mark is not None and is_marked:
        mark.write(connection, config.source.publication, managed_comment(config.pipeline))
    return writer, offset


def _continue(
    config: Config,
    connection: Connection,
    writer: BronzeWriter,
    captured: BronzeOffset,
    recorded: dict[str, Any],
    identity: ServerIdentity,
    gap: UnusableSlotError | None,
    stop: threading.Event,
) -> LSN:
    """Return the offset from which the stream goes on: bronze's, or that of a new slot after a gap."""
    writer.record_offset_again(captured)
    found: SlotGapError | None = gap
    if found is None:
        try:
            require_continuity(
                Continuation(config, connection, writer, recorded, identity, captured.lsn, stop)
            )
            report_new_name(recorded, identity)
            writer.continue_prepared(recorded)
        except SlotGapError as error:
            found = error
    is_fork = isinstance(found, RestoredSourceError)
    if not is_fork:
        writer.continue_horizons(recorded)
    if found is None:
        return captured.lsn
    if config.source.lost_slot == "stop":
        raise found
    if isinstance(found, UnusableSlotError):
        drop_slot(connection, config.source.slot)
    return cross_gap(connection, config, writer, captured.lsn, str(found), stop.is_set, is_fork=is_fork)


def _protect(config: Config, connection: Connection, writer: BronzeWriter) -> ColumnProtection:
    """Return the columns that rules protect, and record those of the published tables."""
    bronze = writer.bronze
    if not any(rule.columns for rule in config.tables):
        return ColumnProtection(config, (), bronze.copies.read().moves, writer.horizons)
    bronze.ensure_protection()
    versions = bronze.source_relations().values()
    protection = ColumnProtection(config, versions, bronze.copies.read().moves, writer.horizons)
    published = list_published(connection, config.source.publication)
    record_protected(connection, config.source.publication, writer, protection, published)
    return protection


def _maintenance(
    config: Config,
    lake: Lake,
    summary: IngestSummary,
    stop: threading.Event,
    progress: IngestProgress | None,
) -> JobMaintenance:
    def report() -> None:
        if progress is not None:
            progress(summary)

    return JobMaintenance(
        config, lake, lambda: own_candidates(lake, "bronze"), summary.maintenance, stop=stop, report=report
    )


def _start_stream(
    config: Config, identity: ServerIdentity, offset: LSN, connection: Connection, stop: threading.Event
) -> ChangeStream:
    source = config.source
    options = pgoutput_options(identity.server_version, source.protocol, source.publication, source.route)
    if source.route == "sql":
        return start_sql_stream(
            source.conninfo, source.slot, source.publication, options=options, start_lsn=offset
        )
    return start_walsender(
        source.conninfo,
        source.slot,
        source.publication,
        options=options,
        start_lsn=offset,
        shared=connection,
        should_stop=stop.is_set,
    )
