"""Random tables: names, types, keys, nullability and identity as a seed has it, and DDL that changes them.

The tables can do what every workload does: two columns or more that an update may set, one in TOAST, and a
key, where there is one, that ends in an integer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pipeline.postgres.sql_text import quote_identifier
from tests.support.workload.tables import Column, Connection, Schema, Table, create_table
from tests.support.workload.transactions import Step

TYPES = (
    "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "numeric(9,2)", "numeric(38,9)",
    "numeric(12,12)", "text", "varchar(20)", "bpchar(6)", "bytea", "date", "timestamp", "timestamptz",
    "timestamptz(1)", "uuid", "json", "jsonb", "int4[]", "text[]", "bool[]", "numeric[]", "float8[]",
    "timestamptz[]", "date[]", "bytea[]", "uuid[]",
)  # fmt: skip
WIDER = {
    "int2": "int4", "int4": "int8", "numeric(9,2)": "numeric(14,4)", "date": "timestamp",
    "varchar(20)": "varchar(60)",
}  # fmt: skip
NAMES = (
    "plain", "Mixed Case", "select", "a.b", "quo\"te", "back`tick", "eq=ual", "semi;colon", "br{ace}", "it's",
    "tab\there", "line\nbreak", "späte", "日本", "🦀", "dollar$", "_change_type", "slash/es", "..", "(paren)",
    "comma,", "back\\slash", "x" * 63, "null", "key", "t", "s", "op", "c0", "x0", "new", "old", "_metadata",
)  # fmt: skip


def draw_name(rng: Random, taken: set[str]) -> str:
    """Return a name that differs from those taken in more than case, and add it to them."""
    while True:
        name = rng.choice(NAMES)
        if rng.random() < 0.5:
            name = f"{name.encode()[:50].decode(errors='ignore')}{rng.randint(1, 99)}"
        if name.lower() not in taken:
            taken.add(name.lower())
            return name


def draw_table(rng: Random, schema: str, taken: set[str]) -> Table:
    names: set[str] = set()
    kind = rng.choice(("key", "key", "two keys", "full", "full with key", "none"))
    columns = []
    if kind == "two keys":
        columns.append(Column(draw_name(rng, names), "text", is_required=True))
    if kind in ("key", "two keys", "full with key"):
        columns.append(Column(draw_name(rng, names), "int4", is_required=True))
    key = tuple(column.name for column in columns)
    columns += [Column(draw_name(rng, names), rng.choice(TYPES)) for _ in range(rng.randint(2, 7))]
    columns.append(Column(draw_name(rng, names), rng.choice(("text", "bytea")), is_toast=True))
    rng.shuffle(columns)
    keys = [column for column in columns if column.name in key]
    keys.sort(key=lambda column: column.type == "int4")  # a key ends in its integer
    ordered = ", ".join(column.quoted for column in keys)
    for column in keys:
        columns.remove(column)
    return Table(
        schema,
        draw_name(rng, taken),
        [*keys, *columns],
        key=tuple(column.name for column in keys),
        constraints=(f"PRIMARY KEY ({ordered})",) if key else (),
        identity="FULL" if kind.startswith("full") else "DEFAULT",
        is_insert_only=kind == "none",
    )


def create_shapes(conn: Connection, rng: Random, name: str, tables: int) -> Schema:
    """Create and return random tables in a schema of their own."""
    schema = Schema(name, [], has_truncate=True)
    taken: set[str] = set()
    with conn.transaction():
        conn.execute(f"CREATE SCHEMA {quote_identifier(name)}")
        for _ in range(tables):
            schema.tables.append(draw_table(rng, name, taken))
            create_table(conn, schema.tables[-1])
    return schema


@dataclass(slots=True)
class Evolving(Step):
    """Steps that sometimes change a table's columns, mostly followed by a row that announces it."""

    def one(self) -> None:
        """Run one step: now and then DDL."""
        if self.rng.random() > 0.2:
            Step.one(self)
            return
        table = self.rng.choice(self.schema.tables)
        ways: list[Callable[[Table], bool]] = [self.rename_column, self.drop_column, self.widen, self.again]
        if self.rng.choice(ways)(table) and self.rng.random() < 0.8:
            (self.insert if table.is_insert_only or self.rng.random() < 0.5 else self.update)(table)

    def rename_column(self, table: Table) -> bool:
        old = self.rng.choice(table.columns)
        name = draw_name(self.rng, {column.name.lower() for column in table.columns} | self.left(table))
        self.alter(table, f"RENAME {old.quoted} TO {quote_identifier(name)}")
        new = Column(name, old.type, old.is_toast, old.is_required)
        table.columns = [new if column is old else column for column in table.columns]
        table.key = tuple(name if part == old.name else part for part in table.key)
        return True

    def drop_column(self, table: Table) -> bool:
        if len(table.plain) < 4:
            return False
        gone = self.rng.choice(table.plain)
        self.alter(table, f"DROP {gone.quoted}")
        table.columns = [column for column in table.columns if column is not gone]
        return True

    def widen(self, table: Table) -> bool:
        narrow = [column for column in table.plain if column.type in WIDER]
        if not narrow:
            return False
        old = self.rng.choice(narrow)
        new = Column(old.name, WIDER[old.type])
        self.alter(table, f"ALTER {old.quoted} TYPE {new.type}")
        table.columns = [new if column is old else column for column in table.columns]
        return True

    def again(self, table: Table) -> bool:
        """Drop a column and add another under its name, of the same type or another."""
        gone = self.rng.choice(table.plain)
        new = Column(gone.name, self.rng.choice((gone.type, *TYPES)))
        self.alter(table, f"DROP {gone.quoted}")
        self.alter(table, f"ADD {new.quoted} {new.type}")
        table.columns = [column for column in table.columns if column is not gone] + [new]
        return True

    def alter(self, table: Table, change: str) -> None:
        self.conn.execute(f"ALTER TABLE {table.quoted} {change}")

    def left(self, table: Table) -> set[str]:
        """Return the names that columns of the table ever had: silver may still have them."""
        query = "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass"
        return {name.lower() for (name,) in self.conn.execute(query, [table.quoted]).fetchall()}
