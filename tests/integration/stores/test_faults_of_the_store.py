"""Both jobs while the object store fails: nothing is lost and nothing is written twice."""

import threading
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from pipeline.delta.store.store import StoreError
from pipeline.errors import PgdeltaError
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.servers import Database
from tests.support.stores.lakes import StorePipeline
from tests.support.stores.s3 import BUCKET, S3Server

ROUNDS = 3


class Faults:
    """Faults of random requests, some of kinds that follow one another; counts them."""

    def __init__(self, seed: int, kinds: tuple[str, ...], share: float) -> None:
        self._rng = Random(seed)
        self._kinds = kinds
        self._share = share
        self._lock = threading.Lock()
        self.count: Counter[str] = Counter()

    def __call__(self, request: dict[str, Any]) -> str | None:
        with self._lock:
            if self._rng.random() >= self._share:
                return None
            kind = self._rng.choice(self._kinds)
            if kind in ("lost", "cut") and request["REQUEST_METHOD"] in ("GET", "HEAD"):
                kind = "500"
            self.count[kind] += 1
            return kind


@pytest.fixture
def pipeline(s3: S3Server, database: Database) -> Iterator[StorePipeline]:
    root = f"s3://{BUCKET}/{database.name}"
    config = database.config(root=root, options=s3.options, create_publication="all", copy="initial")
    with database.connect() as source:
        yield StorePipeline(config, source)


def run_until_it_ends(run: Any) -> int:
    """Run a job again while it fails with a sentence, as a scheduler does; return how often it failed."""
    for failures in range(20):
        try:
            summary = run()
        except PgdeltaError:
            continue
        if summary.exit_code(strict=True) == 0:
            return failures
    raise AssertionError("the job fails always")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_failing_requests_change_nothing(pipeline: StorePipeline, s3: S3Server, seed: int) -> None:
    pipeline.run(*ORDERS, *LINES, *LOG, *FILL)
    faults = s3.fault = Faults(seed, ("500", "503", "lost", "cut"), 0.15)
    rng = Random(seed)
    for number in range(ROUNDS):
        pipeline.run(
            *rng.sample(CHANGE[1:], 2),
            f"INSERT INTO orders VALUES ({1000 + number}, 'new', repeat('n', 2500), {number})",
            f"UPDATE orders SET price = {number} WHERE id % 3 = 0",
        )
        run_until_it_ends(pipeline.ingest)
        run_until_it_ends(pipeline.apply)
    s3.fault = lambda request: None
    pipeline.assert_orders_equal()
    assert min(faults.count.values()) > 0, faults.count
    found = Counter((row["commit_lsn"], row["ordinal"]) for row in pipeline.changes() if row["op"] != "R")
    assert found
    assert max(found.values()) == 1


def test_credentials_that_expire_end_a_run_with_a_sentence(pipeline: StorePipeline, s3: S3Server) -> None:
    pipeline.catch_up(*LOG, FILL[2])
    pipeline.run(CHANGE[4])
    s3.fault = lambda request: "expired" if request["REQUEST_METHOD"] == "PUT" else None
    with pytest.raises(StoreError, match=r"The credentials have expired\. Renew them and run again\."):
        pipeline.ingest()
    s3.fault = lambda request: None
    pipeline.catch_up()
    pipeline.assert_equal("log", "line")
