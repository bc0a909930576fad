"""Values whose text cannot be read without the catalog or the server's locale are those of the source."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.bronze.source_relations import SourceColumn
from pipeline.metadata.reconciliations import EQUAL
from pipeline.postgres.binary_format import find_unreadable
from pipeline.postgres.connection import connect
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline
from tests.support.servers import Database, MakeServer

VALUES = ["1:2", "a,b", "", "NULL", "'"]


def make_type(name: str, delimiter: str) -> list[str]:
    """Return what makes a type with texts as values and a delimiter of its own."""
    return [
        f"CREATE TYPE {name}",
        f"CREATE FUNCTION {name}_in(cstring) RETURNS {name} LANGUAGE internal IMMUTABLE STRICT AS 'textin'",
        f"CREATE FUNCTION {name}_out({name}) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout'",
        f"CREATE TYPE {name} (INPUT = {name}_in, OUTPUT = {name}_out, LIKE = text,"
        f" DELIMITER = '{delimiter}')",
    ]


def create(database: Database) -> None:
    database.run(
        *make_type("colon", ":"),
        *make_type("quoted", "''"),
        *make_type("letter", "L"),
        "CREATE TABLE place (id int PRIMARY KEY, colons colon[], quotes quoted[], letters letter[],"
        " boxes box[])",
    )


def fill(database: Database) -> None:
    with database.connect() as source:
        array = [f'"{value}"' for value in VALUES] + ["NULL"]
        texts = ["{" + mark.join(array) + "}" for mark in ":'"]
        boxes = "{(1,1),(0,0);(3,3),(2,2)}"
        source.execute("INSERT INTO place VALUES (1, %s, %s, '{abc}', %s)", [*texts, boxes])


def test_arrays_are_split_at_the_delimiter_of_their_type(
    make_pipeline: MakePipeline, database: Database, old_database: Database
) -> None:
    for number, source in enumerate((database, old_database)):
        pipeline = make_pipeline(name=f"p{number}", database=source)
        create(source)
        pipeline.ingest()
        fill(source)
        pipeline.catch_up()
        [row] = pipeline.frame("silver", "public", "place").collect()
        assert [*row.colons] == [*row.quotes] == [*VALUES, None]
        assert row.letters == "{abc}"  # the text of NULL contains the delimiter
        assert [*row.boxes] == ["(1,1),(0,0)", "(3,3),(2,2)"]


def test_reconcile_finds_arrays_that_were_split_elsewhere(
    make_pipeline: MakePipeline, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.verify.reconcile import run_reconcile

    pipeline = make_pipeline(name="p")
    create(database)
    pipeline.ingest()
    fill(database)
    with monkeypatch.context() as patched:
        patched.setattr(SourceColumn, "array_delimiter", ",")
        pipeline.catch_up()
    [found] = run_reconcile(pipeline.config, runs=True).verdicts
    assert found.verdict != EQUAL
    assert set(found.columns) == {"colons", "quotes", "boxes"}


@pytest.fixture
def locales() -> Iterator[Path]:
    """Give a folder that the server's user can enter, too."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def make_locale(folder: Path) -> None:
    command = ["localedef", "-i", "ja_JP", "-f", "UTF-8", str(folder / "ja_JP.UTF-8")]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("this machine has no localedef")
    if done.returncode > 1:
        pytest.skip("this machine cannot make a locale")


def test_money_is_as_the_server_prints_it_where_it_has_no_cents(
    make_pipeline: MakePipeline,
    make_server: MakeServer,
    monkeypatch: pytest.MonkeyPatch,
    locales: Path,
) -> None:
    make_locale(locales)
    monkeypatch.setenv("LOCPATH", str(locales))
    server = make_server()
    Database.of(server).run("CREATE DATABASE shop")
    database = Database(server, "shop", server.conninfo_of("shop"))
    pipeline = make_pipeline(database=database)
    database.run("CREATE TABLE item (id int PRIMARY KEY, price money, prices money[])")
    pipeline.ingest()
    database.run("INSERT INTO item VALUES (1, 1234.5, '{1,2}')")
    pipeline.catch_up()
    [row] = pipeline.frame("silver", "public", "item").collect()
    assert (row.price, [*row.prices]) == ("$1,234.50", ["$1.00", "$2.00"])

    database.run("ALTER DATABASE shop SET lc_monetary = 'ja_JP.UTF-8'")
    database.run("""INSERT INTO item VALUES (2, 1234, '{5,"6,000"}')""")
    pipeline.ingest()
    pipeline.apply()
    [row] = pipeline.frame("silver", "public", "item").where("id = 2").collect()
    texts = "price::text, prices[1]::text, prices[2]::text"
    [(price, *prices)] = database.run(f"SELECT {texts} FROM item WHERE id = 2")
    assert (row.price, [*row.prices]) == (price, prices)
    assert (price[1:], prices[1][1:]) == ("1,234", "6,000")
    changed = "of column {} changed, which may have changed values that the stream does not carry."
    told = [sentence for kind, sentence in pipeline.events("item") if kind == "resync"]
    assert all(any(changed.format(name) in each for each in told) for name in ("price", "prices"))
    at_rest = [sentence for _, sentence in pipeline.events("item", rewrites=True)]
    assert any("of the type pg_catalog.money have another text" in each for each in at_rest)
    with connect(database.conninfo) as session:
        assert find_unreadable(session, [TableName("public", "item")], "none") == [
            "public.item.price (money)",
            "public.item.prices (money in money[])",
        ]
