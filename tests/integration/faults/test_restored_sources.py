"""A source restored from a copy of its files, on the same timeline, is found whenever that was."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.bronze.log import Bronze
from pipeline.config.config import Protocol
from pipeline.crash_steps import CrashStep
from pipeline.delta.table import Lake
from pipeline.errors import GapError, RestoredSourceError
from pipeline.operate.move_source import MoveStep, run_move_source
from pipeline.protocol.lsn import LSN
from pipeline.report.status import read_status
from tests.support.fault_points import crash_at
from tests.support.lives import FILL, TABLE
from tests.support.moves import advance_wal, database_of
from tests.support.pipelines import Crash, MakePipeline, Pipeline
from tests.support.servers import MakeServer

FORKED = (
    r"^The server was restored to an earlier state and has gone on from there: (bronze|the server) has"
    r" transaction \d+, committed at \S+, and .* does not\. Run pgdelta move-source, or set source\.lost_slot"
)


@contextmanager
def stopped(life: Pipeline, *, crashes: bool = False) -> Iterator[Path]:
    """Give the data folder of the pipeline's server while it is stopped."""
    server = life.database.server
    life.source.close()
    server.stop(mode="immediate" if crashes else "fast")
    yield server.data
    server.start()
    life.source = life.database.connect()


def copy_files(source: Path, target: Path) -> None:
    """Replace a folder by a copy of another one, with its owner."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def restored(life: Pipeline, folder: Path) -> None:
    """Let the pipeline capture 22 rows and more of a server, and then put back the state before them."""
    with stopped(life) as data:
        copy_files(data, folder)
    life.run(FILL.format("a", 6, 27), "UPDATE a SET v = 'lost' WHERE id = 1", "DELETE FROM a WHERE id = 2")
    life.catch_up()
    with stopped(life) as data:
        copy_files(folder, data)


def captured_offset(life: Pipeline) -> LSN:
    """Return the offset of bronze."""
    return Bronze(Lake(life.config.storage), life.config.pipeline).require_offset().lsn


@contextmanager
def started(
    make_server: MakeServer, make_pipeline: MakePipeline, major: int, **source: Any
) -> Iterator[Pipeline]:
    """Give a pipeline with a server of its own and a table of five rows in silver."""
    settings = {"max_prepared_transactions": "5"}
    if major >= 13:
        settings["logical_decoding_work_mem"] = "64kB"
    database = database_of(make_server(settings, major=major), "shop")
    life = make_pipeline(copy="initial", create_publication="all", database=database, **source)
    life.catch_up(TABLE.format("a"), FILL.format("a", 1, 5))
    life.catch_up("UPDATE a SET v = 'captured' WHERE id = 3")
    yield life
    life.source.close()


@pytest.mark.sample(1)
@pytest.mark.promise("gaps are never silent")
@pytest.mark.parametrize(
    ("major", "route", "way"),
    [
        (10, "sql", "lost_slot"),
        (18, "walsender", "lost_slot"),
        pytest.param(13, "walsender", "move-source", marks=[pytest.mark.spark, pytest.mark.slow]),
    ],
)
def test_a_restored_source_is_found_and_compared(
    make_server: MakeServer,
    make_pipeline: MakePipeline,
    tmp_path: Path,
    major: int,
    route: str,
    way: str,
) -> None:
    with started(make_server, make_pipeline, major, route=route) as life:
        restored(life, tmp_path / "copy")
        with pytest.raises(GapError, match=r"before the offset .* restored to an earlier state\. .*move-"):
            life.ingest()
        status = read_status(life.config)
        assert [(each.state, each.lag_bytes) for each in status.tables] == [("behind", None)]
        assert "the server was restored to an earlier state" in (status.refusal or "")
        life.run("INSERT INTO a VALUES (100, 'new')")
        advance_wal(life.database, status.captured)
        assert read_status(life.config).refusal is None
        with pytest.raises(RestoredSourceError, match=FORKED):
            life.ingest()
        if way == "move-source":
            assert run_move_source(life.config).exit_code(strict=True) == 0
        else:
            source = replace(life.config.source, lost_slot="compare")
            replace(life, config=replace(life.config, source=source)).ingest()
            life.catch_up()
        life.assert_equal("a")
        life.catch_up("DELETE FROM a WHERE id = 5")
        life.assert_equal("a")


@pytest.mark.promise("gaps are never silent")
def test_a_slot_that_was_created_on_a_restored_source_is_found(
    make_server: MakeServer, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    with started(make_server, make_pipeline, 18) as life:
        restored(life, tmp_path / "copy")
        slot = life.config.source.slot
        life.run(
            "INSERT INTO a VALUES (100, 'new')",
            f"SELECT pg_drop_replication_slot('{slot}')",
            f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        )
        advance_wal(life.database, captured_offset(life))  # without another change of the table
        with pytest.raises(RestoredSourceError, match=r"no ingest of this lake has left it.*move-source"):
            life.ingest()
        steps = [MoveStep.SWITCH, MoveStep.COMPARE]
        for compares in (False, True):
            assert run_move_source(life.config, compares=compares).steps == steps
            life.assert_equal("a")
        assert not run_move_source(life.config).steps
        again = life.ingest("DELETE FROM a WHERE id = 5")
        assert not again.copies
        assert not again.compared
        assert not life.ingest().compared
        life.assert_follows("a")


@pytest.mark.sample(1)
@pytest.mark.promise("a slot behind bronze")
@pytest.mark.parametrize(("major", "route"), [(14, "sql"), (18, "walsender")])
def test_a_slot_that_repeats_what_bronze_has_is_no_restored_source(
    make_server: MakeServer,
    make_pipeline: MakePipeline,
    tmp_path: Path,
    major: int,
    route: str,
) -> None:
    two_phase = Protocol(two_phase=major >= 15)
    with started(make_server, make_pipeline, major, route=route, protocol=two_phase) as life:

        def change(number: int) -> None:
            life.prepare(f"p{number}", f"INSERT INTO a VALUES ({number}, 'prepared')")
            life.transact(
                f"UPDATE a SET v = '{number}'",
                "SAVEPOINT s",
                FILL.format("a", number + 100, number + 5000),
                "ROLLBACK TO s",
                FILL.format("a", number + 9000, number + 13000),
            )
            with life.database.connect() as other:
                for statement in ("BEGIN", "SAVEPOINT s", FILL.format("a", 50_000, 54_000), "ROLLBACK TO s"):
                    other.execute(statement.encode())
                other.execute("CREATE TABLE empty (x int)")
                other.execute("DROP TABLE empty")
                other.execute("COMMIT")
            life.run(f"COMMIT PREPARED 'p{number}'", "TRUNCATE a", FILL.format("a", 1, number))

        change(10)
        with crash_at(CrashStep.ACKNOWLEDGE), pytest.raises(Crash):
            life.ingest()
        assert life.confirmed_lsn() < captured_offset(life)
        life.catch_up()
        change(20)
        life.run("CHECKPOINT")
        slot = life.database.server.data / "pg_replslot" / life.config.source.slot
        copy_files(slot, tmp_path / "slot")
        life.ingest()
        with stopped(life, crashes=True):  # the server has not written the acknowledgement
            copy_files(tmp_path / "slot", slot)
        assert life.confirmed_lsn() < captured_offset(life)
        life.assert_follows("a")
