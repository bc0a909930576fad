"""Processes that commit to one table on an object store without Spark: no acknowledged commit is lost."""

from pathlib import Path

import pytest

from pipeline.config.storage import Storage
from tests.support.races.stores import race
from tests.support.stores.s3 import BUCKET, s3_server
from tests.support.stores.seaweed import seaweed_server, weed


@pytest.mark.slow
def test_no_commit_is_lost_on_s3() -> None:
    with s3_server() as server:
        race(Storage(f"s3://{BUCKET}/race", server.options), 350)


def test_no_commit_is_lost_or_repeated_if_answers_are() -> None:
    with s3_server(loses=4) as server:
        race(Storage(f"s3://{BUCKET}/lost", server.options), 8)
        assert server.lost > 3


@pytest.mark.slow
@pytest.mark.skipif(weed() is None, reason="make stores installs SeaweedFS")
def test_no_commit_is_lost_on_seaweedfs(tmp_path: Path) -> None:
    with seaweed_server(tmp_path) as options:
        race(Storage("s3://lake/weed", options), 350)
