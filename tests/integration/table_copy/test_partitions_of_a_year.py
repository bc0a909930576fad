"""A year of monthly partitions under each policy: created ahead as tools do it, filled, detached, dropped."""

import threading
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from pipeline.apply.job import run_apply
from pipeline.config.tables import TableRule
from pipeline.ingest.job import run_ingest
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import Database
from tests.support.threads import in_threads, wait_until

POLICIES: tuple[Literal["delete", "keep", "resync"], ...] = ("delete", "keep", "resync")
AHEAD, RETAINED = 2, 3  # months
ROWS = 40  # of a month


def first_of(number: int) -> date:
    return date(2026 + number // 12, number % 12 + 1, 1)


class Year:
    """Three tables of one pipeline with the same life, each with another policy.

    `kept` has the rows of partitions that were dropped from the table with the policy `keep`.
    """

    def __init__(self, database: Database, folder: Path) -> None:
        database.run(
            f"CREATE PUBLICATION {database.name} FOR ALL TABLES WITH (publish_via_partition_root)",
            *(
                f"CREATE TABLE {name}_t (id bigint, at timestamptz, v text, PRIMARY KEY (id, at))"
                " PARTITION BY RANGE (at)"
                for name in POLICIES
            ),
        )
        self.source = database
        self.kept: set[tuple[Any, ...]] = set()
        self.number = self.loaded = 0
        for number in range(-1, AHEAD):
            self.create(number)
        self.fill(-1, ROWS)
        rules = (TableRule(f"public.{name}_t", dropped_partitions=name) for name in POLICIES)
        self.pipeline = NativePipeline.make(
            database, folder, *rules, copy="initial", create_publication="never"
        )
        self.pipeline.catch_up()

    def run(self, statement: str) -> None:
        """Run a statement about each table, whose name is {0}."""
        self.source.run(*(statement.format(f"{name}_t") for name in POLICIES))

    def create(self, number: int) -> None:
        """Create the partition of a month, by one transaction or two, and attach it."""
        first, end = first_of(number), first_of(number + 1)
        name = f"{{0}}_{first:%y%m}"
        statements = [
            f"CREATE TABLE {name} (LIKE {{0}} INCLUDING ALL)",
            f"ALTER TABLE {{0}} ATTACH PARTITION {name} FOR VALUES FROM ('{first}') TO ('{end}')",
        ]
        for each in ["; ".join(statements)] if number % 2 else statements:
            self.run(each)

    def fill(self, number: int, count: int) -> None:
        self.number += count
        self.run(
            f"INSERT INTO {{0}} SELECT i, '{first_of(number)}'::timestamptz + i % 28 * interval '1 day',"
            f" 'v' || i FROM generate_series({self.number - count + 1}, {self.number}) i"
        )

    def load(self, number: int, stop: threading.Event) -> None:
        """Insert and change rows of a month, one by one."""
        while not stop.wait(0.1):
            self.loaded += 1
            self.run(f"INSERT INTO {{0}} VALUES ({-self.loaded}, '{first_of(number)}', 'load')")
            self.run(f"UPDATE {{0}} SET v = v || '!' WHERE id = {1 - self.loaded}")

    def change(self) -> None:
        """Change rows of all months, and move one to another month."""
        self.run("UPDATE {0} SET v = v || '.' WHERE id % 7 = 3")
        self.run("DELETE FROM {0} WHERE id % 31 = 5")
        at = "date_trunc('month', (SELECT max(at) FROM {0})) + interval '27 days'"
        self.run(f"UPDATE {{0}} SET at = {at} WHERE id IN (SELECT max(id) - 3 FROM {{0}})")

    def retire(self, number: int) -> None:
        """Detach and drop a month, as retention does: some at once, some days later."""
        name = f"{{0}}_{first_of(number):%y%m}"
        self.kept |= set(self.source.run(f"SELECT id, v FROM {name.format('keep_t')}"))
        if number % 3:
            self.run(f"ALTER TABLE {{0}} DETACH PARTITION {name}")
            self.run(f"UPDATE {name} SET v = 'elsewhere'")
        if number % 3 != 1:
            self.run(f"DROP TABLE {name}")

    def differences(self) -> dict[str, int]:
        """Return how many rows of each table are not what its policy says."""
        found: dict[str, int] = {}
        for name in POLICIES:
            expected = set(self.source.run(f"SELECT id, v FROM {name}_t"))
            kept = self.kept if name == "keep" else set()
            found[name] = len(set(self.pipeline.rows(f"{name}_t", "id", "v")) ^ (expected | kept))
        return found

    def assert_settled(self) -> None:
        assert self.differences() == dict.fromkeys(map(str, POLICIES), 0)

    def copied(self) -> dict[str, list[tuple[int, bool]]]:
        """Return of each table's copies after the first the rows, and whether it is of all rows."""
        rows = list(self.pipeline.records("copies", "bronze"))
        partial = {row["copy_id"] for row in rows if row["key_ranges"]}
        done = sorted((r for r in rows if r["state"] == "complete"), key=lambda row: int(row["copy_id"]))
        return {
            name: [
                (r["row_count"], r["copy_id"] not in partial) for r in done if r["table_name"] == f"{name}_t"
            ][1:]
            for name in POLICIES
        }

    def kinds(self, name: str) -> list[str]:
        return [kind for kind, _ in self.pipeline.events(f"{name}_t")]


@pytest.fixture
def year(database: Database, tmp_path: Path) -> Year:
    return Year(database, tmp_path)


def live(year: Year, number: int) -> None:
    """Live a month: the next partitions are created and partly filled, rows change, an old one goes."""
    year.create(number + AHEAD)
    year.fill(number, ROWS)
    year.fill(number + AHEAD, 2)  # before a run has seen it
    year.change()
    if number >= RETAINED - 1:
        year.retire(number - RETAINED)
        year.fill(number, 5)


@pytest.mark.promise("partitions and settings", "partitions that come and go")
def test_silver_follows_a_year_of_partitions_by_scheduled_runs(year: Year) -> None:
    settled = 0  # runs that found partitions gone
    for number in range(0, 12, 2):  # a run follows two months
        live(year, number)
        with in_threads(*([partial(year.load, number)] if number % 4 else [])):
            live(year, number + 1)
            if number % 4:
                year.pipeline.ingest()
        settled += number + 1 >= RETAINED - 1
        year.pipeline.catch_up()
        year.assert_settled()
        copied = year.copied()
        assert copied["delete"] == [(0, False)] * settled
        assert copied["keep"] == []
        assert [is_whole for _, is_whole in copied["resync"]] == [True] * settled
    assert set(year.kinds("delete")) == {"evolved"}
    assert year.kinds("keep").count("info") == settled
    assert not {"resync", "diverged", "held"} & {*year.kinds("keep"), *year.kinds("resync")}


@pytest.mark.slow
def test_silver_follows_a_year_of_partitions_by_continuous_runs(year: Year) -> None:
    def ingest(stop: threading.Event) -> None:
        run_ingest(year.pipeline.config, trigger="continuous", stop=stop)

    def apply(stop: threading.Event) -> None:
        run_apply(
            year.pipeline.config, trigger="continuous", stop=stop, records_status=False, starts_query=False
        )

    with in_threads(ingest, apply):
        for number in range(12):
            with in_threads(partial(year.load, number)):
                live(year, number)
            if number % 2:
                wait_until(lambda: not any(year.differences().values()), 60)
        wait_until(lambda: not any(year.differences().values()), 60)
    copied = year.copied()
    assert {rows for rows, _ in copied["delete"]} == {0}
    assert not any(is_whole for _, is_whole in copied["delete"])
    assert copied["keep"] == []
    assert all(is_whole for _, is_whole in copied["resync"])
    for name in POLICIES:
        assert not {"resync", "diverged", "held"} & {*year.kinds(name)}
