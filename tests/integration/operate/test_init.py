"""`pgdelta init` on real servers: from a server of a stranger's to the first table that is equal."""

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from pipeline.cli.main import main
from pipeline.config.load import load_config
from pipeline.postgres.embedded import EmbeddedServer, find_binaries
from pipeline.table_name import TableName
from pipeline.verify.reconcile import run_reconcile
from tests.support.pipelines import MakePipeline
from tests.support.processes import run_command
from tests.support.servers import Database, MakeServer, restart

pytestmark = pytest.mark.postgres

ROLE = "str\"anger's"
HOSTILE = ('say "hi"', "a\nb: c", "# none", "x.y", "${HOME}", "ünï😀", "back\\slash", "- source: '*.*'")
MAJORS = (10, *(pytest.param(major, marks=pytest.mark.slow) for major in range(11, 18)), 18)


def quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def init(database: Database, file: Path, *arguments: str, user: str = "postgres") -> dict[str, Any]:
    """Run init as a script does, and return what it prints."""
    conninfo = database.server.conninfo_of(database.name, user)
    options = ["--conninfo", conninfo, "--output", str(file), "--root", str(file.parent / "lake")]
    return run(["init", "--yes", "--json", *options, *arguments])


def run(arguments: list[str]) -> dict[str, Any]:
    done = run_command(sys.executable, "-m", "pipeline.cli", *arguments)
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


def make_odd_relations(database: Database) -> None:
    """Create what is no table of its own, tables of an extension, and tables without an identity."""
    is_new = database.server_major >= 13
    database.run(
        "CREATE TABLE sales.lookup (id int PRIMARY KEY)",
        "ALTER EXTENSION plpgsql ADD TABLE sales.lookup",
        "CREATE VIEW sales.known AS SELECT 1 AS one",
        "ALTER EXTENSION plpgsql ADD VIEW sales.known",
        "CREATE SCHEMA reports",
        "CREATE MATERIALIZED VIEW reports.totals AS SELECT 1 AS one",
        "CREATE UNLOGGED TABLE sales.cache (id int PRIMARY KEY)",
        "CREATE FOREIGN DATA WRAPPER nowhere",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere",
        "CREATE FOREIGN TABLE sales.remote (id int) SERVER elsewhere",
        "CREATE TABLE sales.codes (code text NOT NULL, other text)",
        "CREATE UNIQUE INDEX codes_other ON sales.codes (other)",
        "CREATE UNIQUE INDEX codes_code ON sales.codes (code)",
    )
    if is_new:
        database.run(
            "CREATE TABLE sales.days (day date PRIMARY KEY, n int) PARTITION BY RANGE (day)",
            "CREATE TABLE sales.days_1 PARTITION OF sales.days DEFAULT",
            "INSERT INTO sales.days VALUES ('2026-01-05', 1)",
            "CREATE TABLE sales.bare (day date, n int) PARTITION BY RANGE (day)",
            "CREATE TABLE sales.bare_1 PARTITION OF sales.bare DEFAULT",
        )


@pytest.mark.promise("the script for the DBA")
@pytest.mark.parametrize("major", MAJORS)
def test_the_printed_script_is_enough_for_a_role_that_did_not_exist(
    make_server: MakeServer,
    make_pipeline: MakePipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    major: int,
) -> None:
    """A role that may only log in runs init; a superuser runs what it prints, as it is."""
    server = make_server({"wal_level": "replica", "max_replication_slots": "0"}, major=major)
    database = Database.of(server)
    make_tables(database)
    make_odd_relations(database)
    database.run(
        "CREATE ROLE analyst LOGIN",
        "CREATE ROLE keeper",
        "ALTER TABLE sales.orders OWNER TO keeper",
        "ALTER TABLE sales.orders ENABLE ROW LEVEL SECURITY",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        "REVOKE ALL ON DATABASE postgres FROM PUBLIC",
        "GRANT CONNECT ON DATABASE postgres TO analyst",
    )
    file = tmp_path / "shop.yaml"
    monkeypatch.setenv("COLUMNS", "80")
    options = ["--conninfo", server.conninfo_of("postgres", "analyst"), "--root", str(tmp_path / "lake")]
    with database.connect() as session:
        session.execute("CREATE TEMPORARY TABLE mine (id int PRIMARY KEY)")
        assert main(["init", "--yes", "--role", ROLE, "--output", str(file), *options]) == 0
    printed = capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    again = ["--output", "again.yaml", "--sql", "dba.sql"]
    assert main(["init", "--yes", "--role", ROLE, *again, *options]) == 0
    assert "as SQL for its DBA: dba.sql" in " ".join(capsys.readouterr().out.split())
    assert all(len(line) <= 80 or line.startswith("pgdelta ") for line in printed.splitlines()), printed
    script = printed.partition("To do at the source")[2].partition(":\n")[2].partition("\nThen:")[0]
    assert '-- ALTER TABLE "sales"."codes" REPLICA IDENTITY USING INDEX "codes_code";' in script
    assert '-- ALTER TABLE "sales"."notes" REPLICA IDENTITY FULL;' in script
    shown = " ".join(printed.split())
    for sentence in _NAMED if major >= 13 else _NAMED[:-2]:
        assert sentence in shown, printed
    assert "bare_1. It is a partition" not in shown

    assert without_measured_rate((tmp_path / "dba.sql").read_text()) == without_measured_rate(script)

    run_script(server, script)
    restart(server, {})
    assert main(["check", "--config", str(file)]) == 0, capsys.readouterr().out
    life = replace(make_pipeline(database=database), config=load_config(file))
    assert conninfo_to_dict(life.config.source.conninfo)["user"] == ROLE
    life.catch_up()
    life.catch_up("UPDATE sales.orders SET price = price + 1 WHERE id % 2 = 0", "DELETE FROM sales.parts")
    days = [TableName("sales", "days")] if major >= 13 else []
    odd = [TableName(name, name) for name in HOSTILE]
    life.assert_equal(TableName("sales", "orders"), TableName("sales", "parts"), *days, *odd)


