"""Begin a lake, or continue it from the offset that bronze holds; a gap stops the run, or is recorded.

`postgres/same_source.py` compares system identifier, database, timeline, WAL and slot with bronze. After a
gap that is recorded, by policy, every table keeps its state until a later copy replaces it.
"""

from collections.abc import Callable

from pipeline.bronze.copies import gap_row
from pipeline.bronze.copy_states import CopyHistory, CopyRequest
from pipeline.bronze.writer import BronzeWriter
from pipeline.config.config import Config
from pipeline.errors import GapError
from pipeline.postgres.connection import Connection
from pipeline.postgres.open_transactions import read_prepared_transactions
from pipeline.postgres.publication import list_published
from pipeline.postgres.replication.slot import Slot, ensure_slot, read_slot, renew_slot
from pipeline.postgres.watched_tables import read_watched_tables
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.catalog_watch import record_fork, record_publication
from pipeline.table_name import TableName


def refuse_begun_move(history: CopyHistory, offset: LSN) -> None:
    """Raise GapError if a move to another server recorded its gap and ended before the switch."""
    if history.gaps and history.gaps[-1].end > offset:
        raise GapError(
            f"A move to another server has begun, and bronze is at {offset}, before the gap up to "
            f"{history.gaps[-1].end}. Run pgdelta move-source again, with the new server in source.conninfo."
        )


def first_slot(
    connection: Connection, config: Config, should_stop: Callable[[], bool] = lambda: False
) -> Slot:
    """Return the slot from which a new lake begins; it misses nothing, also if it replaces a lost one.

    Raises as `refuse_skipped_prepared` does. A new slot waits for what was prepared before it.
    """
    before = read_slot(connection, config.source.slot)
    if config.source.lost_slot != "stop":
        slot = renew_slot(connection, config, should_stop)
    else:
        slot = ensure_slot(connection, config, may_create=True, should_stop=should_stop)[0]
    refuse_skipped_prepared(connection, before)
    return slot


def refuse_skipped_prepared(connection: Connection, slot: Slot | None) -> None:
    """Raise GapError if a slot with which a new lake begins may send only the end of a transaction.

    A two-phase slot that existed already may be ahead of the PREPARE of a transaction that has not ended, and
    then sends only its end. Which of the two was first is unknown: a slot that was never read is behind it,
    and would send everything.
    """
    if slot is None or not may_skip_prepared(slot):
        return
    if count := len(read_prepared_transactions(connection)):
        raise GapError(
            f"The slot {slot.name} is older than this lake and may already be past the PREPARE of open "
            f"transactions ({count}). It would then send only their COMMIT PREPARED or ROLLBACK PREPARED. "
            "Commit or roll back what pg_prepared_xacts lists, then run again. If some transaction is always "
            "prepared, drop the slot, unless another lake needs it: the run then creates one that misses "
            "nothing."
        )


def cross_gap(
    connection: Connection,
    config: Config,
    writer: BronzeWriter,
    offset: LSN,
    sentence: str,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    is_fork: bool = False,
) -> LSN:
    """Record a gap after the offset, request a copy of every table, and return the end of the gap.

    If the configuration says so, the tables are compared first, so that only what differs is copied.

    If the slot is a new one, transactions that were prepared before are in the copies, or are sent completely
    when they are committed. A slot that was moved sends only the end of what was prepared before: raises
    GapError if bronze does not have the rest.
    """
    before = read_slot(connection, config.source.slot)
    is_moved = may_skip_prepared(before)
    prepared, bronze = writer.prepared, writer.bronze
    if is_moved:
        refuse_unknown_prepared(connection, config.source.slot, prepared.open())
    is_new = before is None or before.is_lost
    seen = read_watched_tables(connection, config.source.publication) if is_new or is_fork else None
    slot = renew_slot(connection, config, should_stop)
    end = max(offset, slot.confirmed_flush_lsn)
    if is_fork:
        record_fork(bronze, seen, config.source.publication, end)
    elif seen is not None:
        record_publication(bronze, seen, config.source.publication)
    writer.record_copies([gap_row(offset, end, sentence, is_fork=is_fork)])
    names = followed_tables(connection, config)
    if config.source.lost_slot == "compare":
        bronze.copies.request([CopyRequest.after_gap(name, end) for name in names])
    else:
        bronze.copies.request([CopyRequest.of(name, sentence) for name in names])
    if not is_moved:
        prepared.forget_all()
    writer.land_gap(offset, end, sentence)
    return end


def followed_tables(connection: Connection, config: Config) -> list[TableName]:
    """Return the published tables that the configuration follows, in order."""
    published = list_published(connection, config.source.publication)
    return sorted(name for name in published if config.rule_for(name) is not None)


def refuse_unknown_prepared(
    connection: Connection, slot: str, known: set[tuple[str, int]]
) -> set[tuple[str, int]]:
    """Return gid and xid of the source's prepared transactions; raise GapError if bronze lacks one."""
    found = read_prepared_transactions(connection)
    if unknown := len(found - known):
        raise GapError(
            f"Bronze never got what is prepared at the source (transactions: {unknown}), and the slot "
            f"{slot} may not send it again. COMMIT or ROLLBACK PREPARED it (pg_prepared_xacts lists it) and "
            "run again."
        )
    return found


def may_skip_prepared(slot: Slot | None) -> bool:
    """Return whether a slot that existed already may be between a PREPARE and its end."""
    return slot is not None and slot.two_phase and not slot.is_lost
