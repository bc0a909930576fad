"""Check that a server has the state to which bronze is complete, and that its slot lost nothing since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.config.config import Config
from pipeline.errors import GapError, SlotGapError
from pipeline.postgres.connection import Connection, ServerIdentity, read_timeline_ends, reading
from pipeline.postgres.replication.slot import Slot, moved_slot_error
from pipeline.protocol.lsn import LSN

_MOVE_ADVICE = (
    "If the database now runs on this server, run pgdelta move-source. Otherwise correct source.conninfo."
)

_IS_PUBLISHED_SINCE = """
WITH publication AS (SELECT oid, xmin FROM pg_catalog.pg_publication WHERE pubname = %(publication)s),
rows AS (
    SELECT xmin FROM publication
    UNION ALL SELECT r.xmin FROM pg_catalog.pg_publication_rel r JOIN publication p ON p.oid = r.prpubid
    UNION ALL SELECT n.xmin FROM pg_catalog.pg_publication_namespace n JOIN publication p ON p.oid = n.pnpubid
)
SELECT bool_and(age(rows.xmin) > age(slot.catalog_xmin))
FROM rows, pg_catalog.pg_replication_slots slot WHERE slot.slot_name = %(slot)s
"""  # servers from 15 on


def refuse_other_source(
    recorded: Mapping[str, Any], identity: ServerIdentity, key: str = "source.conninfo"
) -> None:
    """Raise GapError if this is not the database that bronze was filled from; `key` names it."""
    if identity.is_of(recorded):
        return
    for name, now in (("system_identifier", identity.system_identifier), ("database", identity.database)):
        if name in recorded and recorded[name] != now:
            raise GapError(
                f"Bronze was filled from another source: its {name} is {recorded[name]}, and this server has "
                f"{now}. Correct {key}; or run pgdelta move-source, if the database moved to this server."
            )


def check_server(config: Config, recorded: Mapping[str, Any], identity: ServerIdentity, offset: LSN) -> None:
    """Raise GapError if bronze was filled from another server, or from a state that this one never had."""
    refuse_other_source(recorded, identity)
    timeline = recorded.get("timeline", identity.timeline)
    if timeline != identity.timeline:
        end = read_timeline_ends(config.source.conninfo, identity.timeline).get(timeline)
        if end is None or offset > end:
            history = "is not in its history" if end is None else f"ended at {end} in its history"
            raise GapError(
                f"Bronze is complete up to {offset} of timeline {timeline}. This server is on timeline "
                f"{identity.timeline}, and timeline {timeline} {history}: bronze holds what this server "
                f"never had. {_MOVE_ADVICE}"
            )
    if identity.wal_flush_lsn < offset:
        raise GapError(
            f"The server's WAL ends at {identity.wal_flush_lsn}, before the offset {offset} of bronze: the "
            f"server was restored to an earlier state. {_MOVE_ADVICE}"
        )


def check_slot(slot: Slot, offset: LSN) -> None:
    """Raise SlotGapError if the slot is ahead of the offset."""
    if slot.confirmed_flush_lsn > offset:
        raise moved_slot_error(slot.name, slot.confirmed_flush_lsn, offset)


def is_published_since(connection: Connection, publication: str, slot: str) -> bool:
    """Return whether a publication and its entries are older than a slot that nothing has read yet."""
    with reading("the publication"):
        row = connection.execute(_IS_PUBLISHED_SINCE, {"publication": publication, "slot": slot}).fetchone()
    return row is not None and row[0] is True


def why_refused(
    config: Config,
    recorded: Mapping[str, Any],
    identity: ServerIdentity,
    offset: LSN,
    slot: Slot | None,
    slot_offset: LSN,
) -> str | None:
    """Return why ingest would not continue, None if nothing of this speaks against it; raise SourceError.

    `offset` is that of bronze before the server was read, `slot_offset` after the slot was. A gap of the slot
    is no reason where the configuration says what closes it.
    """
    try:
        check_server(config, recorded, identity, offset)
        if slot is not None:
            check_slot(slot, slot_offset)
    except GapError as error:
        is_closed = isinstance(error, SlotGapError) and config.source.lost_slot != "stop"
        return None if is_closed else str(error)
    return None
