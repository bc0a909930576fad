"""Random histories of a table: the changes PostgreSQL would send, and the rows that must come of them.

`random_changes` plays PostgreSQL: it keeps a source table of some shape and returns what it would send for a
statement, by replica identity and TOAST. It applies nothing that was sent, so the rows at the end are the
source's own. The same seed makes the same history.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from tests.support.model import ModelChange, Row, Shape, Text

KEYED = Shape(("k", "a", "big"), "d", flagged=(0,), toast=frozenset({"big"}))
COMPOSITE = Shape(("a", "k2", "big", "k1", "b"), "i", flagged=(1, 3), toast=frozenset({"big", "k2"}))
FULL_WITH_KEY = Shape(("a", "k", "big"), "f", flagged=(0, 1, 2), primary_key=(1,), toast=frozenset({"big"}))
BAG = Shape(("a", "b", "big"), "f", flagged=(0, 1, 2), toast=frozenset({"big"}))
APPENDED = Shape(("a", "b"), "n")
SHAPES = (KEYED, COMPOSITE, FULL_WITH_KEY, BAG, APPENDED)


class History(NamedTuple):
    """A source table's rows at first, the changes it sent, and its rows and shape at the end."""

    initial: list[Row]
    changes: list[ModelChange]
    final: list[Row]
    shape: Shape


def random_changes(rng: Random, shape: Shape, *, count: int = 60, evolves: bool = False) -> History:
    """Return at least `count` changes that PostgreSQL could send for a table of this shape.

    Keys are integers as text below 8, with few values in use, so that they come back often; other values are
    short text, NULL, or `T…` for a value kept in TOAST. `evolves` lets columns join and leave on the way, and
    switches a table whose primary key is known between identity `d` and `f`.
    """
    source = Source(rng, shape)
    for _ in range(rng.randint(0, 6)):
        source.insert()
    initial = [dict(row) for row in source.rows]
    source.sent.clear()
    while len(source.sent) < count:
        source.step(evolves=evolves)
    return History(initial, source.sent, source.rows, source.shape)


