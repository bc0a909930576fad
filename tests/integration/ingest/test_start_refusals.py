"""Whatever a start is refused for, `pgdelta check` finds before, and the runbook lists by its line."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.apply.job import run_apply
from pipeline.bronze.copies import gap_row
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config, Create, Protocol
from pipeline.config.tables import TableRule
from pipeline.delta.locks import lock_apply
from pipeline.delta.table import Lake
from pipeline.errors import PgdeltaError
from pipeline.ingest import job, repeated_transactions, start_conditions
from pipeline.ingest.repeated_transactions import Transaction
from pipeline.operate.machine_checks import run_all_checks
from pipeline.postgres.connection import connect, identify
from pipeline.postgres.embedded import EmbeddedServer
from pipeline.postgres.replication import slot_status
from pipeline.postgres.replication.slot_lock import lock_slot
from pipeline.protocol.lsn import LSN
from pipeline.report.status import read_status
from tests.support.paths import ROOT
from tests.support.servers import Database, new_database, serve

pytestmark = pytest.mark.postgres


@dataclass(frozen=True, slots=True)
class Shop:
    """A database with a table, and the configuration of a lake that does not exist yet."""

    database: Database
    config: Config
    patch: pytest.MonkeyPatch

    def source(self, **changes: Any) -> Config:
        return replace(self.config, source=replace(self.config.source, **changes))

    def started(self, **changes: Any) -> Config:
        """Start a lake, and return its configuration."""
        config = self.source(**changes)
        job.run_ingest(config)
        self.database.free_slot()
        return config

    def slot(self, more: str = "") -> None:
        self.database.run(
            f"SELECT pg_create_logical_replication_slot('{self.database.name}', 'pgoutput'{more})"
        )

    def drop_slot(self) -> None:
        self.database.free_slot()
        self.database.run(f"SELECT pg_drop_replication_slot('{self.database.name}')")

    def publish(self) -> None:
        self.database.run(f"CREATE PUBLICATION {self.database.name} FOR TABLE item")

    def server_is(self, **changes: Any) -> None:
        """Let the server be another one than it is."""
        for module in (job, start_conditions, slot_status):
            self.patch.setattr(module, "identify", lambda each: replace(identify(each), **changes))

    @contextmanager
    def role(self, attributes: str) -> Iterator[Config]:
        name = f"reader_{self.database.name}"
        self.database.run(f"CREATE ROLE {name} LOGIN {attributes}", f"GRANT SELECT ON item TO {name}")
        try:
            yield self.source(conninfo=self.database.server.conninfo_of(self.database.name, name))
        finally:
            self.database.run(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a start is refused for, the line of `check`, and what both contain if the texts are not equal.

    What a running job causes is no fault: its line passes.
    """

    line: str
    cause: Callable[[Shop], Iterator[Config]]
    remedy: str = ""
    start: Callable[[Config], object] = job.run_ingest
    passes: bool = False


def no_server(shop: Shop) -> Iterator[Config]:
    yield shop.source(conninfo="host=127.0.0.1 port=1 dbname=shop")


def no_publication(shop: Shop) -> Iterator[Config]:
    yield shop.source(create=Create(publication="never"))


def publication_after_slot(shop: Shop) -> Iterator[Config]:
    shop.slot()
    yield shop.config


def no_table(shop: Shop) -> Iterator[Config]:
    yield replace(shop.config, tables=(TableRule("public.items"),))


def no_right_to_publish(shop: Shop) -> Iterator[Config]:
    with shop.role("REPLICATION") as config:
        yield config


def no_right_to_replicate(shop: Shop) -> Iterator[Config]:
    shop.publish()
    with shop.role("") as config:
        yield config


def no_slot_and_none_to_create(shop: Shop) -> Iterator[Config]:
    shop.publish()
    yield shop.source(create=Create(slot=False))


def slot_elsewhere(shop: Shop) -> Iterator[Config]:
    shop.publish()
    yield from only_slot_elsewhere(shop)


def only_slot_elsewhere(shop: Shop) -> Iterator[Config]:
    with psycopg.connect(shop.database.server.conninfo, autocommit=True) as other:
        other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (shop.database.name,))
    yield shop.config
    shop.drop_slot()


