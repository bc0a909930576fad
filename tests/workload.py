"""Random, seeded DML and DDL against a live PostgreSQL, through a plain psycopg connection.

`create_schema` makes six tables, one for each way PostgreSQL can name a row in the stream; `run_workload`
then commits transactions of inserts, updates, deletes, truncates, key changes, savepoints and ADD COLUMN.
The same seed on the same server version makes the same statements. Rows are picked in the order of their
keys or of their text, never by ctid alone, so that a seed that fails can be run again. Values are only such
as silver can hold: years 1 to 9999, no infinite dates, arrays of one dimension. Callers print the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg

from tests.workload_values import LARGE, random_value

Connection = psycopg.Connection[Any]
CommitHook = Callable[[str], None]

ADDABLE_TYPES = ("int4", "text", "numeric(9,2)", "timestamptz", "bool", "jsonb", "float8", "text[]")
MOODS = ("sad", "ok", "so, so", 'the "best"', "it's")


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    is_toast: bool = False
    is_required: bool = False

    @property
    def quoted(self) -> str:
        return quote(self.name)


@dataclass(slots=True)
class Table:
    """A table of the workload; `key` are the columns silver can know a row by, empty when there are none."""

    schema: str
    name: str
    columns: list[Column]
    key: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    identity: str = "DEFAULT"
    is_insert_only: bool = False
    added: int = 0

    @property
    def quoted(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"

    @property
    def toast(self) -> list[Column]:
        return [column for column in self.columns if column.is_toast]

    @property
    def key_columns(self) -> list[Column]:
        return [column for column in self.columns if column.name in self.key]

    @property
    def plain(self) -> list[Column]:
        """Columns an update may set without changing a key or touching TOAST."""
        return [c for c in self.columns if not (c.name in self.key or c.is_required or c.is_toast)]


@dataclass(slots=True)
class Schema:
    """What `create_schema` made: tables in a schema of their own, and a counter that keeps keys fresh."""

    name: str
    tables: list[Table]
    has_truncate: bool
    fresh: int = 0

    @property
    def names(self) -> list[tuple[str, str]]:
        return [(table.schema, table.name) for table in self.tables]


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


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def create_schema(conn: Connection, rng: Random, *, name: str | None = None) -> Schema:
    """Create and return six tables in a new schema, with every replica identity, TOAST and many types."""
    schema = name or f"w_{rng.getrandbits(40):010x}"
    mood = f'{quote(schema)}."mood"'
    wide = conn.info.server_version >= 150000  # numeric with a negative scale or one above the precision
    tables = [
        Table(
            schema,
            "documents",
            [
                Column("id", "int4", is_required=True),
                Column("body", "text", is_toast=True),
                Column("title", "varchar(40)"),
                Column("revision", "int4"),
                Column("attachment", "bytea", is_toast=True),
            ],
            key=("id",),
            constraints=("PRIMARY KEY (id)",),
        ),
        Table(
            schema,
            "Lines",
            [
                Column("region", "text", is_required=True),
                Column("no", "int4", is_required=True),
                Column("paid", "bool"),
                Column("small", "int2"),
                Column("big", "int8"),
                Column("ratio", "float4"),
                Column("select", "float8"),
                Column("price", "numeric(12,3)"),
                Column("exact", "numeric"),
                Column("widest", "numeric(38,9)"),
                *([Column("thousands", "numeric(5,-3)"), Column("millis", "numeric(3,5)")] if wide else []),
                Column("code", "bpchar(6)"),
                Column("day", "date"),
                Column("at", "timestamp"),
                Column("at_zone", "timestamptz"),
                Column("at_tenths", "timestamptz(1)"),
                Column("remark", "text", is_toast=True),
            ],
            key=("region", "no"),
            constraints=('PRIMARY KEY (region, "no")',),
        ),
        Table(
            schema,
            "tickets",
            [
                Column("id", "int8", is_required=True),
                Column("a.b", "uuid"),
                # A key that is itself kept in TOAST: an update sends it as K and leaves it out of N.
                Column("code", "text", is_toast=True, is_required=True),
                Column("part", "int4", is_required=True),
                Column("mood", mood),
                Column("raw", "json"),
                Column("doc", "jsonb"),
                Column("numbers", "int4[]"),
                Column("words", "text[]"),
                Column("amounts", "numeric[]"),
                Column("times", "timestamptz[]"),
                Column("moods", f"{mood}[]"),
                Column("log", "text", is_toast=True),
            ],
            key=("code", "part"),
            constraints=("PRIMARY KEY (id)", "CONSTRAINT tickets_by_code UNIQUE (code, part)"),
            identity="USING INDEX tickets_by_code",
        ),
        Table(
            schema,
            "readings",
            [
                Column("sensor", "int4"),
                Column("value", "float8"),
                Column("value4", "float4"),
                Column("exact", "numeric"),
                Column("money", "numeric(10,2)"),
                Column("doc", "jsonb"),
                Column("raw", "json"),
                Column("at", "timestamptz"),
                Column("tags", "text[]"),
                Column("floats", "float8[]"),
                Column("trace", "text", is_toast=True),
            ],
            identity="FULL",
        ),
        Table(
            schema,
            "accounts",
            [
                Column("name", "text"),
                Column("id", "int4", is_required=True),
                Column("balance", "numeric(20,4)"),
                Column("rate", "float8"),
                Column("terms", "text", is_toast=True),
                Column("picture", "bytea", is_toast=True),
            ],
            key=("id",),
            constraints=("PRIMARY KEY (id)",),
            identity="FULL",
        ),
        Table(
            schema,
            "journal",
            [
                Column("line", "text"),
                Column("n", "int8"),
                Column("day", "date"),
                Column("payload", "bytea", is_toast=True),
            ],
            identity="NOTHING" if rng.random() < 0.5 else "DEFAULT",
            is_insert_only=True,
        ),
    ]
    with conn.transaction():
        conn.execute(f"CREATE SCHEMA {quote(schema)}")
        labels = ", ".join("'" + label.replace("'", "''") + "'" for label in MOODS)
        conn.execute(f"CREATE TYPE {mood} AS ENUM ({labels})")
        for table in tables:
            create_table(conn, table)
    return Schema(schema, tables, has_truncate=conn.info.server_version >= 110000)


def create_table(conn: Connection, table: Table) -> None:
    lines = [f"{c.quoted} {c.type}{' NOT NULL' if c.is_required else ''}" for c in table.columns]
    conn.execute(f"CREATE TABLE {table.quoted} ({', '.join([*lines, *table.constraints])})")
    for column in table.toast:
        conn.execute(f"ALTER TABLE {table.quoted} ALTER {column.quoted} SET STORAGE EXTERNAL")
    conn.execute(f"ALTER TABLE {table.quoted} REPLICA IDENTITY {table.identity}")


def run_workload(
    conn: Connection,
    rng: Random,
    transactions: int,
    *,
    schema: Schema,
    commit_hook: CommitHook | None = None,
    operations: int = 6,
) -> WorkloadCounts:
    """Commit exactly `transactions` transactions of up to `operations` steps each, and return what they did.

    After each commit `commit_hook` is called with `pg_current_wal_insert_lsn()` as text. Transactions that
    are rolled back come between them and are counted apart. `conn` must be in autocommit mode and idle.
    """
    counts = WorkloadCounts()
    while counts.transactions < transactions:
        fate = rng.random()
        step = Step(conn, rng, schema)
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
class Step:
    """The statements of one transaction: each method runs one kind of work and counts the rows it touched."""

    conn: Connection
    rng: Random
    schema: Schema
    counts: WorkloadCounts = field(default_factory=WorkloadCounts)

    # Savepoints ---------------------------------------------------------------------------------------------

    def columns(self) -> list[tuple[list[Column], int]]:
        return [(list(table.columns), table.added) for table in self.schema.tables]

    def restore(self, before: list[tuple[list[Column], int]]) -> None:
        for table, (columns, added) in zip(self.schema.tables, before, strict=True):
            table.columns, table.added = columns, added

    def block(self, size: int, *, depth: int) -> None:
        """Run `size` steps; some of them are savepoints with steps inside, half of which are rolled back."""
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

    # Rows ---------------------------------------------------------------------------------------------------

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

    # Inserts ------------------------------------------------------------------------------------------------

    def insert(self, table: Table) -> None:
        self.put(table, self.new_rows(table, 1))

    def insert_many(self, table: Table) -> None:
        self.put(table, self.new_rows(table, self.rng.randint(2, 12)))

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


def is_identity(clause: str) -> bool:
    left, right = clause.split(" = ")
    return left == right