@dataclass(slots=True)
class Source:
    """A table as PostgreSQL keeps it; every method changes `rows` and appends what is sent for it."""

    rng: Random
    shape: Shape
    rows: list[Row] = field(default_factory=list)
    sent: list[ModelChange] = field(default_factory=list)
    serial: int = 100

    def step(self, *, evolves: bool) -> None:
        kinds: list[Callable[[], None]] = [self.insert] * 6
        if self.rng.random() < 0.06:
            kinds = [self.truncate]
        elif evolves and self.rng.random() < 0.05:
            kinds = [self.add_column, self.drop_column, self.switch_identity]
        elif self.rows and (self.shape.key or self.shape.is_bag):
            kinds += [self.change] * 8 + [self.delete] * 3 + [self.delete_insert, self.touch]
            if self.shape.key:
                kinds += [self.move, self.move, self.chain, self.swap, self.shift]
        self.rng.choice(kinds)()

    # Values -------------------------------------------------------------------------------------------------

    @property
    def key_names(self) -> list[str]:
        return [self.shape.columns[position] for position in self.shape.key]

    def value(self, name: str) -> Text:
        if name in self.shape.toast and self.rng.random() < 0.6:
            self.serial += 1
            # In a bag, equal rows are the point: large values repeat there.
            return f"T{self.rng.randint(0, 1) if self.shape.is_bag else self.serial}"
        return self.rng.choice(("x", "y", "", None))

    def free_key(self) -> Row:
        while True:
            self.serial += 1
            digits = [str(self.rng.choice((self.rng.randint(0, 7), self.serial))) for _ in self.key_names]
            key: Row = {
                n: f"T{d}" if n in self.shape.toast and self.rng.random() < 0.5 else d
                for n, d in zip(self.key_names, digits, strict=True)
            }
            if not key or not any(key.items() <= row.items() for row in self.rows):
                return key

    def fresh_values(self) -> Row:
        return {name: self.value(name) for name in self.shape.columns}

    # What goes on the wire ----------------------------------------------------------------------------------

    def tuple_of(self, row: Row) -> tuple[Text, ...]:
        return tuple(row.get(name) for name in self.shape.columns)

    def old_tuple(self, row: Row, new: Row | None) -> tuple[str | None, tuple[Text, ...] | None]:
        """Return the kind and tuple of the old row; a key in TOAST is sent even when it did not change."""
        if self.shape.identity == "f":
            return "O", self.tuple_of(row)
        key = [(name, row[name]) for name in self.key_names]
        if new and all(new[n] == v for n, v in key) and not any(self.is_large(n, v) for n, v in key):
            return None, None
        return "K", tuple(row[n] if n in self.key_names else None for n in self.shape.columns)

    def is_large(self, name: str, value: Text) -> bool:
        return name in self.shape.toast and value is not None and value.startswith("T")

    def insert(self, row: Row | None = None) -> None:
        row = row if row is not None else self.fresh_values() | self.free_key()
        self.rows.append(row)
        self.sent.append(ModelChange("I", self.shape, new=self.tuple_of(row)))

    def set(self, row: Row, values: Row) -> None:
        """Update one row: large values that are not in `values` are not sent."""
        kind, old = self.old_tuple(row, row | values)
        unsent = frozenset(
            position
            for position, name in enumerate(self.shape.columns)
            if name not in values and self.is_large(name, row.get(name))
        )
        row.update(values)
        new = tuple(None if p in unsent else value for p, value in enumerate(self.tuple_of(row)))
        self.sent.append(ModelChange("U", self.shape, kind, old, new, unsent))

    # Statements ---------------------------------------------------------------------------------------------

    def change(self) -> None:
        others = [name for name in self.shape.columns if name not in self.key_names]
        names = self.rng.sample(others, self.rng.randint(1, len(others)))
        self.set(self.rng.choice(self.rows), {name: self.value(name) for name in names})

    def touch(self) -> None:
        self.set(self.rng.choice(self.rows), {})

    def delete(self, row: Row | None = None) -> None:
        row = row if row is not None else self.rng.choice(self.rows)
        # By identity, not equality: of several equal rows exactly this one goes.
        self.rows[:] = [other for other in self.rows if other is not row]
        self.sent.append(ModelChange("D", self.shape, *self.old_tuple(row, None)))

    def delete_insert(self) -> None:
        row = self.rng.choice(self.rows)
        key = {name: row[name] for name in self.key_names}
        self.delete(row)
        self.insert(self.fresh_values() | key)

    def move(self) -> None:
        extra: Row = {} if self.rng.random() < 0.6 else {n: self.value(n) for n in self.shape.columns[-1:]}
        self.set(self.rng.choice(self.rows), extra | self.free_key())

    def chain(self) -> None:
        row = self.rng.choice(self.rows)
        first: Row = {name: row[name] for name in self.key_names}
        for _ in range(self.rng.randint(2, 5)):
            self.set(row, self.free_key())
        if self.rng.random() < 0.4 and not first.items() <= row.items():
            self.insert(self.fresh_values() | first)

    def swap(self) -> None:
        if len(self.rows) > 1:
            one, two = self.rng.sample(self.rows, 2)
            first: Row = {name: one[name] for name in self.key_names}
            second: Row = {name: two[name] for name in self.key_names}
            self.set(one, self.free_key())
            self.set(two, first)
            self.set(one, second)

    def shift(self) -> None:
        """Add a large number to the last key column of several rows, as one statement would."""
        self.serial += 1
        name = self.key_names[-1]
        for row in self.rng.sample(self.rows, self.rng.randint(1, len(self.rows))):
            self.set(row, {name: f"{row[name]}{self.serial:06d}"})

    def truncate(self) -> None:
        if self.rng.random() < 0.5:
            self.insert()
        self.rows.clear()
        self.sent.append(ModelChange("T", self.shape))

    # Shapes -------------------------------------------------------------------------------------------------

    def add_column(self) -> None:
        self.serial += 1
        columns = (*self.shape.columns, f"c{self.serial}")
        flagged = tuple(range(len(columns))) if self.shape.identity == "f" else self.shape.flagged
        self.shape = replace(self.shape, columns=columns, flagged=flagged)
        for row in self.rows:
            row[columns[-1]] = None

    def drop_column(self) -> None:
        """Drop the last column added; silver keeps its values, the source does not."""
        if self.shape.columns[-1].startswith("c"):
            columns = self.shape.columns[:-1]
            flagged = tuple(range(len(columns))) if self.shape.identity == "f" else self.shape.flagged
            for row in self.rows:
                del row[self.shape.columns[-1]]
            self.shape = replace(self.shape, columns=columns, flagged=flagged)

    def switch_identity(self) -> None:
        if self.shape.identity == "f" and self.shape.primary_key:
            self.shape = replace(self.shape, identity="d", flagged=self.shape.primary_key)
        elif self.shape.identity == "d" and self.shape.flagged:
            everything = tuple(range(len(self.shape.columns)))
            self.shape = replace(self.shape, identity="f", flagged=everything, primary_key=self.shape.flagged)
