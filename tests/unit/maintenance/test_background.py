"""Maintenance by the jobs: what is due, that it never blocks a write, and what it records."""

import threading
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.jobs import Maintenance
from pipeline.delta.table import Lake, LakeTable
from pipeline.maintenance.background import JobMaintenance
from pipeline.maintenance.job_tables import DueTable, due_tables, own_candidates, silver_candidates
from pipeline.maintenance.write_gate import BusyError, WriteGate
from pipeline.metadata.events import EventLog
from pipeline.metadata.maintenance import Maintained, MaintenanceTable
from pipeline.progress import MaintenanceProgress
from tests.support.native_lakes import NativeLake
from tests.support.threads import wait_until

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
DAY = 86_400
RULES = Maintenance(small_files=20, every=900)


def candidate(name: str, version: int, table: LakeTable | None = None) -> DueTable:
    return DueTable(name, ("public", name), table or LakeTable(f"/{name}"), False, lambda: version)


@pytest.mark.parametrize(
    ("version", "ago", "before", "is_due"),
    [
        (19, None, 0, True),
        (18, None, 0, False),
        (-1, None, 0, False),
        (100, 899, 0, False),
        (100, 901, 80, True),
        (99, 901, 80, False),
        (80, DAY + 1, 80, True),
        (30, 901, 80, True),  # another table with this name
        (100, -60, 0, True),  # the clock went back
    ],
)
def test_a_table_is_due(version: int, ago: int | None, before: int, is_due: bool) -> None:
    recorded = {} if ago is None else {"t": Maintained("t", NOW - timedelta(seconds=ago), before)}
    assert bool(due_tables([candidate("t", version)], recorded, NOW, RULES)) == is_due


def test_the_table_with_most_commits_is_first_and_recent_ones_are_not_read() -> None:
    def fail() -> int:
        raise AssertionError("read")

    recent = replace(candidate("r", 0), version=fail)
    tables = [candidate("a", 30), recent, candidate("b", 300)]
    found = due_tables(tables, {"r": Maintained("r", NOW - timedelta(seconds=5), 0)}, NOW, RULES)
    assert [each.name for each in found] == ["b", "a"]


def test_a_write_goes_before_an_exchange_and_waits_for_one_commit() -> None:
    gate = WriteGate()
    with gate.writing("t"):
        assert gate.is_writing("t")
        with pytest.raises(BusyError), gate.exchanging("t"):
            raise AssertionError
        with gate.exchanging("u"):
            pass
    written = threading.Event()

    def write() -> None:
        with gate.writing("t"):
            written.set()

    thread = threading.Thread(target=write)
    with gate.exchanging("t"):
        thread.start()
        assert not written.wait(0.05)
    assert written.wait(10)
    thread.join()
    assert not gate.is_writing("t")


@pytest.fixture
def grown(tmp_path: Path) -> NativeLake:
    """Give a lake with 25 small commits to bronze."""
    lake = NativeLake(tmp_path / "lake", 1)
    for number in range(25):
        lake.insert(lake.names, 2000 + 10 * number)
    return lake


def job(
    grown: NativeLake, *, folder: str = "bronze", later: float = 0, enabled: bool = True, **more: Any
) -> tuple[JobMaintenance, MaintenanceProgress]:
    lake, progress = Lake(str(grown.root)), MaintenanceProgress()
    config = replace(grown.config, maintenance=replace(RULES, enabled=enabled))
    options = {"stop": threading.Event(), "clock": lambda: time.time() + later, **more}
    if folder == "silver":
        manifest = grown.manifests.last()
        assert manifest is not None

        def candidates() -> list[DueTable]:
            return list(silver_candidates(lake, manifest.entries))
    else:

        def candidates() -> list[DueTable]:
            return list(own_candidates(lake, folder))

    return JobMaintenance(config, lake, candidates, progress, **options), progress


def changes_count(grown: NativeLake) -> int:
    return grown.lake.table("bronze", "changes").snapshot().file_count


def recorded(grown: NativeLake) -> dict[str, Maintained]:
    return dict(MaintenanceTable(Lake(str(grown.root))).read())


