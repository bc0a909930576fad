"""PostgreSQL → bronze: publication, slot and position checked, then one replication session to the end.

A run that dies loses nothing: the next one starts at the position that bronze holds, and the server sends the
rest again. A slot ahead of bronze means that something is missing, and is refused.
"""

import threading
from typing import Any

from pyspark.sql import SparkSession

from pipeline.config import Config
from pipeline.errors import GapError
from pipeline.lake.bronze import Bronze
from pipeline.lake.session import start_session
from pipeline.lake.tables import Lake
from pipeline.operate.capture import Capture, position_commit
from pipeline.operate.copying import Copier
from pipeline.operate.summaries import IngestProgress, IngestSummary
from pipeline.postgres.connection import Identity, connect, identify
from pipeline.postgres.plugin import pgoutput_options
from pipeline.postgres.publication import ensure_publication
from pipeline.postgres.slot import Slot, ensure_slot
from pipeline.postgres.slot_sql import start_slot_sql
from pipeline.postgres.stream import ChangeStream
from pipeline.postgres.types import refuse_unreadable
from pipeline.postgres.walsender import start_walsender
from pipeline.protocol.lsn import LSN


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
    lake = Lake(spark or start_session(f"pgdelta ingest {config.pipeline}"), config.storage.root)
    bronze = Bronze(lake, config.pipeline)
    with connect(config.source.conninfo) as connection:
        identity = identify(connection)
        target = identity.wal_flush_lsn if trigger == "available-now" else None
        publication, _ = ensure_publication(connection, config)
        if config.source.protocol.binary:
            refuse_unreadable(connection, publication)
        point = bronze.point()
        slot, _ = ensure_slot(connection, config, may_create=point is None)
        prepared_count = 0
        if point is None:
            bronze.ensure()
            position = slot.confirmed_flush_lsn
            bronze.land([], position_commit(bronze, config, identity, position, position))
        else:
            bronze.upgrade()
            position = point.lsn
            recorded = bronze.metadata()
            check_continuity(recorded, identity, slot, position)
            prepared_count = check_prepared(bronze, recorded)
        stream = _start_stream(config, identity, position, stop)
        try:
            summary = IngestSummary(config.pipeline, config.source.slot, position)
            copier = Copier(config, bronze, summary, is_continuous=target is None)
            capture = Capture(
                config, bronze, connection, identity, stream, summary, copier, prepared_count, progress
            )
            return capture.run(target, stop)
        finally:
            stream.close()


def check_continuity(recorded: dict[str, Any], identity: Identity, slot: Slot, position: LSN) -> None:
    """Raise GapError where the slot cannot go on from the position that bronze holds."""
    for name, now in (("system_identifier", identity.system_identifier), ("database", identity.database)):
        if name in recorded and recorded[name] != now:
            raise GapError(
                f"Bronze was filled from another source ({name} {recorded[name]}, this server has {now}): "
                "correct source.conninfo, or start over with a new storage.root."
            )
    if slot.confirmed_flush_lsn > position:
        raise GapError(
            f"The slot {slot.name} stands at {slot.confirmed_flush_lsn}, ahead of bronze at {position}: "
            "what was committed between was acknowledged by somebody else, or the slot was made anew. "
            "Start over with a new storage.root."
        )


def check_prepared(bronze: Bronze, recorded: dict[str, Any]) -> int:
    """Return how many prepared transactions wait for their end, or raise GapError where some are gone.

    Those that the newest commit decided are forgotten first: the run may have ended before it did so.
    """
    bronze.prepared.forget([(gid, xid) for gid, xid in recorded.get("decided", ())])
    count = int(recorded.get("prepared", 0))
    if count and (found := bronze.prepared.open_count()) < count:
        raise GapError(
            f"Bronze has {found} of {count} prepared transactions, which the server does not send again: "
            f"restore {bronze.prepared.table.path}, or start over with a new storage.root."
        )
    return count


def _start_stream(config: Config, identity: Identity, position: LSN, stop: threading.Event) -> ChangeStream:
    source = config.source
    options = pgoutput_options(identity.server_version, source.protocol, source.publication, source.route)
    if source.route == "sql":
        return start_slot_sql(source.conninfo, source.slot, source.publication, options=options)
    return start_walsender(
        source.conninfo,
        source.slot,
        source.publication,
        options=options,
        start_lsn=position,
        should_stop=stop.is_set,
    )
