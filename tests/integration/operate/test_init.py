"""`pgdelta init` on real servers: from a server of a stranger's to the first table that is equal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from pipeline.config.load import load_config
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.table_name import TableName
from pipeline.verify.reconcile import run_reconcile
from tests.support.pipelines import MakePipeline
from tests.support.servers import Database, MakeServer, restart

pytestmark = pytest.mark.postgres

ROLE = "str\"anger's"
HOSTILE = ('say "hi"', "a\nb: c", "# none", "x.y", "${HOME}", "ünï😀", "back\\slash", "- source: '*.*'")
MAJORS = (10, 18)


def quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def init(database: Database, file: Path, *arguments: str, user: str = "postgres") -> dict[str, Any]:
    """Run init as a script does, and return what it prints."""
    conninfo = database.server.conninfo_of(database.name, user)
    options = ["--conninfo", conninfo, "--output", str(file), "--root", str(file.parent / "lake")]
    return run(["init", "--yes", "--json", *options, *arguments])


def run(arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def make_tables(database: Database) -> None:
    database.run(
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (id int PRIMARY KEY, price numeric(10, 2))",
        "INSERT INTO sales.orders SELECT g, g FROM generate_series(1, 200) g",
        "CREATE TABLE sales.notes (text text)",
        "CREATE TABLE sales.parts (id int PRIMARY KEY, name text)",
        "CREATE VIEW sales.seen AS SELECT 1",
        *(
            statement
            for name in HOSTILE
            for statement in (
                f"CREATE SCHEMA {quoted(name)}",
                f"CREATE TABLE {quoted(name, name)} (id int PRIMARY KEY, {quoted(name)} text)",
                f"INSERT INTO {quoted(name, name)} VALUES (1, 'value')",
            )
        ),
    )


@pytest.mark.parametrize("major", MAJORS)
def test_what_is_to_do_is_enough_for_a_server_that_has_nothing(
    make_server: MakeServer, tmp_path: Path, major: int
) -> None:
    server = make_server({"wal_level": "replica", "max_replication_slots": "0"}, major=major)
    database = Database(server, "postgres", server.conninfo)
    make_tables(database)
    database.run(
        f"CREATE ROLE {quoted(ROLE)} LOGIN",
        "CREATE ROLE keeper",
        "ALTER TABLE sales.orders OWNER TO keeper",
        "ALTER TABLE sales.orders ENABLE ROW LEVEL SECURITY",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
    )
    file = tmp_path / "shop.yaml"
    found = init(database, file, user="'" + ROLE.replace("'", "\\'") + "'")
    config = load_config(file)
    failed = {check.name for check in run_checks(config) if not check.ok}
    assert {"wal_level", "replication right", "SELECT right", "row-level security"} <= failed
    statements = [statement for each in found["to_do"] for statement in each["statements"]]
    assert all("\n" not in statement for statement in statements)
    before = [each for each in found["to_do"] if each["needs_restart"]]
    database.run(*(statement for each in before for statement in each["statements"]))
    restart(server, {})
    database.run(*(s for each in found["to_do"] if not each["needs_restart"] for s in each["statements"]))
    assert [check for check in run_checks(config) if not check.ok] == []
    names = {(table["schema"], table["table"]) for table in found["tables"]}
    assert names == {("sales", "orders"), ("sales", "parts"), *((name, name) for name in HOSTILE)}
    assert [(each["table"], each["reason"].partition(",")[0]) for each in found["left_out"]] == [
        ("notes", "no replica identity")
    ]


def test_from_init_to_the_first_equal_tables(
    database: Database, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    make_tables(database)
    file = tmp_path / "shop.yaml"
    found = init(database, file)
    assert found["to_do"] == []
    assert main(["check", "--config", str(file)]) == 0
    life = replace(make_pipeline(database=database), config=load_config(file))
    life.catch_up()
    life.run(
        "UPDATE sales.orders SET price = price + 1 WHERE id % 2 = 0",
        "DELETE FROM sales.orders WHERE id % 7 = 0",
        *(f"UPDATE {quoted(name, name)} SET {quoted(name)} = 'other'" for name in HOSTILE),
    )
    life.catch_up()
    life.assert_equal(*(TableName(each["schema"], each["table"]) for each in found["tables"]))
    compared = run_reconcile(life.config, ["sales.orders", f"{quoted(HOSTILE[0])}.*"], runs=True).as_json()[
        "tables"
    ]
    assert [(each["table"], each["verdict"]) for each in compared] == [
        ("orders", "equal"),
        (HOSTILE[0], "equal"),
    ]
    # the slot has the name now, so that another pipeline gets its own
    other = init(database, tmp_path / "other.yaml", "--table", "sales.parts")
    assert other["pipeline"] != found["pipeline"]
    assert [each["table"] for each in other["tables"]] == ["parts"]


def test_a_file_that_exists_is_never_replaced(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    database.run("CREATE TABLE item (id int PRIMARY KEY)")
    (tmp_path / "kept.yaml").write_text("kept")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nowhere.yaml")
    for name in ("kept.yaml", "link.yaml"):
        arguments = ["--conninfo", database.conninfo, "--output", str(tmp_path / name)]
        assert main(["init", "--yes", *arguments]) == 2
        assert "The file exists, and is not replaced." in capfd.readouterr().err
    assert (tmp_path / "kept.yaml").read_text() == "kept"
    assert not (tmp_path / "nowhere.yaml").exists()


def test_the_name_of_a_slot_that_exists_is_refused(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY)",
        f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')",
    )
    file = tmp_path / "shop.yaml"
    arguments = ["--conninfo", database.conninfo, "--output", str(file), "--pipeline", database.name]
    assert main(["init", "--yes", *arguments]) == 2
    assert "exists already, and a slot has one reader" in capfd.readouterr().err
    assert not file.exists()


def test_without_a_terminal_questions_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--conninfo", "host=nowhere"]) == 2
    assert "Add --yes" in capfd.readouterr().err


def test_questions_are_answered_on_a_terminal(database: Database, tmp_path: Path) -> None:
    make_tables(database)
    answers = [database.conninfo, "", "sales.*", "my lake", "mine.yaml"]
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", "init"],
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=follower,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as process:
        os.close(follower)
        shown = ""
        for answer in answers:
            shown = read_until(leader, "]: ")
            os.write(leader, f"{answer}\n".encode())
        assert process.stdout is not None
        output = process.stdout.read().decode()
        assert process.wait(60) == 0, shown
    os.close(leader)
    config = load_config(tmp_path / "mine.yaml")
    assert config.pipeline == database.name
    assert config.storage.root == str(tmp_path / "my lake")
    assert [(rule.source, rule.exclude) for rule in config.tables] == [("sales.*", ("sales.notes",))]
    assert "wrote mine.yaml: 2 tables" in output
    assert "left out: sales.notes. No replica identity" in output
    assert "pgdelta check --config mine.yaml" in output


def read_until(terminal: int, end: str) -> str:
    shown = ""
    while not shown.endswith(end):
        shown += os.read(terminal, 1024).decode()
    return shown
