"""The kinds of work that a transaction of a workload may do, each a method that takes a table.

They are chosen for what is hard to replicate: keys that move, meet and come back, values in TOAST that are
not sent, COPY and upserts, equal rows, truncates among inserts, and columns that join.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.workload.rows import Writer
from tests.support.workload.tables import Column, Table

ADDABLE_TYPES = ("int4", "text", "numeric(9,2)", "timestamptz", "bool", "jsonb", "float8", "text[]")


@dataclass(slots=True)
class Statements(Writer):
    """The statements of one transaction: each method runs one kind of work and counts the rows it touched."""

    # Inserts ------------------------------------------------------------------------------------------------

    def insert(self, table: Table) -> None:
        self.put(table, self.new_rows(table, 1))

    def copy_in(self, table: Table) -> None:
        """Insert by COPY, whose rows share one LSN."""
        rows = self.new_rows(table, self.rng.randint(1, 8))
        names = ", ".join(c.quoted for c in table.columns)
        with self.conn.cursor() as cursor, cursor.copy(f"COPY {table.quoted} ({names}) FROM STDIN") as target:
            for row in rows:
                target.write_row(row)
        self.counts.inserts += len(rows)

    def duplicate(self, table: Table) -> None:
        [[ctid]] = self.pick(table)
        query = f"INSERT INTO {table.quoted} SELECT t.* FROM {table.quoted} t, generate_series(1, %s) "
        inserted = self.conn.execute(
            query + "WHERE t.ctid = %s::tid", [self.rng.randint(1, 3), ctid]
        ).rowcount
        self.counts.inserts += inserted

    def upsert(self, table: Table) -> None:
        keys = [*self.pick(table, 2), self.new_key(table, set(self.rows(table)))]
        names = ", ".join(c.quoted for c in table.columns)
        target = ", ".join(c.quoted for c in table.key_columns)
        changed = self.rng.sample(table.plain, 2)
        update = ", ".join(f"{c.quoted} = excluded.{c.quoted}" for c in changed)
        for key in self.rng.sample(keys, 2):
            row = self.values(table, key)
            tuple_ = ", ".join(f"%s::{c.type}" for c in table.columns)
            query = f"INSERT INTO {table.quoted} ({names}) VALUES ({tuple_}) ON CONFLICT ({target}) "
            result = self.conn.execute(query + f"DO UPDATE SET {update} RETURNING xmax = 0", row).fetchone()
            assert result is not None
            self.counts.inserts += result[0]
            self.counts.updates += not result[0]

    # Updates ------------------------------------------------------------------------------------------------

    def assignments(self, columns: Sequence[Column]) -> tuple[list[str], list[Any]]:
        return [f"{c.quoted} = %s::{c.type}" for c in columns], [self.value(c) for c in columns]

    def update(self, table: Table) -> None:
        """Set some columns of one row, without its TOAST."""
        columns = self.rng.sample(table.plain, self.rng.randint(1, min(3, len(table.plain))))
        settings, values = self.assignments(columns)
        [row] = self.pick(table)
        self.set(table, settings, self.where(table), [*values, *row])

    def update_many(self, table: Table) -> None:
        settings, values = self.assignments([self.rng.choice(table.plain)])
        rows = self.pick(table, self.rng.randint(2, 10))
        where = " OR ".join([f"({self.where(table)})"] * len(rows))
        self.set(table, settings, where, [*values, *(value for row in rows for value in row)])

    def update_toast(self, table: Table) -> None:
        """Set one TOAST column of one row and nothing else; a key in TOAST is left to `change_key`."""
        settings, values = self.assignments([self.rng.choice([c for c in table.toast if not c.is_required])])
        [row] = self.pick(table)
        self.set(table, settings, self.where(table), [*values, *row], toast_updates=True)

    def update_same(self, table: Table) -> None:
        """Set every column to itself: all values are sent again but those in TOAST."""
        rows = self.pick(table, self.rng.randint(1, 5))
        where = " OR ".join([f"({self.where(table)})"] * len(rows))
        settings = [f"{c.quoted} = {c.quoted}" for c in table.columns]
        self.set(table, settings, where, [value for row in rows for value in row])

    def rename(self, table: Table, old: Sequence[Any], new: Sequence[Any]) -> None:
        """Change one row's key, sometimes with another column in the same statement."""
        columns = [self.rng.choice(table.plain)] if self.rng.random() < 0.4 else []
        settings, values = self.assignments(columns)
        keys = [f"{c.quoted} = %s" for c in table.key_columns]
        self.set(table, keys + settings, self.where(table), [*new, *values, *old], key_changes=True)

    def change_key(self, table: Table) -> None:
        [row] = self.pick(table)
        other = [c for c in table.columns if c.is_required and c.name not in table.key]
        if other and self.rng.random() < 0.3:
            # The primary key changes and the identity index does not: no old tuple is sent.
            self.schema.fresh += 1
            self.set(table, [f"{other[0].quoted} = %s"], self.where(table), [self.schema.fresh, *row])
        else:
            self.rename(table, row, self.new_key(table, set(self.rows(table))))

    def chain(self, table: Table) -> None:
        """Move one row over several keys, and sometimes put a new row where it was."""
        [row] = self.pick(table)
        first = row
        for _ in range(self.rng.randint(2, 4)):
            key = self.new_key(table, set(self.rows(table)))
            self.rename(table, row, key)
            row = key
        if self.rng.random() < 0.4 and row != first:
            self.put(table, [self.values(table, first)])

    def swap(self, table: Table) -> None:
        """Give two rows each other's keys, by way of a third."""
        rows = self.pick(table, 2)
        if len(rows) == 2:
            spare = self.new_key(table, set(self.rows(table)))
            for old, new in ((rows[0], spare), (rows[1], rows[0]), (spare, rows[1])):
                self.rename(table, old, new)

    def shift(self, table: Table) -> None:
        """Add a large number to a range of keys in one statement."""
        self.schema.fresh += 1
        column = table.key_columns[-1].quoted
        low = self.rng.randint(-3, 40)
        by, high = 1_000_000 + 10_000 * self.schema.fresh, low + self.rng.randint(0, 15)
        self.set(
            table,
            [f"{column} = {column} + %s"],
            f"{column} BETWEEN %s AND %s",
            [by, low, high],
            key_changes=True,
        )

    # Deletes, truncates and the rest ------------------------------------------------------------------------

    def delete(self, table: Table) -> None:
        [row] = self.pick(table)
        self.remove(table, self.where(table), row)

    def delete_many(self, table: Table) -> None:
        rows = self.pick(table, self.rng.randint(2, 15))
        where = " OR ".join([f"({self.where(table)})"] * len(rows))
        self.remove(table, where, [value for row in rows for value in row])

    def delete_then_insert(self, table: Table) -> None:
        """Delete a row and insert another under its key, with NULLs where the first may have had values."""
        [row] = self.pick(table)
        self.remove(table, self.where(table), row)
        again = self.values(table, row if table.key else ())
        for position, column in enumerate(table.columns):
            if not (column.is_required or column.name in table.key) and self.rng.random() < 0.5:
                again[position] = None
        self.put(table, [again])
        if table.key and self.rng.random() < 0.5:
            settings, values = self.assignments([self.rng.choice(table.plain)])
            self.set(table, settings, self.where(table), [*values, *row])

    def truncate(self, *tables: Table) -> None:
        options = " RESTART IDENTITY" * (self.rng.random() < 0.3) + " CASCADE" * (self.rng.random() < 0.3)
        self.conn.execute(f"TRUNCATE {', '.join(table.quoted for table in tables)}{options}")
        self.counts.truncates += len(tables)

    def insert_truncate_insert(self, table: Table) -> None:
        self.insert(table)
        self.truncate(table)
        self.insert_many(table)

    def truncate_many(self, table: Table) -> None:
        others = [other for other in self.schema.tables if other is not table]
        self.truncate(table, *self.rng.sample(others, self.rng.randint(1, 2)))

    def add_column(self, table: Table) -> None:
        """Add a column without a default, mostly followed by a change that announces it."""
        if table.added < 3:
            table.added += 1
            column = Column(f"added_{table.added}", self.rng.choice(ADDABLE_TYPES))
            self.conn.execute(f"ALTER TABLE {table.quoted} ADD COLUMN {column.quoted} {column.type}")
            table.columns.append(column)
            self.counts.columns_added += 1
        if self.rng.random() < 0.8:
            (self.insert if table.is_insert_only or self.rng.random() < 0.5 else self.update)(table)

    def message(self, _: Table) -> None:
        """Emit a logical message: it must not be counted among the row changes of its transaction."""
        self.conn.execute(
            "SELECT pg_logical_emit_message(%s, 'workload', 'hello')", [self.rng.random() < 0.7]
        )
        self.counts.messages += 1
