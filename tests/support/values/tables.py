"""Source tables that carry values: as plain columns, as keys, and as whole rows without a key.

Each is written in two transactions. The first inserts: row n has the n-th value of each type, row LATER + n
the one after it. The second updates row LATER + n to the n-th value; in tables of keys it changes notes,
changes keys and deletes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.support.comparable.source import snapshot
from tests.support.values.kinds import LONGEST_KEY, Cell, Kind

Connection = psycopg.Connection[Any]
LATER = 100_000
PHASES = ("insert", "update")


@dataclass(slots=True)
class ValueTable:
    """A table with a column `n` and a column for each kind; `written` has the cells of each phase by n."""

    name: str
    role: str  # plain, keys, bag
    kinds: list[Kind]
    written: dict[str, dict[int, list[Cell | None]]] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        return [f"c{i}" for i in range(len(self.kinds))]

    def create(self, connection: Connection) -> None:
        columns = [f"{c} {kind.type}" for c, kind in zip(self.columns, self.kinds, strict=True)]
        key = {"plain": "n", "keys": ", ".join(self.columns)}.get(self.role)
        columns += [f"PRIMARY KEY ({key})"] if key else []
        run(connection, f"CREATE TABLE {self.name} (n int, note text, {', '.join(columns)})")
        if self.role == "bag":
            run(connection, f"ALTER TABLE {self.name} REPLICA IDENTITY FULL")

    def write(self, connection: Connection, phase: str) -> None:
        """Write a phase; call it in a transaction."""
        if self.role == "keys":
            self.written[phase] = {}
            insert_keys(connection, self) if phase == "insert" else change_keys(connection, self)
            return
        longest = max(len(kind.cells) for kind in self.kinds)
        later = {LATER + n: [cell_of(kind, n) for kind in self.kinds] for n in range(longest)}
        if phase == "insert":
            rows = {n - LATER: cells for n, cells in later.items()}
            rows |= {n: [cell_of(kind, n - LATER, 1) for kind in self.kinds] for n in later}
            insert(connection, self, rows)
            self.written[phase] = rows
        else:
            settings = ", ".join(f"{column} = %s" for column in self.columns)
            for n, cells in later.items():
                values = [cell and cell.literal for cell in cells]
                run(connection, f"UPDATE {self.name} SET {settings} WHERE n = %s", [*values, n])
            self.written[phase] = later
            if self.role == "bag":
                # so that the row differs even where silver holds neither value
                run(connection, f"UPDATE {self.name} SET note = 'changed' WHERE n >= {LATER}")
                run(connection, f"DELETE FROM {self.name} WHERE n % 5 = 4 AND n < {LATER}")

    def cell(self, phase: str, n: int, i: int) -> Cell | None:
        """Return the cell that a row has after a phase; those of keys all fit."""
        for written in reversed(PHASES[: PHASES.index(phase) + 1]):
            if n in self.written[written]:
                return self.written[written][n][i]
        return None


@dataclass(frozen=True, slots=True)
class Source:
    """A table as the server shows it: per row its texts, and the elements of its arrays and maps."""

    texts: dict[int, list[str | None]]
    items: dict[int, list[Any]]


def run(connection: Connection, statement: str, values: list[Any] | None = None) -> Any:
    return connection.execute(statement.encode(), values)


def cell_of(kind: Kind, n: int, ahead: int = 0) -> Cell | None:
    """Return the n-th cell, or one ahead of it in the round; None behind the last."""
    return kind.cells[(n + ahead) % len(kind.cells)] if n < len(kind.cells) else None


def insert(connection: Connection, table: ValueTable, rows: Mapping[int, list[Cell | None]]) -> None:
    places = ", ".join(["%s"] * len(table.kinds))
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {table.name} VALUES (%s, 'as it was', {places})".encode(),
            [[n, *(cell and cell.literal for cell in cells)] for n, cells in rows.items()],
        )


def key_values(kind: Kind) -> list[str]:
    return [value for value in kind.fitting if len(value) <= LONGEST_KEY]


def insert_keys(connection: Connection, table: ValueTable) -> None:
    values = [key_values(kind) for kind in table.kinds]
    rows: dict[int, list[Cell | None]] = {
        n: [Cell(of[n % len(of)]) for of in values] for n in range(max(map(len, values)))
    }
    insert(connection, table, rows)


def change_keys(connection: Connection, table: ValueTable) -> None:
    """Change the note of every fourth row, the key of every fourth, and delete every fourth."""
    values = [key_values(kind) for kind in table.kinds]
    count = max(map(len, values))
    settings = ", ".join(f"{column} = %s" for column in table.columns)
    for n in range(count - 1):
        if n % 4 == 1:
            run(connection, f"UPDATE {table.name} SET note = 'changed' WHERE n = %s", [n])
        elif n % 4 == 2:
            # the key of the row after it, which is deleted before
            run(connection, f"DELETE FROM {table.name} WHERE n = %s", [n + 1])
            moved = [of[(n + 1) % len(of)] for of in values]
            run(connection, f"UPDATE {table.name} SET {settings} WHERE n = %s", [*moved, n])


def look(connection: Connection, table: ValueTable) -> Source:
    """Read a table as the server writes it, with the settings of the stream."""
    columns = ", ".join(["n", *table.columns])
    with snapshot(connection):
        run(connection, "SET LOCAL search_path = ''")
        result = run(connection, f"SELECT {columns} FROM public.{table.name}").pgresult
        items = [items_of(column, kind) for column, kind in zip(table.columns, table.kinds, strict=True)]
        split = run(connection, f"SELECT n, {', '.join(items)} FROM public.{table.name}").fetchall()
    texts = {}
    for at in range(result.ntuples):
        n, *row = (result.get_value(at, i) for i in range(len(table.columns) + 1))
        texts[int(n)] = [None if value is None else bytes(value).decode() for value in row]
    assert len(texts) == result.ntuples
    return Source(texts, {n: row for n, *row in split})


def items_of(column: str, kind: Kind) -> str:
    """Return SQL for the elements' texts, which the server finds itself, or for a map as JSON."""
    if kind.silver.startswith("map<"):
        return f"public.hstore_to_json({column})"
    if not kind.is_array:
        return "NULL"
    element = f"({column})[i]"
    text = f"format('%s', {element})"
    if kind.silver.startswith("array<map<"):
        text = f"public.hstore_to_json({element})::text"
    return (
        f"CASE WHEN {column} IS NOT NULL THEN ARRAY(SELECT CASE WHEN {element} IS DISTINCT FROM NULL "
        f"THEN {text} END FROM generate_subscripts({column}, 1) i ORDER BY i) END"
    )


def can_be_key(connection: Connection, kind: Kind) -> bool:
    """Say whether the server lets a column of this type be a primary key."""
    try:
        with connection.transaction(force_rollback=True):
            run(connection, f"CREATE TABLE trial (v {kind.type} PRIMARY KEY)")
            for value in key_values(kind)[:2]:
                connection.execute("INSERT INTO trial VALUES (%s)", [value], prepare=False)
    except psycopg.errors.UniqueViolation:
        return True  # 0 and -0
    except (psycopg.errors.UndefinedObject, psycopg.errors.UndefinedFunction):
        return False
    return True