@pytest.mark.costly
def test_due_tables_are_maintained_once_in_an_interval(grown: NativeLake) -> None:
    before, rows = changes_count(grown), grown.lake.table("bronze", "changes").row_count()
    reports: list[int] = []
    maintenance, progress = job(grown, report=lambda: reports.append(1))
    maintenance.run()
    assert (progress.tables, reports) == (1, [1])
    assert progress.lines() == [
        f"maintained 1 table: {before - changes_count(grown)} files fewer after merging"
    ]
    assert changes_count(grown) <= 2
    assert grown.lake.table("bronze", "changes").row_count() == rows
    row = recorded(grown)["bronze/changes"]
    snapshot = grown.lake.table("bronze", "changes").snapshot()
    assert (row.files_before, row.files_after) == (before, snapshot.file_count)
    assert (row.version, row.is_failed, row.sentence) == (snapshot.version, False, None)
    assert row.bytes == sum(add["size"] for add in snapshot.files.values())
    for number in range(25):
        grown.insert(grown.names, 3000 + 10 * number)
    for later, count in ((60, 0), (1000, 1)):
        again, progress = job(grown, later=later)
        again.run()
        assert progress.tables == count


def test_files_that_expired_go_a_day_later(grown: NativeLake) -> None:
    job(grown)[0].run()
    maintenance, progress = job(grown, later=2 * DAY)
    maintenance.run()
    assert progress.tables == 1
    assert progress.removed_files >= 20
    assert len(list((grown.root / "bronze" / "changes").glob("*.parquet"))) == changes_count(grown)


def test_nothing_is_done_without_need(grown: NativeLake) -> None:
    stop = threading.Event()
    stop.set()
    for maintenance, _ in (job(grown, enabled=False), job(grown, stop=stop), job(grown, folder="silver")):
        before = sorted(grown.root.rglob("*"))
        maintenance.run()
        with maintenance.in_background():
            pass
        assert sorted(grown.root.rglob("*")) == before


def grow_silver(grown: NativeLake) -> LakeTable:
    table = grown.lake.table("silver", *grown.names[0])
    for number in range(25):
        table.append_rows([{"id": 100 + number, "name": "x"}], "id INT, name STRING")
    manifest = grown.manifests.last()
    assert manifest is not None
    entries = tuple(replace(entry, version=table.version()) for entry in manifest.entries)
    grown.manifests.record(replace(manifest, entries=entries))
    return table


def test_a_table_that_is_being_written_is_left_for_later(grown: NativeLake) -> None:
    table, gate = grow_silver(grown), WriteGate()
    before = table.version()
    name = str(grown.names[0])
    with gate.writing(name):
        job(grown, folder="silver", gate=gate)[0].run()
    assert table.version() == before
    assert recorded(grown) == {}
    maintenance, progress = job(grown, folder="silver", gate=gate)
    maintenance.run()
    assert table.snapshot().file_count < 5
    assert progress.tables == 1
    assert list(recorded(grown)) == [name]


class LateGate(WriteGate):
    """A write begins once the rows are merged, before the commit."""

    def is_writing(self, name: str) -> bool:
        self._writing[name] = 1
        return False


@pytest.mark.promise("maintenance by jobs")
def test_a_write_that_began_meanwhile_wins_and_no_file_is_left(grown: NativeLake) -> None:
    table = grow_silver(grown)
    files = sorted(table.folder.rglob("*"))
    maintenance, progress = job(grown, folder="silver", gate=LateGate())
    maintenance.run()
    assert sorted(table.folder.rglob("*")) == files
    assert (progress.tables, progress.failures, recorded(grown)) == (0, {}, {})


def events(grown: NativeLake) -> list[tuple[str, str, str]]:
    rows = grown.lake.table("_pgdelta", "events").rows().to_pylist()
    return [(row["schema_name"], row["table_name"], row["kind"]) for row in rows]


@pytest.mark.promise("maintenance by jobs")
def test_a_failure_is_recorded_once_and_fails_nothing(grown: NativeLake) -> None:
    lost = max((grown.root / "bronze" / "changes").glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    lost.unlink()
    for later in (0, 1000, 2000):
        maintenance, progress = job(grown, later=later)
        maintenance.run()
        assert list(progress.failures) == ["bronze/changes"]
        assert progress.lines()[0].startswith("maintenance of bronze/changes failed: ")
        row = recorded(grown)["bronze/changes"]
        assert row.is_failed
        assert row.sentence == progress.failures["bronze/changes"]
    assert events(grown) == [("bronze", "changes", "maintenance")]
    assert EventLog(grown.lake).newest().tables == {}, "it says nothing of the rows of a table"


def test_a_thread_maintains_during_a_run_and_ends_with_it(
    grown: NativeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.maintenance.background._CHECK_SECONDS", 0.01)
    maintenance, progress = job(grown)
    with maintenance.in_background():
        wait_until(lambda: progress.tables == 1 and bool(recorded(grown)))
    assert not any(thread.name == "maintenance" for thread in threading.enumerate())
