"""The tables of a workload, and what its statements have to know of each.

One table for each way PostgreSQL can name a row in the stream: by a primary key, by the index of a replica
identity, by the whole row with a primary key and without one, and not at all. Every table has columns in
TOAST; names need quotes where that may go wrong.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

import psycopg

from pipeline.postgres.sql_text import quote_identifier
from pipeline.table_name import TableName

Connection = psycopg.Connection[Any]

MOODS = ("sad", "ok", "so, so", 'the "best"', "it's")


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    is_toast: bool = False
    is_required: bool = False

    @property
    def quoted(self) -> str:
        return quote_identifier(self.name)


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
        return quote_identifier(self.schema, self.name)

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
    def names(self) -> list[TableName]:
        return [TableName(table.schema, table.name) for table in self.tables]


WORKLOAD = ("documents", "Lines", "tickets", "readings", "accounts", "journal")
"""The tables of a schema."""


def create_schema(conn: Connection, rng: Random, *, name: str | None = None) -> Schema:
    """Create and return six tables in a new schema, with every replica identity, TOAST and many types."""
    schema = name or f"w_{rng.getrandbits(40):010x}"
    mood = f'{quote_identifier(schema)}."mood"'
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
        conn.execute(f"CREATE SCHEMA {quote_identifier(schema)}")
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
