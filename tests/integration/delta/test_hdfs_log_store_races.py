"""Delta's log store for HDFS, raced: processes that write the same versions of a log at the same moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.races.log_stores import Outcome, Race, txn_ids
from tests.support.stores.hdfs import Hdfs

pytestmark = [pytest.mark.spark, pytest.mark.slow]
LOG_STORE = "io.delta.storage.HDFSLogStore"


def race(hdfs: Hdfs, folder: Path, racer: Path, *, store: str, processes: int, races: int) -> Outcome:
    """Race for versions of a log of its own, and compare what processes were told with what is in it."""
    log = f"{folder.name}/_delta_log"
    hdfs.make_folder(log)
    told = Race(str(racer), f"{hdfs.url}/{log}", store, folder / "meeting", processes, races).run()
    if store == LOG_STORE:
        for version, tellers in told.items():
            assert txn_ids(hdfs.read(f"{log}/{version:020}.json")) == tellers
    return Outcome.of(races, told)


@pytest.mark.parametrize(("processes", "races"), [(2, 50), (2, 1000), (3, 1000)])
def test_each_version_is_told_to_one_process(
    hdfs: Hdfs, racer: Path, tmp_path: Path, processes: int, races: int
) -> None:
    found = race(hdfs, tmp_path, racer, store=LOG_STORE, processes=processes, races=races)
    print(f"\n{races:,} races of {processes} processes: {found.lost} commits lost")
    assert found == Outcome(races, unwritten=0, lost=0)


def test_the_same_race_finds_what_a_store_without_exclusion_loses(
    hdfs: Hdfs, racer: Path, tmp_path: Path
) -> None:
    assert race(hdfs, tmp_path, racer, store="SlowLogStore", processes=2, races=5).lost
