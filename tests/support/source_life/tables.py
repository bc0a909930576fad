"""The tables of a random life as its program knows them, and literals of their types."""

from dataclasses import dataclass, field
from random import Random

from pipeline.postgres.sql_text import quote_identifier, quote_literal
from tests.support.workload.shapes import TYPES, draw_name
from tests.support.workload.tables import Column, Table
from tests.support.workload.values import random_value

BOUNDS = ("MINVALUE", "10", "25", "MAXVALUE")  # of the partitions, by the integer of the key


@dataclass(slots=True)
class LifeTable(Table):
    """A table of a life; `names` are those that columns ever had, `partitions` those of `BOUNDS`, if any.

    `unlogged` are partitions. `index` is the name of the index of its key, which stays if the table gets
    another name.
    """

    names: set[str] = field(default_factory=set)
    partitions: list[str] = field(default_factory=list)
    unlogged: set[str] = field(default_factory=set)
    index: str = ""

    @property
    def number(self) -> str:
        """The integer column of the key."""
        return quote_identifier(self.key[-1])

    def replace(self, old: Column, *new: Column) -> None:
        """Replace a column where it is, or remove it."""
        self.columns = [each for column in self.columns for each in (new if column is old else (column,))]


@dataclass(slots=True)
class Life:
    """What a program knows of its source: the server's major, the tables, and how they are published."""

    rng: Random
    major: int
    publication: str = "configured"  # or all, or listed: FOR TABLE, by a person
    via_root: bool = True
    tables: list[LifeTable] = field(default_factory=list)
    fresh: int = 0

    def number(self) -> int:
        """Return a number that was not used before."""
        self.fresh += 1
        return self.fresh

    def draw_column(self, table: LifeTable) -> Column:
        """Return a new column with a name that the table never had."""
        name = draw_name(self.rng, table.names) if self.rng.random() < 0.2 else f"c{self.number()}"
        table.names.add(name.lower())
        if self.rng.random() < 0.15:
            return Column(name, self.rng.choice(("text", "bytea")), is_toast=True)
        return Column(name, self.rng.choice(TYPES))

    def literal(self, column: Column) -> str:
        """Return a value of a column as SQL; values in TOAST are of few words and long."""
        if column.is_toast and self.rng.random() < 0.6:
            long = (
                f"repeat('{self.rng.choice('pqrs')}{self.rng.randint(0, 9)}', {self.rng.randint(1100, 2200)})"
            )
            return f"convert_to({long}, 'UTF8')" if column.type == "bytea" else long
        value = random_value(self.rng, column.type)
        return f"NULL::{column.type}" if value is None else f"{quote_literal(value)}::{column.type}"

    def key(self, table: LifeTable) -> list[str]:
        """Return literals of a key, from a small range."""
        regions = ("north", "south", "", "it's")
        return [
            quote_literal(self.rng.choice(regions))
            if column.type == "text"
            else str(self.rng.randint(-3, 40))
            for column in table.key_columns
        ]

    def new_table(self) -> LifeTable:
        """Return a new table, which the program has from now on."""
        kind = self.rng.choice(("key", "key", "two keys", "full", "full with key", "parts", "parts"))
        name = f"t{self.number()}"
        table = LifeTable("public", name, [], index=f"{name}_pkey")
        keys = [Column("region", "text", is_required=True)] if kind == "two keys" else []
        keys += [] if kind == "full" else [Column("id", "int4", is_required=True)]
        table.names |= {column.name for column in keys}
        table.key = tuple(column.name for column in keys)
        table.columns = [*keys, *(self.draw_column(table) for _ in range(self.rng.randint(2, 5)))]
        table.identity = "FULL" if kind.startswith("full") else "DEFAULT"
        if kind == "parts":
            table.partitions = [f"{table.name}_p{n}" for n in range(len(BOUNDS) - 1)]
        self.tables.append(table)
        return table


def creation(table: LifeTable) -> list[str]:
    """Return the statements that create a table, with its partitions."""
    columns = [f"{c.quoted} {c.type}{' NOT NULL' if c.is_required else ''}" for c in table.columns]
    keys = ", ".join(column.quoted for column in table.key_columns)
    key = [f"CONSTRAINT {table.index} PRIMARY KEY ({keys})"] if keys else []
    by = f" PARTITION BY RANGE ({table.number})" if table.partitions else ""
    made = [f"CREATE TABLE {table.name} ({', '.join([*columns, *key])}){by}"]
    made += [partition(table, n) for n in range(len(table.partitions))]
    stored = [f"ALTER {c.quoted} SET STORAGE EXTERNAL" for c in table.toast]
    if stored:
        made.append(f"ALTER TABLE {table.name} {', '.join(stored)}")
    if table.identity == "FULL":
        made.append(f"ALTER TABLE {table.name} REPLICA IDENTITY FULL")
    return made


def partition(table: LifeTable, position: int, verb: str = "CREATE TABLE {} PARTITION OF {}") -> str:
    """Return the statement that creates, or attaches, the partition at a position."""
    low, high = BOUNDS[position : position + 2]
    return f"{verb.format(table.partitions[position], table.name)} FOR VALUES FROM ({low}) TO ({high})"
