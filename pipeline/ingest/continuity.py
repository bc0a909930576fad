"""Whether the source can go on from the position that bronze holds; and what to do where it cannot.

What is compared: the system identifier, the database, the timeline with its history, the slot's position and
the end of the log. A gap stops the run with a sentence, or, by policy, is recorded: then every table waits at
the state it has until it was copied anew beyond the gap.
"""

from typing import Any

from pipeline.bronze.copy_states import CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.errors import GapError
from pipeline.ingest.loop import offset_commit
from pipeline.postgres.connection import Connection, ServerIdentity, read_timeline_ends
from pipeline.postgres.open_transactions import read_prepared_transactions
from pipeline.postgres.published_tables import list_published
from pipeline.postgres.replication.slot import Slot, ensure_slot, read_slot, renew_slot
from pipeline.postgres.replication.slot_errors import moved_slot_error
from pipeline.protocol.lsn import LSN


def refuse_other_source(
    recorded: dict[str, Any], identity: ServerIdentity, key: str = "source.conninfo"
) -> None:
    """Raise GapError where this is not the database that bronze was filled from; `key` names it."""
    for name, now in (("system_identifier", identity.system_identifier), ("database", identity.database)):
        if name in recorded and recorded[name] != now:
            raise GapError(
                f"Bronze was filled from another source ({name} {recorded[name]}, this server has {now}): "
                f"correct {key}, or start over with a new storage.root."
            )


def check_server(config: Config, recorded: dict[str, Any], identity: ServerIdentity, offset: LSN) -> None:
    """Raise GapError where this is not the server, or not the state of it, that bronze was filled from."""
    refuse_other_source(recorded, identity)
    timeline = recorded.get("timeline", identity.timeline)
    if timeline != identity.timeline:
        end = read_timeline_ends(config.source.conninfo, identity.timeline).get(timeline)
        if end is None or offset > end:
            told = "does not come from" if end is None else f"left at {end}"
            raise GapError(
                f"Bronze is complete up to {offset} of timeline {timeline}, which this server, on timeline "
                f"{identity.timeline}, {told}: bronze holds what the source never had. Start over with a new "
                "storage.root."
            )
    if identity.wal_flush_lsn < offset:
        raise GapError(
            f"The server's log ends at {identity.wal_flush_lsn}, before bronze's position {offset}: it was "
            "put back to an earlier state. Start over with a new storage.root."
        )


def check_slot(slot: Slot, offset: LSN) -> None:
    """Raise SlotGapError where the slot stands beyond the position."""
    if slot.confirmed_flush_lsn > offset:
        raise moved_slot_error(slot.name, slot.confirmed_flush_lsn, offset)


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


def force_logs(bronze: Bronze) -> None:
    """Force to disk what other runs committed: what one of them left when it died may not be there yet."""
    for table in (bronze.changes, bronze.relations, bronze.prepared.table, bronze.copies.table):
        table.force_log()


def first_slot(connection: Connection, config: Config) -> Slot:
    """Return the slot that a new lake begins with; it misses nothing where a lost one is made anew.

    A two-phase slot that was there already may stand beyond the PREPARE of what is not decided yet, and then
    sends its end alone. Which of the two was first nobody can tell (a slot that was never read stands before
    it, and would send all): raise GapError. A slot that is made now waits for what was prepared before it.
    """
    before = read_slot(connection, config.source.slot)
    if config.source.lost_slot == "resync":
        slot = renew_slot(connection, config)
    else:
        slot = ensure_slot(connection, config, may_create=True)[0]
    if _skips_prepared(before) and (count := len(read_prepared_transactions(connection))):
        raise GapError(
            f"The slot {slot.name} is older than this lake and may stand beyond what is prepared at the "
            f"source (transactions: {count}), of which it sends the end alone then: COMMIT or ROLLBACK "
            "PREPARED it (pg_prepared_xacts lists it), then run again; where something always is prepared, "
            "drop the slot if no other lake needs it: the run makes one that misses nothing."
        )
    return slot


def cross_gap(
    connection: Connection,
    config: Config,
    bronze: Bronze,
    identity: ServerIdentity,
    offset: LSN,
    sentence: str,
) -> LSN:
    """Record a gap behind the position, ask for every table to be copied beyond it, return where it ends.

    Where the slot is a new one, transactions that were prepared before are in the copies, or come again whole
    when they are committed. One that somebody moved sends the end alone of what was prepared before it:
    bronze has to have the rest. Raise GapError where it has not.
    """
    before = read_slot(connection, config.source.slot)
    is_moved = _skips_prepared(before)
    if is_moved and (unknown := len(read_prepared_transactions(connection) - bronze.prepared.open())):
        raise GapError(
            f"Bronze never got what is prepared at the source (transactions: {unknown}), and the slot "
            f"{config.source.slot} may not send it any more: COMMIT or ROLLBACK PREPARED it "
            "(pg_prepared_xacts lists it), then run again."
        )
    slot = renew_slot(connection, config)
    end = max(offset, slot.confirmed_flush_lsn)
    bronze.copies.record_gap(offset, end, sentence)
    names = [name for name in list_published(connection, config.source.publication) if config.rule_for(name)]
    bronze.copies.request([CopyRequest.of(name, sentence) for name in sorted(names)])
    if not is_moved:
        bronze.prepared.forget_all()
    count = bronze.prepared.open_count()
    bronze.land([], offset_commit(bronze, config, identity, offset, end, gap=sentence, prepared=count))
    return end


def _skips_prepared(slot: Slot | None) -> bool:
    """Say whether a slot that was there already may stand between a PREPARE and its end."""
    return slot is not None and slot.two_phase and not slot.is_lost
