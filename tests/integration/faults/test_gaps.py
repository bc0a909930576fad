"""A gap of the stream stops the run, or is closed by copies."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import pytest

from pipeline.config.config import Protocol
from pipeline.config.tables import Guards, TableRule
from pipeline.errors import GapError
from pipeline.operate.move_source import wal_file_after
from pipeline.operate.rebuild import run_rebuild
from pipeline.postgres.embedded import run_as
from pipeline.postgres.replication.slot import slot_error
from pipeline.table_name import TableName
from tests.support.lives import FILL, TABLE, forbid_copies
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.postgres.streams import both_routes
from tests.support.running import continuous
from tests.support.servers import LITTLE_WAL, Database, MakeServer
from tests.support.threads import wait_until


def crossing(pipeline: Pipeline, lost_slot: Literal["compare", "resync"] = "resync") -> Pipeline:
    """Return the same pipeline, which closes gaps by copies."""
    source = replace(pipeline.config.source, lost_slot=lost_slot)
    return replace(pipeline, config=replace(pipeline.config, source=source))


def move_slot(pipeline: Pipeline) -> None:
    """Let the slot forget what bronze has not got."""
    pipeline.database.free_slot()
    slot = pipeline.config.source.slot
    pipeline.run(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())")


@pytest.mark.promise("gaps are never silent")
@pytest.mark.parametrize("loss", ["dropped", pytest.param("moved", marks=pytest.mark.slow)])
def test_a_gap_stops_the_run_or_is_closed_by_copies(life: Pipeline, loss: str) -> None:
    life.ingest("INSERT INTO a VALUES (100, 'in bronze')")
    if loss == "dropped":
        life.drop_slot()
        life.run("DELETE FROM a WHERE id < 5")
    else:
        life.run("DELETE FROM a WHERE id < 5")
        move_slot(life)
    life.run("INSERT INTO a VALUES (101, 'behind the gap')")
    with pytest.raises(GapError, match=r"source\.lost_slot"):
        life.ingest()
    healed = crossing(life)
    healed.ingest()
    healed.catch_up()
    life.assert_equal("a")
    gaps = life.frame("bronze", "copies").where("state = 'gap'").collect()
    assert len(gaps) == 1
    assert gaps[0].from_lsn <= gaps[0].lsn
    healed.catch_up("DELETE FROM a WHERE id = 101")
    life.assert_equal("a")


@contextmanager
def without_old_wal(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Remove the server's WAL, which its catalog does not show, and give the pipeline with a new session."""
    server = pipeline.database.server
    wal_file = wal_file_after(pipeline.database.flush_lsn(), 16 << 20, 1)
    pipeline.source.close()
    server.stop()
    run_as(server.account, [str(server.binaries / "pg_resetwal"), "-l", wal_file, "-D", str(server.data)])
    server.start()
    with pipeline.database.connect() as connection:
        yield replace(pipeline, source=connection)


@pytest.mark.promise("gaps are never silent")
@pytest.mark.parametrize(("route", "lost_slot"), [("walsender", "compare"), ("sql", "resync")])
def test_a_gap_that_only_the_stream_shows_is_closed(
    make_server: MakeServer,
    make_pipeline: MakePipeline,
    route: str,
    lost_slot: Literal["compare", "resync"],
) -> None:
    first = make_pipeline(
        database=Database.of(make_server()), route=route, copy="initial", create_publication="all"
    )
    first.catch_up(TABLE.format("a"), FILL.format("a", 1, 50))
    first.run("DELETE FROM a WHERE id < 5")
    with without_old_wal(first) as life:
        life.run("INSERT INTO a VALUES (101, 'behind the gap')")
        assert life.database.run("SELECT wal_status FROM pg_replication_slots") != [("lost",)]
        with pytest.raises(
            GapError, match=r"^The slot \w+ is lost .*already been removed.*source\.lost_slot"
        ):
            life.ingest()
        healed = crossing(life, lost_slot)
        healed.ingest()
        healed.apply()
        healed.catch_up()
        life.assert_equal("a")
        [gap] = life.frame("bronze", "copies").where("state = 'gap'").collect()
        assert "is lost" in gap.sentence
        healed.catch_up("DELETE FROM a WHERE id = 101")
        life.assert_equal("a")


