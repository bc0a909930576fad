"""The log store for HDFS, raced: processes that write the same versions of a log at the same moments.

Some commit by the log store, and some without Spark.
"""

from pathlib import Path

import pytest

from pipeline.delta.spark.settings import LOG_STORES
from tests.support.races.log_stores import Outcome, Race, txn_ids
from tests.support.stores.hdfs import Hdfs

pytestmark = [pytest.mark.spark, pytest.mark.slow]
LOG_STORE = LOG_STORES["hdfs"]


def race(
    hdfs: Hdfs, folder: Path, racer: Path, *, store: str, processes: int, races: int, natives: int = 0
) -> Outcome:
    """Race for versions of a log of its own, and compare the acknowledged commits with the log."""
    log = f"{folder.name}/_delta_log"
    hdfs.make_folder(log)
    meeting = folder / "meeting"
    race = Race(str(racer), f"{hdfs.url}/{log}", store, meeting, processes, races, natives=natives)
    told = race.run()
    if store == LOG_STORE:
        for version, tellers in told.items():
            assert txn_ids(hdfs.read(f"{log}/{version:020}.json")) == tellers
    return Outcome.of(races, told)


@pytest.mark.promise("HDFS")
@pytest.mark.parametrize("races", [50, 1000])
@pytest.mark.parametrize(("processes", "natives"), [(2, 0), (3, 0), (2, 1), (3, 2)])
def test_each_version_is_acknowledged_to_one_process(
    hdfs: Hdfs, racer: Path, tmp_path: Path, processes: int, natives: int, races: int
) -> None:
    options = {"processes": processes, "races": races, "natives": natives}
    found = race(hdfs, tmp_path, racer, store=LOG_STORE, **options)
    print(f"\n{races:,} races of {processes} processes, {natives} native: {found.lost} commits lost")
    assert found == Outcome(races, unwritten=0, lost=0)


def test_the_same_race_finds_what_a_store_without_exclusion_loses(
    hdfs: Hdfs, racer: Path, tmp_path: Path
) -> None:
    assert race(hdfs, tmp_path, racer, store="SlowLogStore", processes=2, races=5).lost
