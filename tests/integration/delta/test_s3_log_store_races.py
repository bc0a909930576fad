"""The log store for S3, raced: processes that write the same versions of a log at the same moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.delta.spark.settings import LOG_STORES
from tests.support.races.log_stores import Outcome, Race, txn_ids
from tests.support.stores.s3 import BUCKET, S3Server, s3_server

pytestmark = pytest.mark.spark
LOG_STORE = LOG_STORES["s3a"]
DELTAS_OWN = "io.delta.storage.S3SingleDriverLogStore"
LOG = "table/_delta_log"


@pytest.fixture
def class_path(racer: Path, s3_jars: Path, tmp_path: Path) -> str:
    return f"{tmp_path}:{racer}:{s3_jars}/*"


def race(
    server: S3Server, folder: Path, class_path: str, store: str, *, processes: int, races: int
) -> Outcome:
    """Race for versions of a log on S3, and compare what processes were told with what is in it."""
    server.write_settings(folder)
    log = f"s3a://{BUCKET}/{LOG}"
    told = Race(class_path, log, store, folder / "meeting", processes, races).run()
    if store == LOG_STORE:
        for version, tellers in told.items():
            assert txn_ids(server.read(f"{LOG}/{version:020}.json")) == tellers
    return Outcome.of(races, told)


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("races", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_each_version_is_told_to_one_process(
    class_path: str, tmp_path: Path, processes: int, races: int
) -> None:
    with s3_server() as server:
        found = race(server, tmp_path, class_path, LOG_STORE, processes=processes, races=races)
    print(f"\n{races:,} races of {processes} processes: {found.lost} commits lost")
    assert found == Outcome(races, unwritten=0, lost=0)


def test_the_same_race_finds_what_deltas_own_store_loses(class_path: str, tmp_path: Path) -> None:
    with s3_server() as server:
        found = race(server, tmp_path, class_path, DELTAS_OWN, processes=2, races=30)
    print(f"\n30 races of Delta's own store: {found.lost} commits lost")
    assert found.lost


def test_a_commit_whose_answer_is_lost_is_told_to_its_process(class_path: str, tmp_path: Path) -> None:
    with s3_server(loses=3) as server:
        found = race(server, tmp_path, class_path, LOG_STORE, processes=2, races=30)
        assert server.lost >= 10
    assert found == Outcome(30, unwritten=0, lost=0)