@pytest.mark.promise("gaps are never silent")
def test_a_gap_that_begins_while_the_slot_is_read_is_closed(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    database = Database.of(make_server(LITTLE_WAL))
    life = crossing(make_pipeline(database=database, route="sql", copy="initial", create_publication="all"))
    life.catch_up(TABLE.format("a"), FILL.format("a", 1, 50))
    with continuous(life) as running:
        life.run("INSERT INTO a VALUES (100, 'captured')")
        wait_until(lambda: running.captured == 1)
        with database.connect() as other, other.transaction():
            other.execute("INSERT INTO a VALUES (101, 'open')")  # the slot keeps the WAL from here on
            for number in range(4):
                life.run(f"UPDATE a SET v = 'w' WHERE id = {number}", "SELECT pg_switch_wal()", "CHECKPOINT")
        wait_until(lambda: life.frame("bronze", "copies").where("state = 'gap'").count())
        life.run("INSERT INTO a VALUES (102, 'behind the gap')")
        wait_until(lambda: running.copied)
    assert running.error is None
    life.catch_up()
    life.assert_equal("a")


@pytest.mark.promise("gaps are never silent")
@both_routes
@pytest.mark.parametrize("trigger", ["available-now", "continuous"])
def test_a_slot_that_is_lost_at_once_ends_the_run(
    life: Pipeline, monkeypatch: pytest.MonkeyPatch, route: Literal["walsender", "sql"], trigger: str
) -> None:
    starts: list[str] = []

    def start(conninfo: str, slot: str, *_: object, **__: object) -> None:
        starts.append(slot)
        raise slot_error(slot, "requested WAL segment 000000010000000000000001 has already been removed")

    healed = crossing(life)
    healed = replace(healed, config=replace(healed.config, source=replace(healed.config.source, route=route)))
    with monkeypatch.context() as patch:
        patch.setattr(f"pipeline.ingest.job.start_{'sql_stream' if route == 'sql' else route}", start)
        with pytest.raises(GapError, match=r"The slot \w+ is lost"):
            healed.ingest(trigger=trigger)
    assert len(starts) == 2
    healed.catch_up("DELETE FROM a WHERE id < 5")
    life.assert_equal("a")


@pytest.mark.spark
@pytest.mark.promise("gaps are never silent")
@pytest.mark.slow
def test_silver_does_not_go_back_to_a_gap_that_it_crossed(make_pipeline: MakePipeline) -> None:
    life = make_pipeline(copy="initial", create_publication="all")
    held = TableRule("public.held", guards=Guards(deletes=0))
    life = crossing(replace(life, config=replace(life.config, tables=(held, TableRule("*.*")))))
    life.catch_up(
        *(TABLE.format(name) for name in ("a", "held")),
        *(FILL.format(name, 1, 50) for name in ("a", "held")),
        "CREATE TABLE bag (n int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT i % 3 FROM generate_series(1, 9) i",
    )
    life.drop_slot()
    life.catch_up("DELETE FROM a WHERE id < 5")
    for number in range(2):
        life.run("DELETE FROM held WHERE id = (SELECT min(id) FROM held)")
        life.ingest("INSERT INTO bag VALUES (1), (7)", f"INSERT INTO a VALUES ({100 + number}, 'later')")
        assert life.apply().tables[TableName("public", "held")].held
        life.assert_equal("a", "bag")
    assert not any(kind == "diverged" for kind, _ in life.events("bag"))
    lsns = [row.lsn for row in life.frame("_pgdelta", "manifests").orderBy("written_at").collect()]
    assert lsns == sorted(lsns)


@pytest.mark.spark
@pytest.mark.slow
def test_silver_stops_at_a_gap_until_the_table_is_copied(
    life: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.ingest("INSERT INTO a VALUES (100, 'before the gap')")
    life.drop_slot()
    life.run("DELETE FROM a WHERE id < 5")
    healed = crossing(life)
    with monkeypatch.context() as patch:
        forbid_copies(patch)
        assert healed.ingest().exit_code(strict=False) == 1
    life.run("INSERT INTO a VALUES (101, 'behind the gap')")
    with monkeypatch.context() as patch:
        forbid_copies(patch)
        healed.ingest()
    healed.apply()
    rows = {row.id for row in life.frame("silver", "public", "a").collect()}
    assert rows == {*range(1, 51), 100}
    assert any("gap" in sentence for kind, sentence in life.events("a") if kind == "resync")
    rewritten = run_rebuild(healed.config, ["public.a"])
    assert "gap" in (rewritten.tables[TableName("public", "a")].held or "")
    assert {row.id for row in life.frame("silver", "public", "a").collect()} == rows
    healed.catch_up()
    life.assert_equal("a")


@pytest.mark.spark
@pytest.mark.promise("gaps are never silent")
@pytest.mark.slow
def test_a_table_that_came_behind_a_gap_lacks_nothing(make_pipeline: MakePipeline) -> None:
    life = make_pipeline(copy="never", create_publication="all")
    life.catch_up(TABLE.format("a"), FILL.format("a", 1, 50))
    life.drop_slot()
    life.run("DELETE FROM a WHERE id < 5")
    healed = crossing(life)
    healed.catch_up()
    life.run(TABLE.format("b"), FILL.format("b", 1, 70), "INSERT INTO a VALUES (100, 'behind the gap')")
    healed.catch_up()
    life.assert_equal("a", "b")
    assert not any(kind == "resync" for kind, _ in life.events("b"))


@pytest.mark.spark
@pytest.mark.promise("gaps are never silent")
@pytest.mark.slow
def test_a_gap_refuses_prepared_transactions_in_it_but_not_earlier_ones(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    database = Database.of(make_server({"max_prepared_transactions": "5"}))
    two_phase = Protocol(two_phase=True, written=frozenset({"two_phase"}))
    life = make_pipeline(copy="initial", create_publication="all", database=database, protocol=two_phase)
    life.catch_up(TABLE.format("a"), FILL.format("a", 1, 50))
    life.prepare("in bronze", "INSERT INTO a VALUES (100, 'parked')")
    life.ingest()
    life.prepare("in the gap", "INSERT INTO a VALUES (101, 'never sent')")
    life.run("DELETE FROM a WHERE id < 5")
    move_slot(life)
    healed = crossing(life)
    with pytest.raises(GapError, match=r"^Bronze never got what is prepared at the source \(.*: 1\)"):
        healed.ingest()
    life.run("COMMIT PREPARED 'in the gap'")
    healed.ingest()
    life.run("COMMIT PREPARED 'in bronze'")
    healed.catch_up()
    life.assert_equal("a")
