"""The log store for local folders, raced: processes that write the same versions at the same moments.

Each process is a JVM of its own. Before each version they meet in shared memory, so that every version is
contested. The versions that a store acknowledges to the processes are compared: a version that two of
them have is a lost commit.
"""

from pathlib import Path

import pytest

from pipeline.delta.spark.settings import LOG_STORES
from tests.support.races.log_stores import Outcome, Race, txn_ids

LOG_STORE = LOG_STORES["file"]
DELTAS_OWN = "io.delta.storage.HDFSLogStore"  # what Delta takes for `file:` unless told otherwise


def race(
    racer: Path, log: Path, store: str, *, processes: int, races: int, first: int = 0, natives: int = 0
) -> Outcome:
    """Race for versions of a log in a folder, and compare the acknowledged commits with the log."""
    log.mkdir(parents=True, exist_ok=True)
    meeting = log.parent / f"meeting-{first}"
    told = Race(str(racer), f"file:{log}", store, meeting, processes, races, first, natives).run()
    if store == LOG_STORE:
        for version, tellers in told.items():
            assert txn_ids((log / f"{version:020}.json").read_bytes()) == tellers
    return Outcome.of(races, told)


@pytest.mark.sample(1)
@pytest.mark.promise("one winner of each version")
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("races", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_each_version_is_acknowledged_to_one_process(
    racer: Path, tmp_path: Path, processes: int, races: int
) -> None:
    log = tmp_path / "_delta_log"
    found = race(racer, log, LOG_STORE, processes=processes, races=races)
    print(f"\n{races:,} races of {processes} processes: {found.lost} commits lost")
    assert found == Outcome(races, unwritten=0, lost=0)
    assert len(list(log.iterdir())) == races  # and no temporary file is left


@pytest.mark.sample(1)
@pytest.mark.promise("one winner of each version")
@pytest.mark.parametrize(("processes", "natives"), [(2, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("races", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_each_version_is_acknowledged_to_one_process_with_or_without_spark(
    racer: Path, tmp_path: Path, processes: int, natives: int, races: int
) -> None:
    log = tmp_path / "_delta_log"
    found = race(racer, log, LOG_STORE, processes=processes, races=races, natives=natives)
    print(f"\n{races:,} races of {processes} processes, {natives} native: {found.lost} commits lost")
    assert found == Outcome(races, unwritten=0, lost=0)
    assert len(list(log.iterdir())) == races


@pytest.mark.promise("one winner of each version")
def test_the_same_race_finds_what_a_store_loses_whose_window_is_held_open(
    racer: Path, tmp_path: Path
) -> None:
    found = race(racer, tmp_path / "_delta_log", "SlowLogStore", processes=2, races=5)
    print(f"\n{found.races:,} races of Delta's own store, its window held open: {found.lost} commits lost")
    assert found.lost


@pytest.mark.slow
def test_how_much_deltas_own_store_loses(racer: Path, tmp_path: Path) -> None:
    races = lost = 0
    while races < 2500 or (not lost and races < 10_000):
        found = race(racer, tmp_path / "_delta_log", DELTAS_OWN, processes=2, races=500, first=races)
        races, lost = races + found.races, lost + found.lost
    print(f"\n{races:,} races of Delta's own store: {lost} commits lost")
    assert lost
