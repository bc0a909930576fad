"""The database moves to another server: silver equals it, and only what differs was copied."""

import threading
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from pipeline.bronze.log import Bronze
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.delta.table import Lake
from pipeline.errors import GapError, SourceError
from pipeline.ingest import job as ingesting
from pipeline.operate.move_source import MoveStep, MoveSummary, SourceMove, run_move_source
from pipeline.operate.rebuild import run_rebuild
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from pipeline.verify.audit import run_audit
from tests.support.lives import FILL, TABLE
from tests.support.moves import STEPS, advance_wal, database_of, dump_into, killed, moved, upgrade
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.postgres.standbys import promote, standby_of
from tests.support.servers import Database, MakeServer

A, B, C = (TableName("public", name) for name in ("a", "b", "c"))


def begin(make_server: MakeServer, make_pipeline: MakePipeline, major: int | None) -> Pipeline:
    """Return a pipeline of a server of its own, whose oids and attribute numbers a dump does not keep."""
    database = database_of(make_server(major=major), "shop")
    life = make_pipeline(copy="initial", create_publication="all", database=database)
    life = replace(life, config=replace(life.config, tables=(TableRule("*.*"),)))
    life.catch_up(
        "CREATE TABLE gone (x int)",
        *(TABLE.format(name) for name in ("c", "b", "a")),
        "ALTER TABLE a ADD w numeric(10, 2) DEFAULT 1.5, ADD x int",
        "ALTER TABLE a DROP v, ADD v text DEFAULT 'v'",
        "INSERT INTO a (id, x) SELECT i, i FROM generate_series(1, 2000) i",
        *(FILL.format(name, 1, 2000) for name in ("b", "c")),
        "DROP TABLE gone",
    )
    life.run("UPDATE a SET x = 0 WHERE id < 50", "DELETE FROM b WHERE id = 7")
    life.ingest()  # silver does not have it at the move
    return life


def fill_new(life: Pipeline, new: Database) -> None:
    """Fill the new server, on which a few rows change before the pipeline follows it."""
    dump_into(life.database, new)
    # far enough for what the old server writes while it is idle
    advance_wal(new, LSN(life.database.flush_lsn() + (64 << 20)))
    new.run("UPDATE a SET x = -1 WHERE id IN (3, 1999)", "INSERT INTO c VALUES (9000, 'new')")


def assert_moved(life: Pipeline, found: MoveSummary) -> None:
    """Assert that silver equals the new server, stays so, and that little was copied."""
    assert found.exit_code(strict=True) == 0, found.lines()
    life.assert_equal("a", "b", "c")
    assert found.run is not None
    assert sum(copy.rows_landed for copy in found.run.ingest.copies.values()) <= 3
    life.catch_up(
        "UPDATE a SET w = 2.5 WHERE id = 9",
        "ALTER TABLE a ADD y int DEFAULT 4",
        "INSERT INTO a (id, y) VALUES (9001, 5)",
        "UPDATE b SET id = 9002 WHERE id = 1",
        "TRUNCATE c",
        "INSERT INTO c VALUES (1, 'after')",
        TABLE.format("later"),
        FILL.format("later", 1, 5),
    )
    life.assert_equal("a", "b", "c", "later")