def physical_slot(shop: Shop) -> Iterator[Config]:
    shop.publish()
    shop.database.run(f"SELECT pg_create_physical_replication_slot('{shop.database.name}')")
    yield shop.config
    shop.drop_slot()


def lost_slot(shop: Shop) -> Iterator[Config]:
    shop.publish()
    shop.slot()
    with shop.database.connect() as source:
        source.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        source.execute("SELECT pg_reload_conf()")
        for _ in range(3):
            source.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
        source.execute("CHECKPOINT")
    yield shop.config
    shop.database.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def prepared_before_the_lake(shop: Shop) -> Iterator[Config]:
    shop.publish()
    shop.slot(", false, true")
    shop.database.run("BEGIN; INSERT INTO item VALUES (2); PREPARE TRANSACTION 'before'")
    yield shop.source(protocol=Protocol(two_phase=True))
    shop.database.run("ROLLBACK PREPARED 'before'")


def lake_of_another(shop: Shop) -> Iterator[Config]:
    yield replace(shop.started(), pipeline="other")


def slot_of_another(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    yield replace(config, storage=replace(config.storage, root=f"{config.storage.root}_2"))


def slot_dropped(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    shop.drop_slot()
    yield config


def slot_ahead(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    shop.drop_slot()
    shop.slot()
    yield config


def other_database(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    shop.server_is(database="elsewhere", database_oid=1)
    yield config


def other_server(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    shop.server_is(system_identifier="1")
    yield config


def other_history(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    shop.server_is(timeline=2)
    shop.patch.setattr("pipeline.postgres.same_source.read_timeline_ends", lambda *_: {})
    yield config


def earlier_state(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    shop.server_is(wal_flush_lsn=LSN(1))
    yield config


def restored(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    name = shop.database.name
    shop.database.run(f"SELECT pg_copy_logical_replication_slot('{name}', '{name}_then')")
    shop.database.run("INSERT INTO item VALUES (2)")
    job.run_ingest(config)
    shop.drop_slot()
    shop.database.run(f"SELECT pg_copy_logical_replication_slot('{name}_then', '{name}')")
    assert [check for check in run_all_checks(config) if not check.ok] == []
    found = repeated_transactions._read_transactions

    def with_more(bronze: Bronze, start: LSN, end: LSN) -> set[Transaction]:
        return {*found(bronze, start, end), Transaction(int(start) + 1, 7, 0)}

    shop.patch.setattr(repeated_transactions, "_read_transactions", with_more)
    yield config


def begun_move(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    bronze = Bronze(Lake(config.storage), config.pipeline)
    offset = bronze.require_offset().lsn
    bronze.copies.record([gap_row(offset, LSN(int(offset) + 8), "moved")])
    yield config


def prepared_gone(shop: Shop) -> Iterator[Config]:
    config = shop.started(protocol=Protocol(two_phase=True))
    shop.database.run("BEGIN; INSERT INTO item VALUES (2); PREPARE TRANSACTION 'kept'")
    job.run_ingest(config)
    shutil.rmtree(Path(config.storage.root, "bronze", "prepared"))
    yield config
    shop.database.run("ROLLBACK PREPARED 'kept'")


def prepared_in_a_gap(shop: Shop) -> Iterator[Config]:
    config = shop.started(protocol=Protocol(two_phase=True), lost_slot="resync")
    shop.drop_slot()
    shop.slot(", false, true")
    shop.database.run("BEGIN; INSERT INTO item VALUES (2); PREPARE TRANSACTION 'missed'")
    yield config
    shop.database.run("ROLLBACK PREPARED 'missed'")


def running_ingest(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    shop.patch.setattr(job, "lock_slot", partial(lock_slot, busy_timeout=0))
    with connect(config.source.conninfo) as other:
        lock_slot(other, config.source.slot)
        yield config


def running_apply(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    with lock_apply(Lake(config.storage), config.pipeline):
        yield config


def no_lock_of_apply(shop: Shop) -> Iterator[Config]:
    config = shop.started()
    Path(config.storage.root, "_pgdelta", "locks", "apply").mkdir(parents=True)
    yield config


REFUSALS = {
    "The source cannot be reached, or refuses the role": Refusal("connection", no_server, "Cannot connect"),
    "The publication does not exist, and may not be created": Refusal("publication", no_publication),
    "The publication does not exist, but the slot does": Refusal("publication", publication_after_slot),
    "The publication does not exist, and the slot is of another database": Refusal(
        "publication", only_slot_elsewhere
    ),
    "No table matches the configuration": Refusal("publication", no_table),
    "The role may not create the publication": Refusal(
        "publication", no_right_to_publish, "CREATE PUBLICATION"
    ),
    "The role may not replicate": Refusal("replication right", no_right_to_replicate, "REPLICATION"),
    "The slot does not exist, and may not be created": Refusal("slot", no_slot_and_none_to_create),
    "The slot is of another database or plugin": Refusal("slot", slot_elsewhere),
    "The slot is a physical one": Refusal("slot", physical_slot),
    "The slot is lost before the lake has anything": Refusal("slot", lost_slot),
    "A two-phase slot is older than the lake, and transactions are prepared": Refusal(
        "prepared transactions", prepared_before_the_lake
    ),
    "The lake belongs to another pipeline": Refusal("offset of bronze", lake_of_another),
    "Another lake reads the slot": Refusal("reader of the slot", slot_of_another),
    "The slot does not exist any more, or is lost": Refusal("slot and bronze", slot_dropped),
    "The slot is ahead of bronze": Refusal("slot and bronze", slot_ahead),
    "The database is another one": Refusal("same source", other_database),
    "The server is another one": Refusal("same source", other_server),
    "The server's history lacks what bronze has": Refusal("same source", other_history),
    "The server's WAL ends before bronze": Refusal("same source", earlier_state),
    "The server was restored and has gone on from there": Refusal("same transactions", restored),
    "A move to another server has begun": Refusal("move", begun_move),
    "Bronze lacks prepared transactions that it counts": Refusal("prepared transactions", prepared_gone),
    "A gap is to be closed, and bronze lacks prepared transactions": Refusal(
        "slot and bronze", prepared_in_a_gap
    ),
    "Another session reads the slot, and does not end within a minute": Refusal(
        "reader of the slot", running_ingest, "another ingest holds its lock: PID", passes=True
    ),
    "Another apply writes silver": Refusal(
        "apply", running_apply, f"(process {os.getpid()} on ", run_apply, passes=True
    ),
    "The lock of apply cannot be used": Refusal("apply", no_lock_of_apply, start=run_apply),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Give a server on which transactions can be prepared."""
    yield from serve(tmp_path_factory.mktemp("refusals"), settings={"max_prepared_transactions": "5"})


@pytest.fixture
def shop(shared: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Give a fresh database of that server with a table."""
    for database in new_database(shared):
        database.run("CREATE TABLE item (id int PRIMARY KEY)")
        yield Shop(database, database.config(root=str(tmp_path / "lake")), monkeypatch)


ALIKE = {lake_of_another, slot_of_another, other_database, other_history, earlier_state, prepared_in_a_gap}
"""Their way through the code is that of another one."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if refusal.cause in ALIKE else [])
        for name, refusal in REFUSALS.items()
    ],
)
def test_check_fails_with_what_the_run_is_refused_for(name: str, shop: Shop) -> None:
    refusal = REFUSALS[name]
    for config in refusal.cause(shop):
        failed = {
            check.name: f"{check.sentence} {check.fix}"
            for check in run_all_checks(config)
            if check.ok is refusal.passes
        }
        assert refusal.line in failed
        with pytest.raises(PgdeltaError) as refused:
            refusal.start(config)
        if refusal.line == "same source" or refusal.cause is slot_ahead:
            assert read_status(config).refusal == str(refused.value)
        if refusal.passes:
            assert "is refused" in failed[refusal.line]
        if refusal.remedy:
            assert refusal.remedy in failed[refusal.line]
            assert refusal.remedy in str(refused.value)
        else:
            assert failed[refusal.line].strip() == str(refused.value)


def test_the_runbook_lists_each_refusal_with_its_line() -> None:
    text = Path(ROOT, "docs", "operations", "runbook.md").read_text().partition("## A start is refused")[2]
    rows = re.findall(r"^\| ([^|]+) \| `([^`|]+)` \|$", text.partition("\n## ")[0], re.MULTILINE)
    assert rows == [(name, refusal.line) for name, refusal in REFUSALS.items()]
