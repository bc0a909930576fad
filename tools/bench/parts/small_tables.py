"""Small tables of 20 columns, as applications have many of them."""

from __future__ import annotations

COLUMNS = (
    "id int PRIMARY KEY, code text NOT NULL, name text, note text, state varchar(20), "
    "customer bigint, quantity int, line smallint, price numeric(12,2), rate double precision, "
    "weight real, is_active bool, born date, placed_at timestamp, seen_at timestamptz, "
    "token uuid, properties jsonb, tags text[], content bytea, version int NOT NULL DEFAULT 0"
)
VALUES = (
    "g, 'code ' || g, 'name ' || g, CASE WHEN g % 3 > 0 THEN 'note ' || g END, 'new', g * 1000, g % 10, "
    "g % 7, g / 7.0, g / 3.0, g / 2.0, g % 2 = 0, date '2020-01-01' + g % 1000, "
    "timestamp '2020-01-01' + g * interval '1 minute', timestamptz '2020-01-01 00:00:00Z' + "
    "g * interval '1 second', md5(g::text)::uuid, jsonb_build_object('a', g), ARRAY['x', g::text], "
    "decode(md5(g::text), 'hex'), 0"
)


def names_of(count: int) -> list[str]:
    """Return the names of so many tables."""
    return [f"t{number}" for number in range(count)]


def create(table: str, rows: int) -> tuple[str, ...]:
    """Return the statements that create and fill a table."""
    return (
        f"CREATE TABLE {table} ({COLUMNS})",
        f"INSERT INTO {table} SELECT {VALUES} FROM generate_series(1, {rows}) g",
    )


def change(table: str, changes: int) -> str:
    """Return a statement that updates the first rows of a table."""
    return f"UPDATE {table} SET version = version + 1, note = 'changed' WHERE id <= {changes}"
