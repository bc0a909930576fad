"""The rows of one transaction of a workload: found, made, written, and counted as they are.

Rows are picked in the order of their keys or of their text, never by ctid alone, so that a seed that fails
can be run again. Keys come from a small range, so that one comes back after its row has gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.workload.tables import MOODS, Column, Connection, Schema, Table
from tests.support.workload.values import LARGE, random_value


@dataclass(slots=True)
class WorkloadCounts:
    """What was committed; work that was rolled back counts only in the two fields that say so."""

    transactions: int = 0
    empty_transactions: int = 0
    rolled_back_transactions: int = 0
    rolled_back_savepoints: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    key_changes: int = 0
    toast_unsent: int = 0
    toast_updates: int = 0
    columns_added: int = 0
    messages: int = 0

    def __add__(self, other: WorkloadCounts) -> WorkloadCounts:
        return WorkloadCounts(*(getattr(self, n) + getattr(other, n) for n in self.__slots__))


@dataclass(slots=True)
class Writer:
    """Find rows and keys, make new rows, and count all that is written."""

    conn: Connection
    rng: Random
    schema: Schema
    counts: WorkloadCounts = field(default_factory=WorkloadCounts)

    def rows(self, table: Table) -> list[tuple[Any, ...]]:
        """Return what a WHERE can name each row by: its key, or its ctid; in an order the seed can repeat."""
        names = ", ".join(c.quoted for c in table.key_columns)
        query = (
            f"SELECT {names} FROM {table.quoted} ORDER BY {names}"
            if names
            else (f"SELECT ctid::text FROM {table.quoted} t ORDER BY t::text, ctid")
        )
        return self.conn.execute(query).fetchall()

    def where(self, table: Table) -> str:
        return " AND ".join(f"{c.quoted} = %s" for c in table.key_columns) or "ctid = %s::tid"

    def pick(self, table: Table, count: int = 1) -> list[tuple[Any, ...]]:
        """Return up to `count` rows of the table, filling it first when it is empty."""
        rows = self.rows(table)
        if len(rows) < count:
            self.insert_many(table)
            rows = self.rows(table)
        return self.rng.sample(rows, min(count, len(rows)))

    def new_key(self, table: Table, taken: set[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return a key that no row has now: mostly one that was used before, sometimes a new one."""
        while True:
            key: list[Any] = []
            for column in table.key_columns:
                if column.is_toast and self.rng.random() < 0.4:
                    key.append(self.rng.choice("xyz") * self.rng.randint(2100, 2400))
                elif column.type == "text":
                    key.append(self.rng.choice(("north", "south", "", "Ost ", "it's", "日本", "NULL", "n,o")))
                else:
                    key.append(self.rng.randint(-3, 40))
            if self.rng.random() < 0.05:
                self.schema.fresh += 1
                key[-1] = 1000 + self.schema.fresh  # every key ends in an int4
            if tuple(key) not in taken:
                return tuple(key)

    def values(self, table: Table, key: Sequence[Any] = ()) -> list[Any]:
        """Return one row's values in column order, with `key` in the columns of the key."""
        given = dict(zip((c.name for c in table.key_columns), key, strict=True)) if key else {}
        row = []
        for column in table.columns:
            if column.name in given:
                row.append(given[column.name])
            elif column.is_required:  # a primary key that is not the replica identity
                self.schema.fresh += 1
                row.append(self.schema.fresh)
            else:
                row.append(self.value(column))
        return row

    def value(self, column: Column) -> str | None:
        return random_value(self.rng, column.type, is_toast=column.is_toast, labels=MOODS)

    def new_rows(self, table: Table, count: int) -> list[list[Any]]:
        if not table.key:
            return [self.values(table) for _ in range(count)]
        taken = set(self.rows(table))
        rows = []
        for _ in range(count):
            key = self.new_key(table, taken)
            taken.add(key)
            rows.append(self.values(table, key))
        return rows

    def put(self, table: Table, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            names = ", ".join(c.quoted for c in table.columns)
            tuples = ", ".join([f"({', '.join(f'%s::{c.type}' for c in table.columns)})"] * len(rows))
            parameters = [value for row in rows for value in row]
            self.conn.execute(f"INSERT INTO {table.quoted} ({names}) VALUES {tuples}", parameters)
            self.counts.inserts += len(rows)

    def insert_many(self, table: Table) -> None:
        self.put(table, self.new_rows(table, self.rng.randint(2, 12)))

    def set(
        self, table: Table, settings: Iterable[str], where: str, parameters: Sequence[Any], **kinds: bool
    ) -> None:
        """Run one UPDATE and count its rows, those that leave a TOAST value unsent, and the `kinds` named."""
        clauses = list(settings)
        assigned = {clause.split(" = ")[0] for clause in clauses if not is_identity(clause)}
        kept = [c.quoted for c in table.toast if c.quoted not in assigned]
        large = " OR ".join(f"coalesce(octet_length({name}), 0) >= {LARGE}" for name in kept) or "false"
        query = f"UPDATE {table.quoted} SET {', '.join(clauses)} WHERE {where} RETURNING {large}"
        touched = self.conn.execute(query, parameters).fetchall()
        self.counts.updates += len(touched)
        self.counts.toast_unsent += sum(unsent for [unsent] in touched)
        for kind, applies in kinds.items():
            setattr(self.counts, kind, getattr(self.counts, kind) + applies * len(touched))

    def remove(self, table: Table, where: str, parameters: Sequence[Any]) -> None:
        deleted = self.conn.execute(f"DELETE FROM {table.quoted} WHERE {where}", parameters).rowcount
        self.counts.deletes += deleted


def is_identity(clause: str) -> bool:
    left, right = clause.split(" = ")
    return left == right
