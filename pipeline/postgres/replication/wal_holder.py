"""Find what keeps the restart_lsn of a slot back, although its reader has acknowledged later changes.

A logical slot's restart_lsn moves when the server has decoded a record of running transactions that shows
that older ones have ended. A transaction with an xid, of any database, prepared or not, keeps it back until
it ends. Of a failover slot, `synchronized_standby_slots` keeps the acknowledged LSN back until the standbys
have it. Other slots, and what a standby with hot_standby_feedback reads, keep neither of them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from pipeline.postgres.connection import Connection, reading
from pipeline.postgres.replication.slot import Slot
from pipeline.postgres.sql_text import quote_literal
from pipeline.protocol.lsn import LSN
from pipeline.units import format_size, format_time

SHORTEST_AGE = timedelta(minutes=1)
"""A younger transaction is not named: an older one may have ended since the slot's last such record."""

# The oldest transaction first. The role may not see since when sessions of others are in a transaction.
_TRANSACTIONS = """
SELECT pid, coalesce(usename::text, backend_type), coalesce(datname::text, ''), NULL, xact_start,
       pg_catalog.age(backend_xid) AS age
FROM pg_catalog.pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
UNION ALL
SELECT NULL, owner::text, database::text, gid, prepared, pg_catalog.age(transaction)
FROM pg_catalog.pg_prepared_xacts
ORDER BY age DESC LIMIT 1
"""
_STANDBY_SLOTS = """
SELECT n.name, s.restart_lsn::text, s.active
FROM (SELECT pg_catalog.btrim(u.name) AS name FROM pg_catalog.unnest(pg_catalog.string_to_array(
      pg_catalog.current_setting('synchronized_standby_slots'), ',')) AS u (name)) n
LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = n.name AND s.slot_type = 'physical'
WHERE n.name <> ''
"""


@dataclass(frozen=True, slots=True)
class WalHolder:
    """Who keeps WAL for a slot: a session's transaction, a prepared one, a primary's, or a standby's slot.

    `user`, `pid`, `gid`, `standby_slot` and `since` are None where they do not apply, or are not visible.
    """

    sentence: str
    retained_size: int
    user: str | None = None
    pid: int | None = None
    gid: str | None = None
    standby_slot: str | None = None
    since: datetime | None = None

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """Its PID, user, GID and standby's slot as labels of a metric, empty where they do not apply."""
        return str(self.pid or ""), self.user or "", self.gid or "", self.standby_slot or ""

    def as_json(self) -> dict[str, Any]:
        return {
            "user": self.user,
            "pid": self.pid,
            "gid": self.gid,
            "standby_slot": self.standby_slot,
            "since": self.since and self.since.astimezone(timezone.utc).isoformat(),
            "retained_bytes": self.retained_size,
            "sentence": self.sentence,
        }


def find_wal_holder(connection: Connection, slot: Slot | None, wal_lsn: LSN, limit: int) -> WalHolder | None:
    """Return what keeps more than `limit` bytes of WAL for the slot besides its reader, None if nothing."""
    if slot is None or slot.is_lost or not slot.restart_lsn:
        return None
    retained = max(0, wal_lsn - slot.restart_lsn)
    with reading("the transactions that are open"):
        if slot.confirmed_flush_lsn - slot.restart_lsn > limit:
            return _find_transaction(connection, slot, retained)
        if slot.failover and retained > limit:
            return _find_standby_slot(connection, slot, retained)
    return None


def _find_transaction(connection: Connection, slot: Slot, retained: int) -> WalHolder | None:
    effect = f"keeps the slot {slot.name} at {slot.restart_lsn}: the server retains {format_size(retained)}"
    row = connection.execute("SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.clock_timestamp()").fetchone()
    assert row is not None
    is_standby, now = row
    if is_standby:
        return WalHolder(
            f"A transaction that is open at the primary {effect} of WAL for it. Find the oldest one in the"
            " primary's pg_stat_activity (backend_xid) and pg_prepared_xacts, and end it.",
            retained,
        )
    oldest = connection.execute(_TRANSACTIONS).fetchone()
    if oldest is None:
        return None
    pid, user, database, gid, since, _ = oldest
    if since is not None and now - since < SHORTEST_AGE:
        return None
    moment = format_time(since) if since else "a time that only pg_read_all_stats shows"
    of = f"of user {user}, database {database}" if database else f"of {user}"
    if gid is not None:
        who, name = f"The transaction prepared as {quote_literal(gid)} {of},", quote_literal(gid)
        advice = f"Run COMMIT PREPARED {name} or ROLLBACK PREPARED {name} in its database."
    else:
        who = f"The open transaction of PID {pid} {of},"
        advice = f"End it, or run SELECT pg_terminate_backend({pid})."
    sentence = f"{who} since {moment}, {effect} of WAL for it. {advice}"
    return WalHolder(sentence, retained, user, pid, gid, since=since)


def _find_standby_slot(connection: Connection, slot: Slot, retained: int) -> WalHolder | None:
    """Return the slot of a standby that has not received what the slot is to send."""
    behind = [
        (LSN.parse(lsn) if lsn else LSN(0), name, lsn is not None, is_active)
        for name, lsn, is_active in connection.execute(_STANDBY_SLOTS).fetchall()
    ]
    if not behind:
        return None
    lsn, name, exists, is_active = min(behind)
    if lsn > slot.confirmed_flush_lsn:
        return None
    state = f"is at {lsn}" if exists else "has received nothing, or does not exist"
    read = "" if is_active else " and is not read"
    return WalHolder(
        f"The standby's slot {name}, named in synchronized_standby_slots, {state}{read}. Until it receives"
        f" more, the slot {slot.name} sends nothing: the server retains {format_size(retained)} of WAL for"
        " it. Start that standby, or remove its slot from synchronized_standby_slots.",
        retained,
        standby_slot=name,
    )
