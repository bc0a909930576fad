"""A database of 40 odd tables as a stranger brings it: names, kinds and keys that need an answer."""

from tests.support.servers import Database

ORDINARY = tuple(f"plain_{number:02}" for number in range(1, 13))
ODD = (
    "order items",
    "a.b",
    'say "hi"',
    "Orders",
    "orders",
    "ORDERS",
    "CamelCase",
    "naïve",
    "😀 emoji",
    "select",
    "$money",
    "it's",
    "back\\slash",
    "-- comment",
    "per%cent",
    "semi;colon",
    "-dash",
)
"""Names of tables with a key, as PostgreSQL's catalog has them."""
KEYLESS = ("log lines", "Audit")
SCHEMAS = ("sales.eu", "Sales EU")
FULL = "everything"

_TABLE = (
    "CREATE TABLE {0} (id int PRIMARY KEY, name text);"
    " INSERT INTO {0} SELECT g, 'n' || g FROM generate_series(1, 3) g"
)
_PARTITION = "CREATE TABLE measures_2026_0{0} PARTITION OF measures FOR VALUES FROM ('2026-0{0}-01') TO ({1})"


def ident(*names: str) -> str:
    """Return a quoted identifier."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def make_tables(database: Database) -> None:
    """Create all of them in an empty database."""
    names = [("public", name) for name in (*ORDINARY, *ODD)]
    names += [(schema, "orders") for schema in SCHEMAS]
    names += [(SCHEMAS[0], "x.y")]
    with database.connect() as source:
        for schema in SCHEMAS:
            source.execute(f"CREATE SCHEMA {ident(schema)}".encode())
        for name in names:
            source.execute(_TABLE.format(ident(*name)).encode())
        for keyless in KEYLESS:
            source.execute(f"CREATE TABLE {ident(keyless)} (line text)".encode())
        for statement in (
            f"CREATE TABLE {FULL} (line text)",
            f"INSERT INTO {FULL} VALUES ('one'), ('one')",
            f"ALTER TABLE {FULL} REPLICA IDENTITY FULL",
            "CREATE VIEW seen AS SELECT 1 AS one",
            'CREATE MATERIALIZED VIEW "Totals" AS SELECT 1 AS one',
            "CREATE SEQUENCE numbers",
            "CREATE UNLOGGED TABLE cache (id int PRIMARY KEY)",
            "CREATE TABLE measures (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
            _PARTITION.format(1, "'2026-02-01'"),
            _PARTITION.format(2, "'2026-03-01'"),
            "INSERT INTO measures VALUES (1, '2026-01-05'), (2, '2026-02-05')",
            "CREATE FOREIGN DATA WRAPPER nowhere",
            "CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere",
            "CREATE FOREIGN TABLE remote (id int) SERVER elsewhere",
            "CREATE TABLE spatial_ref (id int PRIMARY KEY)",
            "ALTER EXTENSION plpgsql ADD TABLE spatial_ref",
        ):
            source.execute(statement.encode())
