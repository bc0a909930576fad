"""What applying bronze rows to a table means, in plain Python and one row at a time.

The fold on Spark must give the same rows as `Table.apply` over the same changes. A row is a dict of column
name to PostgreSQL text, None for NULL. Slow on purpose: a table is a list, and every search walks it.

Identity `d` and `i` identify a row by the columns the relation flags; `f` by the primary key if the catalog
named one, else by the whole row, which may occur several times; `n`, and `d` or `i` with nothing flagged,
never by anything.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

Text = str | None
Row = dict[str, Text]


@dataclass(frozen=True, slots=True)
class Shape:
    """A relation version: columns in order, `flagged` and `primary_key` as positions in them.

    `toast` names the columns whose large values an update may leave out; only `random_changes` reads it.
    """

    columns: tuple[str, ...]
    identity: str
    flagged: tuple[int, ...] = ()
    primary_key: tuple[int, ...] = ()
    toast: frozenset[str] = frozenset()

    @property
    def key(self) -> tuple[int, ...]:
        """Positions that identify a row; empty for a multiset and for a table that is only appended to."""
        return self.primary_key if self.identity == "f" else self.flagged if self.identity in "di" else ()

    @property
    def is_bag(self) -> bool:
        return self.identity == "f" and not self.primary_key


@dataclass(frozen=True, slots=True)
class ModelChange:
    """One bronze row of a table: `old` and `new` in the order of `shape`; `unsent` are positions of `new`."""

    op: str
    shape: Shape
    old_kind: str | None = None
    old: tuple[Text, ...] | None = None
    new: tuple[Text, ...] | None = None
    unsent: frozenset[int] = frozenset()


@dataclass(slots=True)
class Table:
    """The rows after the changes applied so far; `unavailable` lists values that no one had (now NULL)."""

    rows: list[Row] = field(default_factory=list)
    unavailable: list[tuple[Row, str]] = field(default_factory=list)

    def apply(self, change: ModelChange) -> None:
        """Apply one change; raise ValueError for one that PostgreSQL cannot send."""
        match change.op:
            case "T":
                self.rows.clear()
            case "I" | "R":
                self.put(change, self.take(change.shape, change.new) if change.shape.key else None)
            case "U":
                self.update(change)
            case "D":
                self.take(change.shape, self.identity_of(change))
            case "M":
                pass
            case op:
                raise ValueError(f"no such op: {op}")

    def update(self, change: ModelChange) -> None:
        shape = change.shape
        old = self.identity_of(change)
        if shape.is_bag:
            self.put(change, self.take(shape, old))
            return
        # A key the update leaves out (TOAST) is the old one, so a K or O may still mean the same key.
        assert change.new is not None
        moved = list(change.new)
        for position in change.unsent & set(shape.key):
            moved[position] = old[position]
        base = self.take(shape, old)
        if any(moved[position] != old[position] for position in shape.key):
            self.take(shape, moved)  # a stale row under the new key gives way
        self.put(replace(change, new=tuple(moved), unsent=change.unsent - set(shape.key)), base)

    def identity_of(self, change: ModelChange) -> tuple[Text, ...]:
        """Return the tuple that names the old row: `old` when it was sent, else `new`."""
        shape = change.shape
        if not (shape.key or shape.is_bag):
            raise ValueError(f"{change.op} on a table without replica identity")
        if change.old is not None:
            return change.old
        if change.new is None or shape.identity == "f" or change.unsent & set(shape.key):
            raise ValueError(f"{change.op} does not say which row it changes")
        return change.new

    def take(self, shape: Shape, identity: Sequence[Text] | None) -> Row | None:
        """Remove and return one row that `identity` names, or None; NULL matches NULL."""
        assert identity is not None
        positions = shape.key or range(len(shape.columns))
        for at, row in enumerate(self.rows):
            if all(row.get(shape.columns[p]) == identity[p] for p in positions):
                return self.rows.pop(at)
        return None

    def put(self, change: ModelChange, base: Row | None) -> None:
        """Append the new row: unsent values from a whole old tuple (O), else from `base`, else unavailable.

        Columns that left the relation keep the values of `base` in an update and are NULL in an insert.
        """
        assert change.new is not None
        columns = change.shape.columns
        row: Row = dict(base or {}) if change.op == "U" else {}
        lost = []
        for position, (name, value) in enumerate(zip(columns, change.new, strict=True)):
            if position not in change.unsent:
                row[name] = value
            elif change.old_kind == "O" and change.old is not None:
                row[name] = change.old[position]
            elif base is not None:
                row[name] = base.get(name)
            else:
                row[name] = None
                lost.append(name)
        self.rows.append(row)
        self.unavailable += [(row, name) for name in lost]

    def counted(self, columns: Sequence[str]) -> Counter[tuple[Text, ...]]:
        """Return the rows as a multiset of tuples over `columns`; a column a row never had is NULL."""
        return Counter(tuple(row.get(name) for name in columns) for row in self.rows)


def apply_all(initial: Sequence[Row], changes: Sequence[ModelChange]) -> Table:
    """Return the table that `changes` make of a copy of `initial`."""
    table = Table([dict(row) for row in initial])
    for change in changes:
        table.apply(change)
    return table
