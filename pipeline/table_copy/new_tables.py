"""Tables that joined the publication, and the transactions that a copy of them has to wait for.

What a transaction wrote to a table before the table joined comes in no message, and a snapshot does not see
it while the transaction is open. So a copy begins once all transactions have ended that were writing to its
table when it was first seen in the publication.
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

PATIENCE = 600.0  # seconds until a table that waits counts as one that cannot be copied


@dataclass(slots=True)
class NewTable:
    """A table since it was first seen in the publication: who was writing to it then, and still is."""

    writers: frozenset[str]
    since: float  # of the monotonic clock, in seconds
    is_in_session: bool = False  # the stream's session began after all of these had ended

    @property
    def is_waiting(self) -> bool:
        """Return whether one of the writers is still open."""
        return bool(self.writers)

    def sentence(self, now: float) -> str | None:
        """Return what it waits for, once it has waited for long."""
        if now - self.since < PATIENCE:
            return None
        return (
            f"It waits for transactions ({len(self.writers)}) that were writing to it when it joined the "
            "publication: no message will bring their rows. End them (pg_locks and pg_prepared_xacts show "
            "them), and it is copied."
        )


@dataclass(slots=True)
class NewTables:
    """The tables that joined during one run."""

    tables: dict[tuple[TableName, Membership], NewTable] = field(default_factory=dict)

    def poll(
        self, connection: Connection, joined: Mapping[TableName, Membership]
    ) -> dict[TableName, NewTable]:
        """Read who writes to tables that joined, and return each as it is now."""
        if not joined:
            return {}
        writers = read_writers(connection, [now.relation_id for now in joined.values()])
        return self.update(joined, writers, time.monotonic())

    def update(
        self, joined: Mapping[TableName, Membership], writers: OpenTransactions, now: float
    ) -> dict[TableName, NewTable]:
        """Return each table that joined as it is, given who writes to it now."""
        found = {}
        for name, membership in joined.items():
            relation_id = membership.relation_id
            seen = self.tables.setdefault((name, membership), NewTable(writers.writers_of(relation_id), now))
            seen.writers = writers.still_open(seen.writers, relation_id)
            found[name] = seen
        return found


def is_new(now: Membership, states: Sequence[CopyState]) -> bool:
    """Return whether a table has no copy under its publication entry; FOR ALL TABLES has no entries."""
    return now.entry != 0 and all(state.membership != now.entry for state in states)
