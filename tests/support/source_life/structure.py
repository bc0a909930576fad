"""Statements that change the tables of a random life, and what a program knows of them.

Each function returns statements, none if it does not apply to the table.
"""

from pipeline.postgres.sql_text import quote_identifier
from tests.support.source_life.changes import column_of, draw_changes, insert
from tests.support.source_life.tables import Life, LifeTable, creation, partition
from tests.support.workload.shapes import TYPES, WIDER, draw_name
from tests.support.workload.tables import Column

# type → another one, and what it is made of; {0} is the column
OTHER_TYPES = {
    "int4": ("text", "{0}::text"), "date": ("text", "{0}::text"), "bool": ("int4", "{0}::int4"),
    "uuid": ("text", "{0}::text"), "jsonb": ("text", "{0}::text"),
    "text": ("bytea", "convert_to({0}, 'UTF8')"),
    "varchar(20)": ("text", "{0}::text"), "json": ("text", "{0}::text"), "float8": ("text", "{0}::text"),
    "bpchar(6)": ("bpchar(9)", "{0}"), "int8": ("numeric", "{0}"), "text[]": ("text", "{0}::text"),
}  # fmt: skip
# what a rewrite computes; the type stays
COMPUTED = {
    "text": "md5({0})", "varchar(20)": "left(md5({0}), 20)", "int4": "{0} # 5", "int8": "{0} # 5",
    "bool": "NOT {0}", "int2": "({0} # 5::int2)", "uuid": "md5({0}::text)::uuid",
    "numeric(9,2)": "round({0} / 2, 2)",
    "text[]": "ARRAY['x'] || {0}", "bytea": "{0} || '\\x00'::bytea", "jsonb": "jsonb_build_object('a', {0})",
}  # fmt: skip
DEFAULTS = {
    "int4": "7", "int8": "77", "text": "'it''s'", "bool": "true", "numeric(9,2)": "1.50",
    "jsonb": "'{\"a\": 1}'", "date": "'2024-02-29'", "timestamptz": "'2024-01-01 00:00+00'",
    "text[]": "'{a,NULL}'", "uuid": "md5('a')::uuid",
}  # fmt: skip
VOLATILE = {
    "float8": "random()", "timestamptz": "clock_timestamp()", "int4": "(random() * 1e6)::int4",
    "text": "md5(random()::text)",
}  # fmt: skip


def add_column(life: Life, table: LifeTable) -> list[str]:
    column = life.draw_column(table)
    table.columns.append(column)
    return [f"ALTER TABLE {table.name} ADD COLUMN {column.quoted} {column.type}"]


def add_with_default(life: Life, table: LifeTable) -> list[str]:
    return _add(life, table, DEFAULTS, life.rng.choice(("", "", " NOT NULL")))


def add_with_volatile_default(life: Life, table: LifeTable) -> list[str]:
    return _add(life, table, VOLATILE)


def drop_column(life: Life, table: LifeTable) -> list[str]:
    column = column_of(life, table)
    if column is None or len(table.plain) < 3:
        return []
    table.replace(column)
    return [f"ALTER TABLE {table.name} DROP COLUMN {column.quoted}"]


def rename_column(life: Life, table: LifeTable) -> list[str]:
    old = life.rng.choice(table.columns)
    new = draw_name(life.rng, table.names)
    table.replace(old, Column(new, old.type, old.is_toast, old.is_required))
    table.key = tuple(new if part == old.name else part for part in table.key)
    return [f"ALTER TABLE {table.name} RENAME {old.quoted} TO {quote_identifier(new)}"]


def swap_columns(life: Life, table: LifeTable) -> list[str]:
    if len(table.plain) < 2:
        return []
    one, two = life.rng.sample(table.plain, 2)
    table.columns = [
        Column(two.name, one.type) if c is one else Column(one.name, two.type) if c is two else c
        for c in table.columns
    ]
    renamed = f"ALTER TABLE {table.name} RENAME"
    return [
        f"{renamed} {one.quoted} TO swapped",
        f"{renamed} {two.quoted} TO {one.quoted}",
        f"{renamed} swapped TO {two.quoted}",
    ]


def drop_and_add_column(life: Life, table: LifeTable) -> list[str]:
    """Drop a column and add another under its name, of the same type or another."""
    if not table.plain:
        return []
    old = life.rng.choice(table.plain)
    new = Column(old.name, life.rng.choice((old.type, *TYPES)))
    table.replace(old)
    table.columns.append(new)
    altered = f"ALTER TABLE {table.name}"
    return [f"{altered} DROP {old.quoted}", f"{altered} ADD {new.quoted} {new.type}"]


def widen(life: Life, table: LifeTable) -> list[str]:
    column = column_of(life, table, *WIDER)
    return [] if column is None else _retype(table, column, WIDER[column.type])


