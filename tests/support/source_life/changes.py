"""Statements that change rows of a random life, each the whole of its SQL."""

from collections.abc import Callable

from tests.support.source_life.tables import Life, LifeTable
from tests.support.workload.tables import Column


def insert(life: Life, table: LifeTable) -> list[str]:
    """Insert rows; those whose key is there already are left out."""
    names = ", ".join(column.quoted for column in table.columns)
    rows = [f"({', '.join(_row(life, table))})" for _ in range(life.rng.randint(1, 5))]
    end = " ON CONFLICT DO NOTHING" if table.key else ""
    return [f"INSERT INTO {table.name} ({names}) VALUES {', '.join(rows)}{end}"]


def upsert(life: Life, table: LifeTable) -> list[str]:
    if not table.key or not table.plain:
        return insert(life, table)
    names = ", ".join(column.quoted for column in table.columns)
    keys = ", ".join(column.quoted for column in table.key_columns)
    column = life.rng.choice(table.plain)
    row = ", ".join(_row(life, table))
    update = f"DO UPDATE SET {column.quoted} = excluded.{column.quoted}"
    return [f"INSERT INTO {table.name} ({names}) VALUES ({row}) ON CONFLICT ({keys}) {update}"]


def update(life: Life, table: LifeTable) -> list[str]:
    """Set some columns of some rows, mostly not those in TOAST."""
    columns = [column for column in table.columns if not column.is_required]
    if life.rng.random() < 0.7:
        columns = table.plain or columns
    if not columns:
        return []
    chosen = life.rng.sample(columns, min(len(columns), life.rng.randint(1, 2)))
    settings = ", ".join(f"{column.quoted} = {life.literal(column)}" for column in chosen)
    return [f"UPDATE {table.name} SET {settings} WHERE {where(life, table)}"]


def update_same(life: Life, table: LifeTable) -> list[str]:
    settings = ", ".join(f"{column.quoted} = {column.quoted}" for column in table.columns)
    return [f"UPDATE {table.name} SET {settings} WHERE {where(life, table)}"]


def delete(life: Life, table: LifeTable) -> list[str]:
    return [f"DELETE FROM {table.name} WHERE {where(life, table)}"]


def change_key(life: Life, table: LifeTable) -> list[str]:
    """Move some keys to where none is, sometimes with new rows where they were, or back at once."""
    if not table.key:
        return delete(life, table)
    by = 1000 * life.number()
    low, high = sorted(life.rng.choices(range(-3, 41), k=2))

    def move(sign: str, first: int, last: int) -> str:
        change = f"{table.number} = {table.number} {sign} {by}"
        return f"UPDATE {table.name} SET {change} WHERE {table.number} BETWEEN {first} AND {last}"

    there, back = move("+", low, high), move("-", low + by, high + by)
    return [there, *life.rng.choice(([], insert(life, table), [back]))]


def duplicate(life: Life, table: LifeTable) -> list[str]:
    if table.key:
        return upsert(life, table)
    return [f"INSERT INTO {table.name} SELECT x.* FROM {table.name} x ORDER BY x::text LIMIT 2"]


def where(life: Life, table: LifeTable) -> str:
    """Return a condition that selects some rows."""
    if table.key:
        n = life.rng.randint(2, 6)
        return f"mod({table.number}, {n}) = {life.rng.randrange(n)}"
    return (
        f"ctid IN (SELECT x.ctid FROM {table.name} x ORDER BY x::text, x.ctid LIMIT {life.rng.randint(1, 3)})"
    )


CHANGES: tuple[tuple[int, Callable[[Life, LifeTable], list[str]]], ...] = (
    (8, insert),
    (8, update),
    (4, delete),
    (3, change_key),
    (3, upsert),
    (2, update_same),
    (2, duplicate),
)


def draw_changes(life: Life, table: LifeTable) -> list[str]:
    """Return the statements of one random change of rows."""
    [change] = life.rng.choices([each for _, each in CHANGES], [weight for weight, _ in CHANGES])
    return change(life, table)


def _row(life: Life, table: LifeTable) -> list[str]:
    keys = dict(zip(table.key, life.key(table), strict=True))
    return [keys.get(column.name) or life.literal(column) for column in table.columns]


def column_of(life: Life, table: LifeTable, *types: str) -> Column | None:
    """Return a random column that is not in the key, of some types if any are given."""
    found = [c for c in table.columns if not c.is_required and (not types or c.type in types)]
    return life.rng.choice(found) if found else None
