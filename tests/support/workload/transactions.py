"""Transactions of random steps: committed, empty, rolled back, and with savepoints inside.

What is rolled back is forgotten: the tables have the columns they had before, and of its rows nothing is
counted. Which kinds of work a table takes depends on how its rows are known.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from random import Random

from tests.support.workload.rows import WorkloadCounts
from tests.support.workload.statements import Statements
from tests.support.workload.tables import Column, Connection, Schema, Table

CommitHook = Callable[[str], None]
Shape = tuple[list[Column], tuple[str, ...], int]


def run_workload(
    conn: Connection,
    rng: Random,
    transactions: int,
    *,
    schema: Schema,
    commit_hook: CommitHook | None = None,
    operations: int = 6,
    steps: type[Step] | None = None,
) -> WorkloadCounts:
    """Commit exactly `transactions` transactions of up to `operations` steps each, and return what they did.

    After each commit `commit_hook` is called with `pg_current_wal_insert_lsn()` as text. Transactions that
    are rolled back come between them and are counted apart. `conn` must be in autocommit mode and idle.
    `steps` may do more than those here.
    """
    counts = WorkloadCounts()
    while counts.transactions < transactions:
        fate = rng.random()
        step = (steps or Step)(conn, rng, schema)
        before = step.columns()
        conn.execute("BEGIN")
        if fate > 0.03:
            step.block(rng.randint(1, operations), depth=0)
        if fate > 0.95:
            conn.execute("ROLLBACK")
            step.restore(before)
            counts.rolled_back_transactions += 1
            continue
        conn.execute("COMMIT")
        step.counts.transactions = 1
        step.counts.empty_transactions = int(fate <= 0.03)
        counts += step.counts
        if commit_hook is not None:
            row = conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            commit_hook(row[0])
    return counts


@dataclass(slots=True)
class Step(Statements):
    """The steps of one transaction, each one statement or several, some of them within savepoints."""

    def columns(self) -> list[Shape]:
        return [(list(table.columns), table.key, table.added) for table in self.schema.tables]

    def restore(self, before: list[Shape]) -> None:
        for table, (columns, key, added) in zip(self.schema.tables, before, strict=True):
            table.columns, table.key, table.added = columns, key, added

    def block(self, size: int, *, depth: int) -> None:
        """Run `size` steps; some are savepoints with steps inside, and half of these are rolled back."""
        for _ in range(size):
            if depth < 3 and self.rng.random() < 0.12:
                self.savepoint(depth)
            else:
                self.one()

    def savepoint(self, depth: int) -> None:
        before, counts = self.columns(), copy(self.counts)
        self.conn.execute(f"SAVEPOINT s{depth}")
        self.block(self.rng.randint(1, 4), depth=depth + 1)
        if self.rng.random() < 0.5:
            self.conn.execute(f"ROLLBACK TO SAVEPOINT s{depth}")
            self.restore(before)
            self.counts = counts
            self.counts.rolled_back_savepoints += 1
        if self.rng.random() < 0.5:
            self.conn.execute(f"RELEASE SAVEPOINT s{depth}")

    def one(self) -> None:
        table = self.rng.choice(self.schema.tables)
        kinds: list[tuple[int, Callable[[Table], None]]] = [
            (14, self.insert),
            (5, self.insert_many),
            (2, self.copy_in),
            (1, self.add_column),
            (1, self.message),
        ]
        if self.schema.has_truncate:
            kinds += [(1, self.truncate), (1, self.insert_truncate_insert), (1, self.truncate_many)]
        if not table.is_insert_only:
            kinds += [
                (14, self.update),
                (4, self.update_many),
                (5, self.update_toast),
                (3, self.update_same),
                (7, self.delete),
                (1, self.delete_many),
                (4, self.delete_then_insert),
            ]
        if table.key and not table.is_insert_only:
            kinds += [
                (6, self.change_key),
                (3, self.chain),
                (3, self.swap),
                (2, self.shift),
                (4, self.upsert),
            ]
        if not table.key:
            kinds += [(5, self.duplicate)]
        [kind] = self.rng.choices([k for _, k in kinds], [weight for weight, _ in kinds])
        kind(table)
