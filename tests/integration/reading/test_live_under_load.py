"""Live reads while transactions commit, ingest captures and apply writes: each is the source at its LSN.

Every transaction has a number, which it writes to each table, and what it does follows from the number. So a
read that shows the number in one table must show the model of that number in all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.config import Config
from pipeline.delta.merge import merge_groups, plain_layout, plan_table
from pipeline.delta.merge_plan import MergeLimits
from pipeline.delta.table import Lake
from pipeline.ingest.job import run_ingest
from pipeline.operate.live import Live, LiveReader
from pipeline.table_name import TableName
from tests.support.servers import Database

pytestmark = pytest.mark.postgres

NAMES = [TableName("public", name) for name in ("orders", "lines", "counters")]
TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, n int, body text)",
    "CREATE TABLE lines (id int, n int)",
    "ALTER TABLE lines REPLICA IDENTITY FULL",
    "CREATE TABLE counters (id int PRIMARY KEY, n int)",
    "ALTER TABLE orders ALTER body SET STORAGE EXTERNAL",
    "INSERT INTO counters VALUES (1, 0)",
)
Rows = tuple[tuple[Any, ...], ...]


@dataclass(slots=True)
class Model:
    """What the tables have after each transaction, as sorted rows."""

    orders: dict[int, tuple[int, str]] = field(default_factory=dict)
    lines: list[tuple[int, int]] = field(default_factory=list)
    states: list[tuple[Rows, Rows]] = field(default_factory=lambda: [((), ())])

    def statements(self, n: int) -> Iterator[str]:
        """Yield what transaction n runs, and do the same here."""
        rng = Random(n)
        yield f"UPDATE counters SET n = {n}"
        for _ in range(rng.randint(1, 5)):
            yield self._statement(rng, n)
        if n % 40 == 0:
            self.orders.clear()
            yield "TRUNCATE orders"
        self.lines.append((n, n))
        yield f"INSERT INTO lines VALUES ({n}, {n})"
        rows = tuple(sorted((key, *row) for key, row in self.orders.items()))
        self.states.append((rows, tuple(sorted(self.lines))))

    def _statement(self, rng: Random, n: int) -> str:
        key, other, kind = rng.randint(1, 60), rng.randint(1, 60), rng.random()
        if key not in self.orders:
            body = chr(97 + n % 26) * 3000
            self.orders[key] = (n, body)
            return f"INSERT INTO orders VALUES ({key}, {n}, '{body}')"
        if kind < 0.4:  # the body stays in TOAST, and is not sent
            self.orders[key] = (n, self.orders[key][1])
            return f"UPDATE orders SET n = {n} WHERE id = {key}"
        if kind < 0.6 and other not in self.orders:
            self.orders[other] = (n, self.orders.pop(key)[1])
            return f"UPDATE orders SET id = {other}, n = {n} WHERE id = {key}"
        if kind < 0.8:
            del self.orders[key]
            return f"DELETE FROM orders WHERE id = {key}"
        self.lines = [(i, n if i % 10 == key % 10 else each) for i, each in self.lines]
        return f"UPDATE lines SET n = {n} WHERE id % 10 = {key % 10}"


@contextmanager
def running(*jobs: Any) -> Iterator[None]:
    """Run functions of an event in threads until the end of the block; raise what goes wrong."""
    stop, errors = threading.Event(), []

    def run(job: Any) -> None:
        try:
            job(stop)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    if errors:
        raise errors[0]


def test_reads_under_load_are_the_source_at_their_lsn(database: Database, tmp_path: Path) -> None:
    prove(database, tmp_path, reads=25)


@pytest.mark.slow
def test_a_thousand_reads_under_load_are_the_source_at_their_lsn(database: Database, tmp_path: Path) -> None:
    prove(database, tmp_path, reads=1000)


def prove(database: Database, folder: Path, *, reads: int) -> None:
    config = database.config("public.*", root=str(folder / "lake"), create_publication="all")
    config = replace(config, silver=replace(config.silver, writer="auto"))
    run_ingest(config)
    database.run(*TABLES)
    model = Model()

    def commit(n: int) -> None:
        with database.connect() as source, source.transaction():
            for statement in model.statements(n):
                source.execute(statement.encode())

    commit(1)
    run_ingest(config)
    applier = Applier(None, config)
    assert applier.apply_pending().exit_code(strict=True) == 0

    def write(stop: threading.Event) -> None:
        n = 2
        while not stop.is_set():
            commit(n)
            n += 1

    def ingest(stop: threading.Event) -> None:
        run_ingest(config, trigger="continuous", stop=stop)

    def apply(stop: threading.Event) -> None:
        rng = Random(1)
        while not stop.wait(rng.random()):
            assert applier.apply_pending().exit_code(strict=True) == 0
            compact(config)

    seen: set[int] = set()
    with running(write, ingest, apply):
        reader = LiveReader(config)
        deadline = time.monotonic() + 60
        number = 0
        while number < reads or (len(seen) < 4 and time.monotonic() < deadline):
            live = reader.read() if number % 5 else LiveReader(config).read()
            number += 1
            seen.add(check(live, model))
    assert len(seen) >= 4, "bronze and silver went on meanwhile"


def check(live: Live, model: Model) -> int:
    """Compare a read with the model of the transaction that it shows; return the number of that one."""
    assert not live.refused
    orders, lines, counters = (live[name].to_table().to_pylist() for name in NAMES)
    [counter] = counters
    n = int(counter["n"])
    wanted_orders, wanted_lines = model.states[n]
    assert tuple(sorted((row["id"], row["n"], row["body"]) for row in orders)) == wanted_orders, n
    assert tuple(sorted((row["id"], row["n"]) for row in lines)) == wanted_lines, n
    return n


def compact(config: Config) -> None:
    """Merge the files of a silver table and of bronze, as maintenance does."""
    lake = Lake(config.storage.root)
    for table in (lake.table("silver", *NAMES[0]), lake.table("bronze", "changes")):
        snapshot = table.snapshot()
        plan = plan_table(snapshot, MergeLimits(3, 1 << 20, 1 << 20))
        merge_groups(table, snapshot, plan, plain_layout(snapshot))
