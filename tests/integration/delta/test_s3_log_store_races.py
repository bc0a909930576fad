"""The log store for S3, raced: processes that write the same versions of a log at the same moments."""

from pathlib import Path

import pytest

from pipeline.delta.spark.settings import LOG_STORES
from pipeline.delta.store.object_store import ObjectStore
from tests.support.races.log_stores import Outcome, Race, txn_ids
from tests.support.stores.s3 import BUCKET, S3Server, s3_server, write_settings
from tests.support.stores.seaweed import seaweed_server, weed

LOG_STORE = LOG_STORES["s3a"]
DELTAS_OWN = "io.delta.storage.S3SingleDriverLogStore"
LOG = "table/_delta_log"


@pytest.fixture
def class_path(racer: Path, s3_jars: Path, tmp_path: Path) -> str:
    return f"{tmp_path}:{racer}:{s3_jars}/*"


def race(
    server: S3Server, folder: Path, class_path: str, store: str, *, processes: int, races: int
) -> Outcome:
    """Race for versions of a log on S3, and compare the acknowledged commits with the log."""
    server.write_settings(folder)
    log = f"s3a://{BUCKET}/{LOG}"
    told = Race(class_path, log, store, folder / "meeting", processes, races).run()
    if store == LOG_STORE:
        for version, tellers in told.items():
            assert txn_ids(server.read(f"{LOG}/{version:020}.json")) == tellers
    return Outcome.of(races, told)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_each_version_is_acknowledged_to_one_process(class_path: str, tmp_path: Path, processes: int) -> None:
    with s3_server() as server:
        found = race(server, tmp_path, class_path, LOG_STORE, processes=processes, races=1000)
    print(f"\n1,000 races of {processes} processes: {found.lost} commits lost")
    assert found == Outcome(1000, unwritten=0, lost=0)


@pytest.mark.slow
def test_the_same_race_finds_what_deltas_own_store_loses(class_path: str, tmp_path: Path) -> None:
    with s3_server() as server:
        found = race(server, tmp_path, class_path, DELTAS_OWN, processes=2, races=30)
    print(f"\n30 races of Delta's own store: {found.lost} commits lost")
    assert found.lost


def test_a_commit_whose_answer_is_lost_is_acknowledged_to_its_process(
    class_path: str, tmp_path: Path
) -> None:
    with s3_server(loses=3) as server:
        found = race(server, tmp_path, class_path, LOG_STORE, processes=2, races=12)
        assert server.lost >= 4
    assert found == Outcome(12, unwritten=0, lost=0)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(weed() is None, reason="make stores installs SeaweedFS")
@pytest.mark.parametrize("processes", [2, 3])
def test_each_version_is_acknowledged_to_one_process_on_seaweedfs(
    class_path: str, tmp_path: Path, processes: int
) -> None:
    folder = tmp_path / "seaweed"
    folder.mkdir(mode=0o700)
    with seaweed_server(folder) as options:
        write_settings(tmp_path, options["aws_endpoint"])
        log = f"s3a://{BUCKET}/{LOG}"
        told = Race(class_path, log, LOG_STORE, tmp_path / "meeting", processes, 1000).run()
        store = ObjectStore(f"s3://{BUCKET}/{LOG}", options)
        for version, tellers in told.items():
            assert txn_ids(store.read(f"{version:020}.json")[0]) == tellers
    found = Outcome.of(1000, told)
    print(f"\n1,000 races of {processes} processes on SeaweedFS: {found.lost} commits lost")
    assert found == Outcome(1000, unwritten=0, lost=0)