@pytest.mark.promise("moved sources")
def test_a_server_that_a_dump_filled_is_followed(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    old = begin(make_server, make_pipeline, 14)
    new = database_of(make_server(major=17), "shop")
    advance_wal(old.database, new.flush_lsn())
    old.ingest()
    with moved(old, new) as life:
        with pytest.raises(GapError, match="move-source"):
            life.ingest()
        with pytest.raises(GapError, match=r"pg_resetwal -l [0-9A-F]{24} "):
            run_move_source(life.config, old=old.config.source.conninfo)
        old.run("INSERT INTO c VALUES (5000, 'the last one')")
        fill_new(old, new)
        found = run_move_source(life.config, old=old.config.source.conninfo)
        assert found.steps == [MoveStep.DRAIN, MoveStep.SWITCH, MoveStep.COMPARE]
        assert_moved(life, found)
        run_rebuild(life.config, ["public.a"])
        life.assert_equal("a")
        assert run_audit(life.config).exit_code(strict=False) == 0
        assert not run_move_source(life.config).steps


@pytest.mark.promise("moved sources")
def test_an_xid_of_the_old_server_is_no_transaction_of_the_new_one(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    """A copy is read while a transaction runs whose xid the old server gave to a captured one."""
    database, new = (database_of(make_server(), "shop") for _ in range(2))
    old = make_pipeline(copy="initial", create_publication="all", database=database)
    old.catch_up("CREATE TABLE bag (a int)", "ALTER TABLE bag REPLICA IDENTITY FULL")
    old.catch_up(*["SELECT txid_current()"] * 200, "INSERT INTO bag VALUES (1), (1), (2)")
    old.catch_up("DELETE FROM bag WHERE a = 2")
    bronze = Bronze(Lake(old.config.storage), old.config.pipeline)
    [xid] = bronze.changes.rows(["xid"], pc.field("op") == "D")["xid"].to_pylist()
    dump_into(database, new)
    advance_wal(new, LSN(database.flush_lsn() + (64 << 20)))
    new.run("INSERT INTO bag VALUES (2)")
    with moved(old, new) as life, new.connect() as running:
        stop = threading.Event()
        SourceMove(life.config, bronze, None, compares=False, stop=stop).carry_out(MoveStep.SWITCH)
        while life.source.execute("SELECT txid_current()").fetchone() != (xid - 1,):
            pass
        running.execute("BEGIN")
        assert running.execute("SELECT txid_current()").fetchone() == (xid,)
        assert run_move_source(life.config).steps == [MoveStep.COMPARE]
        running.execute("ROLLBACK")
        life.assert_follows("bag")


@pytest.mark.promise("moved sources")
def test_a_move_back_to_the_server_of_the_first_timeline(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    """The first server was still running after its standby was promoted."""
    first = begin(make_server, make_pipeline, None)
    with standby_of(first.database.server) as standby:
        promote(standby)
        second = Database(standby, "shop", standby.conninfo_of("shop"))
        with moved(first, second) as life:
            advance_wal(second, first.database.flush_lsn())
            assert run_move_source(life.config).exit_code(strict=True) == 0
            life.catch_up("INSERT INTO c VALUES (9000, 'second')", "DELETE FROM b WHERE id = 8")
            advance_wal(first.database, second.flush_lsn())
    first.run("INSERT INTO c VALUES (9001, 'first')")
    with pytest.raises(
        GapError, match=r"This server is on timeline 1, and timeline 2 is not in its history: .* move-source"
    ):
        first.ingest()
    found = run_move_source(first.config)
    assert found.steps == [MoveStep.SWITCH, MoveStep.COMPARE]
    assert_moved(first, found)


@pytest.mark.spark
@pytest.mark.promise("moved sources")
@pytest.mark.slow
@pytest.mark.parametrize("why", ["", "asked", "publication edited", "old server unknown"])
def test_the_slot_that_pg_upgrade_keeps_is_used(
    make_server: MakeServer, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Unless a comparison is asked for, or the slot may lack what was committed on the new server."""
    old = begin(make_server, make_pipeline, None)
    new = make_server()
    new.stop()
    old.source.close()
    old.database.server.stop()
    upgrade(old.database.server, new)
    new.start()
    with moved(old, Database(new, "shop", new.conninfo_of("shop"))) as life:
        publication, slot = life.config.source.publication, life.config.source.slot
        bronze = Bronze(Lake(life.config.storage), life.config.pipeline)
        if why == "publication edited":
            life.run(f"ALTER PUBLICATION {publication} SET (publish = 'insert')")
            life.run("DELETE FROM b WHERE id = 9")
            life.run(f"ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')")
        elif why == "old server unknown":  # recorded by an earlier version of pgdelta
            recorded = {k: v for k, v in bronze.metadata().items() if k != "server_version"}
            monkeypatch.setattr(Bronze, "metadata", lambda _: recorded)
            life.run(f"SELECT pg_drop_replication_slot('{slot}')", "DELETE FROM b WHERE id = 9")
            life.run(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        stop = threading.Event()
        move = SourceMove(life.config, bronze, None, compares=why == "asked", stop=stop)
        move.carry_out(MoveStep.SWITCH)
        monkeypatch.undo()
        found = run_move_source(life.config)
        assert found.steps == ([MoveStep.COMPARE] if why else [])
        copied = set(found.run.ingest.copies) if found.run else set()
        assert copied == ({B} if why not in ("", "asked") else set())
        again = life.ingest("DELETE FROM c WHERE id = 5", "INSERT INTO a (id) VALUES (7000)")
        assert not again.copies
        assert not again.compared
        assert not life.ingest().compared
        life.assert_follows("a", "b", "c")


@pytest.mark.spark
@pytest.mark.promise("moved sources")
@pytest.mark.slow
def test_a_move_that_is_killed_at_each_step_continues(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    old = begin(make_server, make_pipeline, 14)
    new = database_of(make_server(major=17), "shop")
    fill_new(old, new)
    with moved(old, new) as life:
        for owner, name in STEPS:
            for is_after in (False, True):
                with killed(owner, name, is_after=is_after):
                    run_move_source(life.config, old=old.config.source.conninfo)
        assert run_move_source(life.config).exit_code(strict=True) == 0
        life.assert_equal("a", "b", "c")


@pytest.mark.spark
@pytest.mark.slow
def test_a_server_that_still_commits_is_not_left(
    make_server: MakeServer, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = begin(make_server, make_pipeline, 14)
    new = database_of(make_server(major=17), "shop")
    fill_new(old, new)
    run_ingest = ingesting.run_ingest

    def ingest(*arguments: object, **options: object) -> object:
        summary = run_ingest(*arguments, **options)  # type: ignore[arg-type]
        old.run("INSERT INTO b VALUES ((SELECT max(id) + 1 FROM b), 'more')")
        return summary

    monkeypatch.setattr(ingesting, "run_ingest", ingest)
    with moved(old, new) as life, pytest.raises(SourceError, match="still commits"):
        run_move_source(life.config, old=old.config.source.conninfo)


@pytest.mark.spark
@pytest.mark.promise("protected columns")
@pytest.mark.slow
def test_protected_columns_stay_protected(make_server: MakeServer, tmp_path: Path) -> None:
    """Also if they or their table were renamed before the move, and are renamed after it."""
    old = database_of(make_server(major=14), "shop")
    new = database_of(make_server(major=17), "shop")
    columns = ColumnRules(exclude=("secret",), hash={"mail": "hmac-sha256"})
    rules = (TableRule("public.p", columns=columns), TableRule("public.q", columns=columns), TableRule("*.*"))
    source = {"copy": "initial", "create_publication": "all", "hash_key": "k" * 16}
    before = replace(old.config(root=str(tmp_path), **source), tables=rules)
    after = replace(before, source=replace(before.source, conninfo=new.conninfo))
    table = "CREATE TABLE {} (id int PRIMARY KEY, secret text, mail text, v text)"
    row = "INSERT INTO {} VALUES ({}, 'planted', 'planted', 'plain')"
    old.run("CREATE TABLE gone (x int)", *(table.format(name) for name in ("q", "p")), "DROP TABLE gone")
    old.run(*(row.format(name, 1) for name in ("p", "q")))
    ingesting.run_ingest(before)
    old.run("ALTER TABLE p RENAME mail TO contact", "ALTER TABLE q RENAME TO r")
    old.run(*(row.format(name, 2) for name in ("p", "r")))
    ingesting.run_ingest(before)
    dump_into(old, new)
    advance_wal(new, LSN(old.flush_lsn() + (64 << 20)))
    bronze = Bronze(Lake(before.storage), before.pipeline)
    stop = threading.Event()
    move = SourceMove(after, bronze, old.conninfo, compares=False, stop=stop)
    move.carry_out(MoveStep.DRAIN)
    new.run("ALTER TABLE p RENAME contact TO other")
    with pytest.raises(GapError, match=r"public\.p has other columns on the new server, and other may have"):
        move.carry_out(MoveStep.SWITCH)
    new.run("ALTER TABLE p RENAME other TO contact")
    move.carry_out(MoveStep.SWITCH)
    new.run(*(row.format(name, 3) for name in ("p", "r")))
    ingesting.run_ingest(after)
    new.run(
        "ALTER TABLE p RENAME secret TO hidden",
        "ALTER TABLE p RENAME contact TO address",
        "ALTER TABLE r RENAME secret TO hidden",
        "ALTER TABLE r RENAME TO s",
        *(row.format(name, 4) for name in ("p", "s")),
    )
    ingesting.run_ingest(after)
    found = bronze.changes.rows(["table_name", "op", "new"]).to_pylist()
    inserted = [(change["table_name"], change["new"]) for change in found if change["op"] == "I"]
    assert [(name, new[0], len(new)) for name, new in sorted(inserted)] == [
        *(("p", each, 3) for each in "234"),
        ("r", "2", 3),
        ("r", "3", 3),
        ("s", "4", 3),
    ]
    assert "planted" not in str(found)


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_with_other_columns_and_the_same_oid_is_another_one(
    make_server: MakeServer, tmp_path: Path
) -> None:
    old = database_of(make_server(major=14), "shop")
    new = database_of(make_server(major=17), "shop")
    before = old.config(root=str(tmp_path), copy="initial", create_publication="all")
    after = replace(before, source=replace(before.source, conninfo=new.conninfo))
    made = {old: "CREATE TABLE t (id int PRIMARY KEY, v text)"}
    made[new] = "CREATE TABLE t (id int PRIMARY KEY, w text, v text)"
    while (oids := [oid_of(each, table) for each, table in made.items()]) and oids[0] != oids[1]:
        behind = old if oids[0] < oids[1] else new
        behind.run(*["CREATE SCHEMA used", "DROP SCHEMA used"] * abs(oids[0] - oids[1]))
        for database in made:
            database.run("DROP TABLE t")
    old.run("INSERT INTO t VALUES (1, 'v')")
    new.run("INSERT INTO t VALUES (1, 'w', 'v')")
    ingesting.run_ingest(before)
    advance_wal(new, LSN(old.flush_lsn() + (64 << 20)))
    bronze = Bronze(Lake(before.storage), before.pipeline)
    move = SourceMove(after, bronze, old.conninfo, compares=False, stop=threading.Event())
    move.carry_out(MoveStep.DRAIN)
    move.carry_out(MoveStep.SWITCH)
    new.run("INSERT INTO t VALUES (2, 'w', 'v')")
    ingesting.run_ingest(after)
    # its column w has the number of the lake's v
    first, second = sorted(bronze.source_relations().values(), key=lambda relation: relation.lsn)
    assert first.oid != second.oid


def oid_of(database: Database, statement: str) -> int:
    """Create the table t and return its oid."""
    found: int = database.run(statement, "SELECT 't'::regclass::oid::bigint")[0][0]
    return found