def widen_key(life: Life, table: LifeTable) -> list[str]:
    if not table.key or table.partitions or table.key_columns[-1].type != "int4":
        return []
    return _retype(table, table.key_columns[-1], "int8")


def change_type(life: Life, table: LifeTable) -> list[str]:
    column = column_of(life, table, *OTHER_TYPES)
    if column is None:
        return []
    kind, text = OTHER_TYPES[column.type]
    return _retype(table, column, kind, text.format(column.quoted))


def rewrite(life: Life, table: LifeTable) -> list[str]:
    """Compute the values of a column whose type stays, or becomes wider."""
    column = column_of(life, table, *COMPUTED)
    if column is None:
        return []
    kind = WIDER.get(column.type, column.type) if life.rng.random() < 0.3 else column.type
    return _retype(table, column, kind, f"({COMPUTED[column.type].format(column.quoted)})::{kind}")


def change_identity(life: Life, table: LifeTable) -> list[str]:
    if not table.key:
        return []
    table.identity = "DEFAULT" if table.identity == "FULL" else "FULL"
    return [
        f"ALTER TABLE {name} REPLICA IDENTITY {table.identity}" for name in (table.name, *table.partitions)
    ]


def replace_key(life: Life, table: LifeTable) -> list[str]:
    """Drop the primary key and make the same again."""
    if not table.key or table.partitions:
        return []
    keys = ", ".join(column.quoted for column in table.key_columns)
    dropped = f"ALTER TABLE {table.name} DROP CONSTRAINT {table.index}"
    return [f"{dropped}, ADD CONSTRAINT {table.index} PRIMARY KEY ({keys})"]


def note(life: Life, table: LifeTable) -> list[str]:
    """Change what no row has: comments, storage, defaults, statistics."""
    column = life.rng.choice(table.columns)
    return [
        life.rng.choice(
            (
                f"COMMENT ON TABLE {table.name} IS 'note {life.number()}'",
                f"COMMENT ON COLUMN {table.name}.{column.quoted} IS 'note {life.number()}'",
                f"ALTER TABLE {table.name} ALTER {column.quoted} SET STATISTICS 50",
                f"ANALYZE {table.name}",
                f"CREATE INDEX ON {table.name} ((1))",
            )
        )
    ]


def truncate(life: Life, table: LifeTable) -> list[str]:
    return [f"TRUNCATE {table.name}", *life.rng.choice(([], insert(life, table)))]


# Several transactions, or none ------------------------------------------------------------------------------


def new_files(life: Life, table: LifeTable) -> list[str]:
    """Rewrite the rows as they are."""
    name = life.rng.choice(table.partitions or [table.name])
    ways = [f"VACUUM FULL {name}", f"VACUUM {name}", f"REINDEX TABLE {name}"]
    if table.key and not table.partitions:
        ways.append(f"CLUSTER {name} USING {table.index}")
    return [life.rng.choice(ways)]


def rename_table(life: Life, table: LifeTable) -> list[str]:
    """Rename a table, with changes under the new name, and often back."""
    old, table.name = table.name, f"r{life.number()}"
    there = [f"ALTER TABLE {old} RENAME TO {table.name}", *draw_changes(life, table)]
    if life.rng.random() < 0.5:
        return there
    there.append(f"ALTER TABLE {table.name} RENAME TO {old}")
    table.name = old
    return there


def swap_tables(life: Life, table: LifeTable) -> list[str]:
    others = [each for each in life.tables if each is not table]
    if not others:
        return []
    other = life.rng.choice(others)
    one, two = table.name, other.name
    table.name, other.name = two, one
    return [
        "BEGIN",
        f"ALTER TABLE {one} RENAME TO swapped",
        f"ALTER TABLE {two} RENAME TO {one}",
        f"ALTER TABLE swapped RENAME TO {two}",
        "COMMIT",
        *draw_changes(life, table),
        *draw_changes(life, other),
    ]


def drop_and_create(life: Life, table: LifeTable) -> list[str]:
    """Drop a table and create it again, as it was or with other columns."""
    if table.partitions or life.publication == "listed":
        return []
    if life.rng.random() < 0.5:
        table.columns.append(life.draw_column(table))
    return [f"DROP TABLE {table.name} CASCADE", *creation(table), *insert(life, table)]


def create_table(life: Life, _: LifeTable) -> list[str]:
    if len(life.tables) > 4 or life.publication == "listed":
        return []
    table = life.new_table()
    return [*creation(table), *insert(life, table)]


def drop_table(life: Life, table: LifeTable) -> list[str]:
    if len(life.tables) < 3:
        return []
    life.tables.remove(table)
    return [f"DROP TABLE {table.name} CASCADE"]  # with those that inherit


