"""PostgreSQL → bronze: publication, slot and position checked, then one replication session to the end.

A run that dies loses nothing: the next one starts at the position that bronze holds, and the server sends the
rest again. A slot ahead of bronze means that something is missing, and is refused.
"""

import threading
from dataclasses import replace

from pyspark.sql import SparkSession

from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.spark.session import start_session
from pipeline.delta.table import Lake
from pipeline.errors import SlotGapError
from pipeline.ingest.continuity import (
    check_prepared,
    check_server,
    check_slot,
    cross_gap,
    first_slot,
    force_logs,
)
from pipeline.ingest.loop import Capture, offset_commit
from pipeline.postgres.binary_format import refuse_unreadable
from pipeline.postgres.connection import ServerIdentity, connect, identify
from pipeline.postgres.publication import ensure_publication
from pipeline.postgres.replication.change_stream import ChangeStream
from pipeline.postgres.replication.options import pgoutput_options
from pipeline.postgres.replication.slot import ensure_slot
from pipeline.postgres.replication.slot_lock import lock_slot
from pipeline.postgres.replication.sql_stream import start_sql_stream
from pipeline.postgres.replication.walsender import start_walsender
from pipeline.progress import IngestProgress, IngestSummary
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_copy.coordinator import CopyCoordinator


def run_ingest(
    config: Config,
    *,
    trigger: str = "available-now",
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
    progress: IngestProgress | None = None,
) -> IngestSummary:
    """Capture everything committed up to the WAL end seen at the start, or go on until `stop`."""
    stop = stop or threading.Event()
    spark = spark or start_session(f"pgdelta ingest {config.pipeline}")
    lake = Lake.for_writing(spark, config.storage.root)
    bronze = Bronze(lake, config.pipeline)
    with connect(config.source.conninfo) as connection:
        lock_slot(connection, config.source.slot, should_stop=stop.is_set)
        point = bronze.captured_offset()  # before anything is made: the lake may be another pipeline's
        identity = identify(connection)
        target = identity.wal_flush_lsn if trigger == "available-now" else None
        publication, _ = ensure_publication(connection, config)
        if config.source.protocol.binary:
            refuse_unreadable(connection, publication)
        prepared_count = 0
        if point is None:
            slot = first_slot(connection, config)
            bronze.ensure()
            position = slot.confirmed_flush_lsn
            bronze.begin()
            first = offset_commit(bronze, config, identity, position, position)
            bronze.land([], replace(first, expected_offset=INVALID))
        else:
            bronze.upgrade()
            bronze.begin()
            bronze.record_offset_again(point)
            position = point.lsn
            recorded = bronze.metadata()
            check_server(config, recorded, identity, position)
            try:
                slot, _ = ensure_slot(connection, config, may_create=False)
                check_slot(slot, position)
                prepared_count = check_prepared(bronze, recorded)
            except SlotGapError as gap:
                if config.source.lost_slot == "stop":
                    raise
                position = cross_gap(connection, config, bronze, identity, position, str(gap))
                prepared_count = bronze.prepared.open_count()
        force_logs(bronze)  # the stream reports the position as soon as it runs
        stream = _start_stream(config, identity, position, stop)
        try:
            summary = IngestSummary(config.pipeline, config.source.slot, position)
            copier = CopyCoordinator(config, bronze, identity, summary, is_continuous=target is None)
            capture = Capture(
                config,
                bronze,
                connection,
                identity,
                stream,
                summary,
                copier,
                prepared_count,
                progress,
                lambda lsn: _start_stream(config, identity, lsn, stop),
            )
            return capture.run(target, stop)
        finally:
            stream.close()


def _start_stream(
    config: Config, identity: ServerIdentity, offset: LSN, stop: threading.Event
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
        should_stop=stop.is_set,
    )
