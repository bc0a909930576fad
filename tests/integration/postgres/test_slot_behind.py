"""A slot that is behind bronze: what comes again is not landed again, and the slot follows.

So it is after a run that ended between its commit and the acknowledgement, and after a crash of the server,
which keeps an acknowledgement from its next checkpoint on. Bronze is a double without Spark here.
"""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pipeline.bronze.protection import ColumnProtection
from pipeline.config.config import Config, Protocol
from pipeline.postgres.connection import connect, identify
from pipeline.protocol.lsn import LSN
from tests.support.postgres.streams import both_routes, confirmed_lsn, end_lsns, prepare, read_all, start
from tests.support.servers import Database

if TYPE_CHECKING:
    from pipeline.bronze.staged_transactions import StagedTransactions
    from pipeline.bronze.writer import BronzeWriter
    from pipeline.progress import IngestSummary

pytestmark = pytest.mark.postgres

PATIENCE = 30  # seconds until a run that does not end is stopped


class Landed:
    """A writer of bronze as capture sees it: what was landed up to where, and how much was prepared."""

    def __init__(self, root: Path) -> None:
        self.bronze = SimpleNamespace(
            lake=SimpleNamespace(working_root=str(root)),
            relation_version_ids=lambda end_lsn: set(),
            relations=SimpleNamespace(force_log=lambda: None),
        )
        self.prepared_count = 0
        self.ends: list[LSN] = []

    def land(self, staged: StagedTransactions, staging: object) -> None:
        """Keep how far it is."""
        self.prepared_count += len(staged.prepared)
        self.ends.append(staged.end_lsn)


def run(config: Config, root: Path, position: LSN, **options: Any) -> tuple[Landed, IngestSummary]:
    """Capture all that is committed into a bronze that is complete up to `position`."""
    from pipeline.ingest.capture import Capture
    from pipeline.progress import IngestSummary
    from pipeline.table_copy.capture_state import CaptureState

    landed = Landed(root)
    copier = SimpleNamespace(is_done=True, start=lambda: None, close=lambda: None)
    stop = threading.Event()
    timer = threading.Timer(PATIENCE, stop.set)
    with (
        connect(config.source.conninfo) as connection,
        closing(start(config, config.source.route, start_lsn=position, **options)) as stream,
    ):
        identity = identify(connection)
        summary = IngestSummary(config.pipeline, config.source.slot, position)
        capture = Capture(
            config,
            cast("BronzeWriter", landed),
            connection,
            stream,
            summary,
            cast("Any", copier),
            CaptureState(),
            ColumnProtection(config),
            None,
            lambda lsn: stream,
        )
        timer.start()
        capture.run(identity.wal_flush_lsn, stop)
        timer.cancel()
    assert not stop.is_set(), "the run did not end"
    return landed, summary


@pytest.fixture(params=["18", pytest.param("10", marks=pytest.mark.slow)])
def any_database(request: pytest.FixtureRequest) -> Database:
    name = "database" if request.param == "18" else "old_database"
    return cast("Database", request.getfixturevalue(name))


def insert(database: Database, count: int) -> None:
    database.run(*(f"INSERT INTO item (v) VALUES ({n})" for n in range(count)))


def make(database: Database, **source: Any) -> Config:
    database.run("CREATE TABLE item (id serial PRIMARY KEY, v int)")
    config = database.config(**source)
    prepare(config)
    return config


@pytest.mark.promise("a slot behind bronze")
@pytest.mark.parametrize("limit", [10, 200_000], ids=["small passes", "one pass"])
def test_the_slot_reaches_a_bronze_that_has_everything(
    any_database: Database, tmp_path: Path, limit: int
) -> None:
    config = make(any_database, route="sql")
    insert(any_database, 10)
    position = any_database.flush_lsn()
    end = end_lsns(read_all(any_database, config, "walsender"))[-1]
    landed, summary = run(config, tmp_path, position, poll_messages=limit)
    assert summary.changes == 0
    assert all(lsn > position for lsn in landed.ends)
    assert confirmed_lsn(any_database) >= end


@pytest.mark.promise("a slot behind bronze")
@both_routes
def test_only_what_is_behind_bronze_is_landed(database: Database, tmp_path: Path, route: str) -> None:
    config = make(database, route=route)
    insert(database, 10)
    position = end_lsns(read_all(database, config, "walsender"))[7]
    insert(database, 5)
    target = database.flush_lsn()
    options = {"poll_messages": 10} if route == "sql" else {}
    landed, summary = run(config, tmp_path, position, **options)
    assert (summary.transactions, summary.changes) == (7, 7)
    assert landed.ends == sorted(set(landed.ends))
    assert confirmed_lsn(database) >= target


@pytest.mark.promise("a slot behind bronze")
def test_a_repeated_prepared_transaction_is_acknowledged_as_far_as_it_came(
    database: Database, tmp_path: Path
) -> None:
    config = make(database, route="sql", protocol=Protocol(two_phase=True))
    database.run("BEGIN", "INSERT INTO item (v) VALUES (1)", "PREPARE TRANSACTION 'p'", "COMMIT PREPARED 'p'")
    insert(database, 10)
    position = database.flush_lsn()
    insert(database, 1)
    landed, summary = run(config, tmp_path, position, poll_messages=4)
    assert (landed.prepared_count, summary.changes) == (1, 1)
    assert confirmed_lsn(database) > position
