"""Tables that have joined the publication, and the transactions that a copy of them has to wait for.

What a transaction wrote to a table before the table joined comes in no message, and a snapshot lacks it for
as long as the transaction is open. So a copy begins once all have ended that were writing to its table when
it was seen in the publication first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.bronze.copy_states import CopyState
from pipeline.postgres.connection import Connection
from pipeline.postgres.open_transactions import OpenTransactions, read_writers
from pipeline.postgres.published_tables import Membership
from pipeline.table_name import TableName

PATIENCE = 600.0  # seconds until a table that waits is told as one that cannot be copied


@dataclass(slots=True)
class NewTable:
    """A table since it was seen in the publication first: who was writing to it then, and still is."""

    writers: frozenset[str]
    since: float  # of the monotonic clock, in seconds
    is_told: bool = False  # to a session of the stream that begins beyond all of these

    @property
    def is_waiting(self) -> bool:
        """Say whether one of them is open still."""
        return bool(self.writers)

    def sentence(self, now: float) -> str | None:
        """Say what it waits for, once that takes long."""
        if now - self.since < PATIENCE:
            return None
        return (
            f"transactions that were writing to it when it joined the publication are open still "
            f"({len(self.writers)}), and no message will bring their rows: end them (pg_locks and "
            "pg_prepared_xacts show them), and it is copied."
        )


@dataclass(slots=True)
class NewTables:
    """What the looks of one run have seen."""

    tables: dict[tuple[TableName, Membership], NewTable] = field(default_factory=dict)

    def poll(
        self, connection: Connection, joined: Mapping[TableName, Membership]
    ) -> dict[TableName, NewTable]:
        """Return each table that has joined, as it is now."""
        if not joined:
            return {}
        writers = read_writers(connection, [now.relation_id for now in joined.values()])
        return self.note(joined, writers, time.monotonic())

    def note(
        self, joined: Mapping[TableName, Membership], writers: OpenTransactions, now: float
    ) -> dict[TableName, NewTable]:
        """Note who writes to tables that have joined, and return how they stand."""
        found = {}
        for name, membership in joined.items():
            relation_id = membership.relation_id
            seen = self.tables.setdefault((name, membership), NewTable(writers.writers_of(relation_id), now))
            seen.writers = writers.still_open(seen.writers, relation_id)
            found[name] = seen
        return found


def is_new(now: Membership, states: Sequence[CopyState]) -> bool:
    """Say whether a table was never copied as the member that it is; with all tables none joins."""
    return now.entry != 0 and all(state.membership != now.entry for state in states)