_NAMED = (
    "sales.codes, sales.notes. No replica identity, so UPDATE",
    "not followed: sales.known, sales.lookup. It belongs to the extension plpgsql.",
    "not followed: reports.totals. It is a materialized view",
    "not followed: sales.cache. It is unlogged",
    "not followed: sales.remote. It is a foreign table",
    "not followed: sales.seen. It is a view",
    "not followed: 1 temporary table. Only their sessions see them.",
    "not followed: sales.days_1. It is a partition: silver has its rows in the table sales.days.",
    '-- ALTER TABLE "sales"."bare_1" REPLICA IDENTITY FULL;',
)


def without_measured_rate(script: str) -> str:
    """Leave out how long a limit lasts, which each run measures for itself, and how lines are broken."""
    words = " ".join(script.replace("\n--", "\n").split())
    return re.sub(r"(GB last) .+? (at the rate above)", r"\1 \2", words)


def run_script(server: EmbeddedServer, script: str) -> None:
    """Run a script as a superuser by psql, which ends at the first error."""
    psql = find_binaries() / "psql"
    command = [str(psql), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", server.conninfo]
    run_command(*command, input=script)


@pytest.mark.promise("the estimate of a copy")
def test_the_sample_says_how_much_bronze_will_have(
    database: Database, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    """Two tables and a partition, one with TOASTed values; the first also has no statistics yet."""
    database.run(
        "CREATE TABLE item (id int8 PRIMARY KEY, name text, at timestamptz)",
        "INSERT INTO item SELECT g, 'item number ' || g, now() + g * interval '1 s'"
        " FROM generate_series(1, 150000) g",
        "CREATE TABLE doc (id int PRIMARY KEY, body text,"
        " size int GENERATED ALWAYS AS (length(body)) STORED)",
        "ALTER TABLE doc ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO doc SELECT g, repeat(md5(g::text), 200) FROM generate_series(1, 1000) g",
        "CREATE TABLE part (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100000)",
        "INSERT INTO part SELECT generate_series(0, 50000)",
    )
    file = tmp_path / "shop.yaml"
    read_only = f"ALTER DATABASE {database.name} {{}} default_transaction_read_only{{}}"
    database.run(read_only.format("SET", " = on"))
    estimate = init(database, file)["estimate"]
    database.run("SET default_transaction_read_only = off", read_only.format("RESET", ""))
    [(size,)] = database.run("SELECT sum(pg_table_size(c)) FROM unnest('{item,doc,part_1}'::regclass[]) c")
    sample = estimate["sample"]
    assert estimate["table_bytes"] == size
    assert sample["tables"] == 3
    assert size / 16 < sample["bytes"] <= size
    life = replace(make_pipeline(database=database), config=load_config(file))
    life.ingest()
    changes = Path(life.config.storage.root) / "bronze" / "changes"
    landed = sum(each.stat().st_size for each in changes.glob("*.parquet"))
    assert landed / 2 < estimate["bronze_bytes"] < 2 * landed


def test_from_init_to_the_first_equal_tables(
    database: Database, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    make_tables(database)
    file = tmp_path / "shop.yaml"
    with database.connect() as session, session.transaction():  # as VACUUM FULL does
        session.execute("LOCK TABLE sales.parts")
        found = init(database, file)
    assert found["to_do"] == []
    assert main(["check", "--config", str(file)]) == 0
    life = replace(make_pipeline(database=database), config=load_config(file))
    life.catch_up()
    life.catch_up(
        "UPDATE sales.orders SET price = price + 1 WHERE id % 2 = 0",
        "DELETE FROM sales.orders WHERE id % 7 = 0",
        *(f"UPDATE {quoted(name, name)} SET {quoted(name)} = 'other'" for name in HOSTILE),
    )
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
    assert """pgdelta query --config mine.yaml 'SELECT * FROM "sales"."orders"'""" in output


def read_until(terminal: int, end: str) -> str:
    shown = ""
    while not shown.endswith(end):
        shown += os.read(terminal, 1024).decode()
    return shown
