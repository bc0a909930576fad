"""Tables that joined the publication, until all transactions have ended that were writing to them then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.postgres.connection import Connection
from pipeline.postgres.open_transactions import OpenTransactions, read_writers
from pipeline.postgres.publication import Membership
from pipeline.table_name import TableName

PATIENCE = 600.0
"""Seconds until a table that waits counts as one that cannot be copied."""
RUN_PATIENCE = 60.0
"""The same in a run that ends by itself: what comes after it, as for other tables, waits meanwhile."""


@dataclass(slots=True)
class NewTable:
    """A table since it was first seen in the publication: who was writing to it then, and still is."""

    writers: frozenset[str]
    until: float  # of the monotonic clock, in seconds: then it has waited for long
    is_in_session: bool = False  # the stream's session began after all of these had ended

    @property
    def is_waiting(self) -> bool:
        """Return whether one of the writers is still open."""
        return bool(self.writers)

    def sentence(self, now: float) -> str | None:
        """Return what it waits for, if it has waited for long."""
        if not self.is_waiting or now < self.until:
            return None
        return (
            f"It waits for transactions ({len(self.writers)}) that were writing to it when it joined the "
            "publication: no message will bring their rows. End them (pg_locks and pg_prepared_xacts show "
            "them), and ingest reads it."
        )


@dataclass(slots=True)
class NewTables:
    """The tables that joined during one run; each waits for as many seconds as `patience`."""

    patience: float = PATIENCE
    tables: dict[tuple[TableName, Membership], NewTable] = field(default_factory=dict)

    @property
    def is_waiting_briefly(self) -> bool:
        """Return whether a table waits that has not waited for long."""
        now = time.monotonic()
        return any(t.is_waiting and now < t.until for t in self.tables.values())

    def keep(self, published: Mapping[TableName, Membership]) -> None:
        """Remove the tables that are no longer published or whose publication entry changed."""
        self.tables = {key: table for key, table in self.tables.items() if published.get(key[0]) == key[1]}

    def poll(
        self, connection: Connection, joined: Mapping[TableName, Membership]
    ) -> dict[TableName, NewTable]:
        """Read the open transactions that write to tables that joined, and return each table's state."""
        if not joined:
            return {}
        writers = read_writers(connection, [now.relation_id for now in joined.values()])
        return self.update(joined, writers, time.monotonic())

    def update(
        self, joined: Mapping[TableName, Membership], writers: OpenTransactions, now: float
    ) -> dict[TableName, NewTable]:
        """Return the state of each table that joined, given the open transactions that write to it."""
        found = {}
        for name, membership in joined.items():
            relation_id = membership.relation_id
            seen = self.tables.setdefault(
                (name, membership), NewTable(writers.writers_of(relation_id), now + self.patience)
            )
            seen.writers = writers.still_open(seen.writers, relation_id)
            found[name] = seen
        return found