# Partitions -------------------------------------------------------------------------------------------------


def detach_and_attach(life: Life, table: LifeTable) -> list[str]:
    """Take a partition out, change it or not, and put it back."""
    if not table.partitions:
        return []
    n = life.rng.randrange(len(table.partitions))
    change = f"DELETE FROM {table.partitions[n]} WHERE mod({table.number}, 3) = 1"
    if life.publication != "all" and not life.via_root:
        change = f"ANALYZE {table.partitions[n]}"  # changes leave no trace there: see Limits
    return [
        f"ALTER TABLE {table.name} DETACH PARTITION {table.partitions[n]}",
        *life.rng.choice(([], [change])),
        _attached(table, n),
    ]


def replace_partition(life: Life, table: LifeTable) -> list[str]:
    """Drop or detach a partition, and create another, empty or filled before it is attached."""
    if not table.partitions:
        return []
    n = life.rng.randrange(len(table.partitions))
    old, new = table.partitions[n], f"{table.name}_q{life.number()}"
    table.partitions[n] = new
    table.unlogged.discard(old)
    gone = life.rng.choice((f"DROP TABLE {old}", f"ALTER TABLE {table.name} DETACH PARTITION {old}"))
    if life.rng.random() < 0.4:
        full = [f"ALTER TABLE {new} REPLICA IDENTITY FULL"] if table.identity == "FULL" else []
        kind = life.rng.choice(("", "", "UNLOGGED "))
        table.unlogged |= {new} if kind else set()
        made = partition(table, n, f"CREATE {kind}TABLE {{}} PARTITION OF {{}}")
        return ["BEGIN", gone, made, *full, "COMMIT", *(insert(life, table) if kind else ())]
    identity = f"ALTER TABLE {new} REPLICA IDENTITY {table.identity}"
    filled = f"CREATE TABLE {new} (LIKE {table.name} INCLUDING ALL)"
    copied = f"INSERT INTO {new} SELECT * FROM {old}"
    return [filled, identity, copied, "BEGIN", gone, _attached(table, n), "COMMIT"]


def truncate_partition(life: Life, table: LifeTable) -> list[str]:
    return [f"TRUNCATE {life.rng.choice(table.partitions)}"] if table.partitions else []


def change_persistence(life: Life, table: LifeTable) -> list[str]:
    """Let changes of a partition not be logged, or be logged again, sometimes at once."""
    if not table.partitions:
        return []
    leaf = life.rng.choice(table.partitions)
    logged = f"ALTER TABLE {leaf} SET LOGGED"
    if leaf in table.unlogged:
        table.unlogged.remove(leaf)
        return [logged, *draw_changes(life, table)]
    there = [f"ALTER TABLE {leaf} SET UNLOGGED", *draw_changes(life, table)]
    if life.rng.random() < 0.4:
        return [*there, logged]
    table.unlogged.add(leaf)
    return there


# The publication, roles and settings ------------------------------------------------------------------------


def leave_operations_out(life: Life, table: LifeTable) -> list[str]:
    """Publish inserts only for a time."""
    setting = "ALTER PUBLICATION {publication} SET (publish = '{}')"
    return [
        setting.replace("{}", "insert"),
        *draw_changes(life, table),
        setting.replace("{}", "insert, update, delete, truncate"),
    ]


def leave_and_return(life: Life, table: LifeTable) -> list[str]:
    """Take a table out of the publication for a time."""
    if life.publication == "all" or (not life.via_root and table.partitions):
        return []
    altered = f"ALTER PUBLICATION {{publication}} {{}} TABLE ONLY {table.name}"
    return [altered.replace("{}", "DROP"), *draw_changes(life, table), altered.replace("{}", "ADD")]


def change_roles(life: Life, table: LifeTable) -> list[str]:
    return [
        life.rng.choice(
            (
                f"ALTER TABLE {table.name} OWNER TO life_owner",
                f"ALTER TABLE {table.name} OWNER TO CURRENT_USER",
                f"GRANT SELECT ON {table.name} TO life_owner",
                f"REVOKE ALL ON {table.name} FROM life_owner",
                f"ALTER TABLE {table.name} ENABLE ROW LEVEL SECURITY",
                f"ALTER TABLE {table.name} DISABLE ROW LEVEL SECURITY",
            )
        )
    ]


def change_settings(life: Life, _: LifeTable) -> list[str]:
    """Change defaults of new sessions, among them those by which values are printed."""
    setting, value = life.rng.choice(
        (
            ("datestyle", "'SQL, DMY'"),
            ("intervalstyle", "'sql_standard'"),
            ("timezone", "'Asia/Kathmandu'"),
            ("bytea_output", "'escape'"),
            ("extra_float_digits", "0"),
            ("search_path", "pg_catalog"),
            ("default_transaction_isolation", "'serializable'"),
            ("statement_timeout", "'20min'"),
        )
    )
    return [f"ALTER DATABASE {{database}} SET {setting} = {value}"]


