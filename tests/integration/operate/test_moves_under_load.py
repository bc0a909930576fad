"""The database moves under writes: to a newer major by a dump or pg_upgrade, and to a promoted standby.

The standby has no slot, and lacks commits of the old primary that bronze has.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.config.config import Protocol
from pipeline.errors import GapError, SourceError
from pipeline.operate.move_source import MoveStep, MoveSummary, run_move_source
from pipeline.postgres.embedded import EmbeddedServer, run_as
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from pipeline.verify.audit import run_audit
from tests.support.copies import BAG, FILL, FILL_BAG, ORDERS, load
from tests.support.lives import FILL as FILL_QUIET
from tests.support.lives import TABLE
from tests.support.moves import (
    STEPS,
    advance_wal,
    database_of,
    debian_binaries,
    dump_into,
    killed,
    moved,
    upgrade,
)
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.postgres.standbys import promote, standby_of, syncing_standby_of, wait_for_slot
from tests.support.running import continuous
from tests.support.servers import Database, MakeServer
from tests.support.threads import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLES = ("orders", "bag", "quiet")
QUIET = TableName("public", "quiet")
QUIET_ROWS = 20_000


def begin(database: Database, make_pipeline: MakePipeline) -> Pipeline:
    """Return a pipeline with two tables that change, one of them without a key, and one that does not."""
    life = make_pipeline(copy="initial", create_publication="all", database=database)
    quiet = (TABLE.format("quiet"), FILL_QUIET.format("quiet", 1, QUIET_ROWS))
    life.catch_up(*ORDERS, FILL.format(3000), *BAG, FILL_BAG, *quiet)
    return life


def change_until_the_pause(life: Pipeline, seconds: float) -> None:
    """Write to the old server while both jobs run, and leave the last changes to the move."""
    with load(life, 1):
        with continuous(life) as running:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                assert life.apply().exit_code(strict=True) == 0
        assert running.error is None
        time.sleep(1)  # bronze does not have these


def move_under_load(life: Pipeline, old: str | None) -> MoveSummary:
    """Move while the new server is written, before, during and after the command."""
    life.run("UPDATE quiet SET v = 'new' WHERE id IN (3, 4000)", "DELETE FROM quiet WHERE id = 7")
    with load(life, 2):
        time.sleep(1)
        found = run_move_source(life.config, old=old)
        time.sleep(1)
    assert found.exit_code(strict=True) == 0, found.lines()
    print("\n".join(found.lines()))
    return found


def assert_little_was_copied(life: Pipeline, found: MoveSummary) -> None:
    """Assert that silver equals the new server, and that only the rows that differ were copied.

    Those of tables that are written meanwhile may all be copied.
    """
    life.assert_follows(*TABLES)
    assert run_audit(life.config).exit_code(strict=False) == 0
    assert found.run is not None
    copies, compared = found.run.ingest.copies, found.run.ingest.compared
    assert compared[QUIET].startswith("3 keys differ of "), compared
    assert copies[QUIET].rows_landed == 2, compared


@pytest.mark.promise("moved sources")
@pytest.mark.parametrize(("major", "new_major"), [(14, 17), (15, 18)])
def test_a_dump_is_followed_under_load(
    make_server: MakeServer, make_pipeline: MakePipeline, major: int, new_major: int
) -> None:
    old = begin(database_of(make_server(major=major), "shop"), make_pipeline)
    new = database_of(make_server(major=new_major), "shop")
    change_until_the_pause(old, 20)
    dump_into(old.database, new)
    advance_wal(new, LSN(old.database.flush_lsn() + (64 << 20)))
    with moved(old, new) as life:
        found = move_under_load(life, old.config.source.conninfo)
        assert found.steps == [MoveStep.DRAIN, MoveStep.SWITCH, MoveStep.COMPARE]
        assert_little_was_copied(life, found)


@pytest.mark.promise("moved sources")
@pytest.mark.parametrize(("major", "new_major"), [(14, 17), (15, 18)])
def test_pg_upgrade_is_followed_under_load(
    make_server: MakeServer, make_pipeline: MakePipeline, tmp_path: Path, major: int, new_major: int
) -> None:
    binaries = debian_binaries(major, tmp_path)
    new = make_server(binaries=None if new_major == 18 else debian_binaries(new_major, tmp_path))
    new.stop()
    if new_major == 18:  # initdb turns checksums on, and pg_upgrade refuses servers that differ in them
        disable = [str(new.binaries / "pg_checksums"), "--disable", "-D", str(new.data), "--no-sync"]
        run_as(new.account, disable)
    old = begin(database_of(make_server(binaries=binaries), "shop"), make_pipeline)
    change_until_the_pause(old, 10)
    old.ingest()
    old.source.close()
    old.database.server.stop()
    upgrade(old.database.server, new)
    new.start()
    with moved(old, Database(new, "shop", new.conninfo_of("shop"))) as life:
        found = move_under_load(life, None)
        assert found.steps == [MoveStep.SWITCH, MoveStep.COMPARE]
        assert_little_was_copied(life, found)


@contextmanager
def failed_over(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> Iterator[tuple[Pipeline, EmbeddedServer, LSN]]:
    """Give a pipeline, the standby of its stopped server, and the offset of bronze, which that one lacks."""
    server = make_server({"hot_standby": "on", "wal_keep_size": "256MB"})
    old = begin(database_of(server, "shop"), make_pipeline)
    with standby_of(server) as standby:
        old.catch_up("UPDATE orders SET n = -1 WHERE id < 9")
        standby.stop()
        old.catch_up(
            "UPDATE orders SET n = -2 WHERE id BETWEEN 5 AND 20",
            "DELETE FROM orders WHERE id = 30",
            "INSERT INTO bag VALUES (77, 'lost')",
        )
        offset = old.ingest().captured_offset
        assert offset is not None
        old.run("UPDATE orders SET n = -3 WHERE id = 40")  # nobody has it
        old.source.close()
        server.stop(mode="immediate")
        standby.start()
        yield old, standby, offset


@pytest.mark.promise("failovers")
def test_a_promoted_standby_without_the_slot_is_followed(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    with failed_over(make_server, make_pipeline) as (old, standby, offset):
        database = Database(standby, "shop", standby.conninfo_of("shop"))
        with moved(old, database) as life:
            with pytest.raises(SourceError, match="is a standby"):
                run_move_source(life.config)
            promote(standby)
            with pytest.raises(GapError, match="move-source"):
                life.ingest()
            with pytest.raises(GapError, match=r"pg_switch_wal\(\) on the server"):
                run_move_source(life.config)
            with load(life, 3):
                advance_wal(database, offset)
            found = move_under_load(life, None)
            assert found.steps == [MoveStep.SWITCH, MoveStep.COMPARE]
            assert_little_was_copied(life, found)
            assert not run_move_source(life.config).steps


@pytest.mark.promise("failovers")
def test_a_move_to_a_promoted_standby_continues_after_a_kill_at_each_step(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    with failed_over(make_server, make_pipeline) as (old, standby, offset):
        promote(standby)
        database = Database(standby, "shop", standby.conninfo_of("shop"))
        advance_wal(database, offset)
        with moved(old, database) as life, load(life, 4):
            for owner, name in STEPS:
                if name == "run_ingest":
                    continue  # no server to drain
                for is_after in (False, True):
                    with killed(owner, name, is_after=is_after):
                        run_move_source(life.config)
            assert run_move_source(life.config).exit_code(strict=True) == 0
        with moved(old, database) as life:
            life.assert_follows(*TABLES)


@pytest.mark.promise("failovers")
def test_what_is_prepared_across_a_failover_is_kept(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    """The slot of the promoted server sends only the end of a transaction that bronze has already."""
    server = make_server({"hot_standby": "on"})
    protocol = Protocol(two_phase=True, written=frozenset({"two_phase"}))
    database = database_of(server, "shop")
    old = make_pipeline(
        database=database, create_publication="all", create_failover=True, protocol=protocol, copy="initial"
    )
    old.catch_up(
        "SELECT pg_create_physical_replication_slot('standby')",
        TABLE.format("a"),
        FILL_QUIET.format("a", 1, 9),
    )
    with syncing_standby_of(server) as standby:
        old.catch_up("UPDATE a SET v = 'w' WHERE id = 3")
        wait_for_slot(standby, old.config.source.slot, old.source)
        old.prepare("kept", "INSERT INTO a VALUES (100, 'prepared')", "DELETE FROM a WHERE id = 1")
        old.ingest()
        replayed = Database(standby, "shop", standby.conninfo_of("shop"))
        end = database.flush_lsn()
        wait_until(lambda: replayed.run(f"SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{end}'"))
        standby.stop()
        old.prepare("lost", "INSERT INTO a VALUES (200, 'lost')")
        old.run("DELETE FROM a WHERE id = 2")
        offset = old.ingest().captured_offset
        assert offset is not None
        old.apply()
        old.source.close()
        server.stop(mode="immediate")
        standby.start()
        promote(standby)
        with moved(old, replayed) as life:
            advance_wal(replayed, offset)
            life.prepare("new", "INSERT INTO a VALUES (300, 'new')")
            with pytest.raises(GapError, match=r"transactions: 1\), and the slot"):
                run_move_source(life.config)
            life.run("ROLLBACK PREPARED 'new'")
            found = run_move_source(life.config)
            assert found.steps == [MoveStep.SWITCH, MoveStep.COMPARE]
            life.assert_equal("a")
            life.catch_up("COMMIT PREPARED 'kept'")
            life.assert_equal("a")
            assert not life.frame("bronze", "prepared").count()
