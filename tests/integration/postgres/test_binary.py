"""A slot in binary format and one in text format, of the same WAL: bronze holds the same."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.captures import typed
from tests.support.postgres.pairs import Pair
from tests.support.postgres.sessions import TABLES, Sessions, create_tables
from tests.support.servers import Database, drop_database
from tests.support.workload.tables import create_schema
from tests.support.workload.transactions import run_workload


def literal(value: str) -> str:
    return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def make_typed_table(database: Database) -> tuple[list[str], dict[str, list[str]]]:
    """Create `typed` with a column for each type and for an array of each; return the columns and types."""
    major = database.run("SELECT current_setting('server_version_num')::int / 10000")[0][0]
    with database.connect() as connection:
        installed = typed.install(connection)
    values = typed.values_of(major, installed)
    names = list(values)
    columns = [f"c{i} {name}" for i, name in enumerate(names)]
    columns += [f"a{i} {name}[]" for i, name in enumerate(names) if not name.endswith("[]")]
    database.run(f"CREATE TABLE typed (id int PRIMARY KEY, {', '.join(columns)})")
    return columns, values


def typed_rows(columns: list[str], values: dict[str, list[str]]) -> Iterator[str]:
    """Give the rows: the n-th has the n-th value of each type, and arrays of the values so far."""
    for n in range(max(map(len, values.values()))):
        cells = [str(n)]
        for column in columns:
            letter, name = column[0], column.partition(" ")[2].removesuffix("[]" if column[0] == "a" else "")
            literals = values[name]
            if letter == "c":
                cells.append(f"{literal(literals[n])}::{name}" if n < len(literals) else "NULL")
            else:
                items = [f"{literal(v)}::{name}" for v in literals[: n + 1]]
                cells.append(f"ARRAY[{', '.join(items)}, NULL]::{name}[]" if n % 5 < 4 else "'{}'")
        yield f"({', '.join(cells)})"


@pytest.mark.parametrize(
    ("identity", "streaming"),
    [
        *(("DEFAULT", "on"), ("FULL", "off")),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("DEFAULT", "off"), ("FULL", "on"))),
    ],
)
def test_every_type_lands_as_in_text_format(
    any_database: Database, tmp_path: Path, identity: str, streaming: str
) -> None:
    database = any_database
    database.run(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    columns, values = make_typed_table(database)
    assert len(columns) > 150
    database.run(f"ALTER TABLE typed REPLICA IDENTITY {identity}")
    pair = Pair(database, streaming=streaming)
    database.run(
        *(f"INSERT INTO typed VALUES {row}" for row in typed_rows(columns, values)),
        "INSERT INTO typed (id) VALUES (-1)",
        "UPDATE typed SET id = id + 1000 WHERE id % 2 = 0",
        "UPDATE typed SET c0 = NULL",
        "DELETE FROM typed",
        "BEGIN; INSERT INTO typed VALUES " + ", ".join(typed_rows(columns, values)) + "; COMMIT",
    )
    rows = pair.read(tmp_path)
    assert {row["op"] for row in rows} == {"I", "U", "D"}
    whole = [row["old_kind"] == "O" for row in rows if row["op"] != "I"]
    assert all(whole) if identity == "FULL" else not any(whole)
    if streaming == "on":
        slot = pair.configs[1].source.slot
        query = f"SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = '{slot}'"
        [(count,)] = database.run(query)
        assert count > 0


@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_a_table_that_was_altered_or_dropped_since_lands_as_in_text_format(
    any_database: Database, tmp_path: Path, route: str
) -> None:
    database = any_database
    database.run(
        "CREATE TYPE mood AS ENUM ('calm', 'wild')",
        "CREATE TYPE pair AS (a int, b mood)",
        "CREATE TABLE item (id int PRIMARY KEY, m mood, p pair, ms mood[], n numeric)",
        "CREATE TABLE gone (id int PRIMARY KEY, m mood)",
    )
    pair = Pair(database, route=route)
    database.run(
        "INSERT INTO item VALUES (1, 'calm', '(1,wild)', '{calm,NULL}', 1.50)",
        "INSERT INTO gone VALUES (1, 'wild')",
        "ALTER TYPE mood RENAME VALUE 'calm' TO 'quiet'",
        "ALTER TYPE pair ADD ATTRIBUTE c numeric",
        "UPDATE item SET p = '(2,quiet,1.50)'",
        "ALTER TABLE item ALTER n TYPE text, DROP COLUMN m",
        "INSERT INTO item VALUES (2, NULL, '{}', 'x')",
        "DROP TABLE gone",
    )
    rows = pair.read(tmp_path)
    assert [row["new"] for row in rows] == [
        ["1", "calm", "(1,wild)", "{calm,NULL}", "1.50"],
        ["1", "wild"],
        ["1", "quiet", "(2,quiet,1.50)", "{quiet,NULL}", "1.50"],
        ["2", None, "{}", "x"],
    ]


@pytest.mark.promise("unchanged TOAST")
def test_unchanged_toast_values_are_unsent_as_in_text_format(any_database: Database, tmp_path: Path) -> None:
    any_database.run(
        "CREATE TABLE item (id int PRIMARY KEY, big int[], words text[], doc jsonb, raw bytea, n int)",
        "ALTER TABLE item ALTER big SET STORAGE EXTERNAL, ALTER words SET STORAGE EXTERNAL,"
        " ALTER doc SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL",
    )
    pair = Pair(any_database)
    any_database.run(
        "INSERT INTO item SELECT 1, array_agg(g), array_agg('w ' || g), jsonb_agg(g),"
        " decode(repeat('00ff', 5000), 'hex'), 0 FROM generate_series(1, 5000) g",
        "UPDATE item SET n = 1",
        "ALTER TABLE item REPLICA IDENTITY FULL",
        "UPDATE item SET n = 2",
    )
    rows = pair.read(tmp_path)
    assert [row["unsent"] for row in rows] == [None, [1, 2, 3, 4], [1, 2, 3, 4]]
    assert len(rows[2]["old"][2]) > 30_000


def test_interleaved_streamed_sessions_land_as_in_text_format(any_database: Database, tmp_path: Path) -> None:
    create_tables(any_database)
    pair = Pair(any_database, streaming="on")
    sessions = Sessions(any_database, Random(7), has_two_phase=False)
    for _ in range(150):
        sessions.step()
    for connection in sessions.connections:
        connection.execute("COMMIT")
        connection.close()
    rows = pair.read(tmp_path)
    assert {row["table_name"] for row in rows} >= set(TABLES)


def test_a_type_created_in_its_own_transaction_lands_as_in_text_format(
    any_database: Database, tmp_path: Path
) -> None:
    any_database.run(f"ALTER DATABASE {any_database.name} SET logical_decoding_work_mem = '64kB'")
    pair = Pair(any_database, streaming="on")
    any_database.run(
        "BEGIN; CREATE TYPE mood AS ENUM ('calm'); CREATE TABLE item (id int PRIMARY KEY, m mood[], v text);"
        " INSERT INTO item SELECT g, '{calm}', repeat('x', 100) FROM generate_series(1, 2000) g; COMMIT"
    )
    rows = pair.read(tmp_path)
    assert len(rows) == 2000
    assert rows[0]["new"][:2] == ["1", "{calm}"]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_text_of_another_encoding_lands_as_in_text_format(
    any_database: Database, tmp_path: Path, encoding: str
) -> None:
    name = f"{any_database.name}_{encoding.lower()}"
    any_database.run(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    database = Database(any_database.server, name, any_database.server.conninfo_of(name))
    text = {"LATIN1": "'naïve', '{\"é \u00a0\"}'", "EUC_JP": "'日本', '{日 本}'"}.get(
        encoding, "E'caf\\xe9', ARRAY[E'\\xe9\\x85 x', 'y']"
    )
    try:
        database.run(
            'CREATE TYPE pair AS (a text, b "char")',
            "CREATE TABLE item (id int PRIMARY KEY, t text, ts text[], p pair, j json)",
        )
        pair = Pair(database)
        database.run(
            f"INSERT INTO item (id, t, ts) VALUES (1, {text})",
            "UPDATE item SET p = (t, 'x'), j = to_json(id)",
        )
        rows = pair.read(tmp_path)
        assert len(rows) == 2
        assert (rows[1]["raw_new"] is None) == (encoding != "SQL_ASCII")
    finally:
        drop_database(any_database.server, name)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_workload_lands_as_in_text_format(any_database: Database, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    pair = Pair(any_database)
    with any_database.connect() as source:
        random = Random(seed)
        print(run_workload(source, random, 40, schema=create_schema(source, random, name="workload")))
    rows = pair.read(tmp_path)
    assert len({row["relation_version"] for row in rows}) > 3