# What is not followed yet -----------------------------------------------------------------------------------


def inherit(life: Life, table: LifeTable) -> list[str]:
    if table.partitions:
        return []
    child = f"child_{life.number()}"
    # an UPDATE of the parent changes it, too, which a publication FOR ALL TABLES has at once
    full = [f"ALTER TABLE {child} REPLICA IDENTITY FULL"] if life.publication == "all" else []
    return [
        f"CREATE TABLE {child} () INHERITS ({table.name})",
        *full,
        f"INSERT INTO {child} SELECT * FROM {table.name}",
    ]


def change_composite(life: Life, table: LifeTable) -> list[str]:
    """Use a composite type in the identity, and give it another attribute."""
    name, column = f"pair_{life.number()}", f"c{life.number()}"
    table.names.add(column)
    if table.partitions:
        return []
    table.identity = "FULL"
    return [
        f"CREATE TYPE {name} AS (a int, b int)",
        f"ALTER TABLE {table.name} ADD COLUMN {column} {name} DEFAULT '(1,2)'",
        f"ALTER TABLE {table.name} REPLICA IDENTITY FULL",
        f"UPDATE {table.name} SET {column} = '(3,4)'",
        f"ALTER TYPE {name} ADD ATTRIBUTE c int",
        f"DELETE FROM {table.name} WHERE {column} IS NOT NULL",
    ]


def rename_label(life: Life, table: LifeTable) -> list[str]:
    """Use an enum in a FULL identity, and rename its label."""
    if table.partitions or table.identity != "FULL":
        return []
    name, column = f"mood_{life.number()}", f"c{life.number()}"
    table.names.add(column)
    return [
        f"CREATE TYPE {name} AS ENUM ('a', 'b')",
        f"ALTER TABLE {table.name} ADD COLUMN {column} {name} DEFAULT 'a'",
        *insert(life, table),
        f"ALTER TYPE {name} RENAME VALUE 'a' TO 'z'",
        f"DELETE FROM {table.name} WHERE {column} = 'z'",
    ]


def change_column_list(life: Life, table: LifeTable) -> list[str]:
    if life.publication == "all" or table.partitions or not table.key or table.identity == "FULL":
        return []
    listed = f"ALTER PUBLICATION {{publication}} {{}} TABLE ONLY {table.name}"
    kept = ", ".join(column.quoted for column in table.columns[:-1])
    return [
        *("BEGIN", listed.replace("{}", "DROP"), f"{listed.replace('{}', 'ADD')} ({kept})", "COMMIT"),
        *draw_changes(life, table),
        *("BEGIN", listed.replace("{}", "DROP"), listed.replace("{}", "ADD"), "COMMIT"),
    ]


def own_publication_again(life: Life, _: LifeTable) -> list[str]:
    """Do what changes nothing: set the same values, give the owner the publication."""
    return [
        life.rng.choice(
            (
                "ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')",
                "ALTER PUBLICATION {publication} OWNER TO CURRENT_USER",
            )
        )
    ]


# Parts ------------------------------------------------------------------------------------------------------


def _add(life: Life, table: LifeTable, defaults: dict[str, str], more: str = "") -> list[str]:
    name, kind = f"c{life.number()}", life.rng.choice(sorted(defaults))
    table.names.add(name)
    column = Column(name, kind)
    table.columns.append(column)
    added = f"ALTER TABLE {table.name} ADD COLUMN {name} {kind} DEFAULT {defaults[kind]}{more}"
    dropped = f"ALTER TABLE {table.name} ALTER {name} DROP NOT NULL, ALTER {name} DROP DEFAULT"
    return [added, dropped] if more or life.rng.random() < 0.2 else [added]


def _retype(table: LifeTable, column: Column, kind: str, using: str = "") -> list[str]:
    table.replace(column, Column(column.name, kind, column.is_toast, column.is_required))
    default = f"ALTER TABLE {table.name} ALTER {column.quoted} DROP DEFAULT"
    made = f" USING {using}" if using else ""
    return [default, f"ALTER TABLE {table.name} ALTER {column.quoted} TYPE {kind}{made}"]


def _attached(table: LifeTable, position: int) -> str:
    attach = partition(table, position, "ATTACH PARTITION {} ")
    name, _, bounds = attach.removeprefix("ATTACH PARTITION ").partition(" ")
    return f"ALTER TABLE {table.name} ATTACH PARTITION {name} {bounds.strip()}"
