"""A run may end between any two messages that begin or end something: the next continues as if it had not.

Each run is cut off after the first such message at which none was cut off before, until all have been; by
default only a share of them, which the seed chooses.
"""

from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from pipeline.config.config import Protocol
from pipeline.crash_steps import CrashStep
from pipeline.ingest import capture
from pipeline.ingest.capture import Capture
from pipeline.postgres.replication.change_stream import ChangeStream
from pipeline.postgres.replication.walsender import start_walsender
from tests.support.fault_points import observed
from tests.support.pipelines import Crash, MakePipeline, crash
from tests.support.seeds import seed_of_run
from tests.support.servers import Database

RICH = Protocol(two_phase=True, streaming="on", written=frozenset({"two_phase", "streaming"}))
BOUNDARIES = b"BCSEcAbPpKr"
FILL = "INSERT INTO filler SELECT repeat('x', 6800) FROM generate_series(1, 10)"
TABLES = ("t", "u", "filler")

Key = tuple[bytes, int]  # a message, and which of its like it is in its session


class Cut:
    """A stream that ends after a boundary that is not among those `passed` if it `is_due`; a ChangeStream."""

    def __init__(self, stream: ChangeStream, passed: set[Key], is_due: Callable[[], bool]) -> None:
        self._stream = stream
        self._passed = passed
        self._is_due = is_due
        self._waiting: deque[bytes] = deque()
        self._count: Counter[bytes] = Counter()
        self.received_lsn = stream.received_lsn
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, timeout: float) -> list[bytes]:
        if not self._waiting:
            self._waiting.extend(self._stream.read(timeout))
        messages: list[bytes] = []
        while self._waiting:
            messages.append(self._waiting.popleft())
            if messages[-1][0] in BOUNDARIES:
                self._count[messages[-1]] += 1
                key = (messages[-1], self._count[messages[-1]])
                self.is_cut = key not in self._passed and self._is_due()
                self._passed.add(key)
                break
        if not self._waiting:
            self.received_lsn = self._stream.received_lsn
        return messages


def interleave(database: Database) -> None:
    """Run transactions that stream, are prepared, are rolled back, or several of these, interleaved."""
    one, two, three = (database.connect() for _ in range(3))
    for session, statement in (
        (one, "BEGIN"),
        (one, "INSERT INTO t VALUES (1, 'one')"),
        (one, "SAVEPOINT s"),
        (one, FILL),
        (one, "INSERT INTO t VALUES (2, 'gone')"),
        (two, "BEGIN"),
        (two, FILL),
        (two, "INSERT INTO t VALUES (10, 'never')"),
        (one, "ROLLBACK TO s"),
        (one, FILL),
        (three, "BEGIN"),
        (three, "INSERT INTO t VALUES (20, 'prepared')"),
        (three, "PREPARE TRANSACTION 'small'"),
        (two, FILL),
        (two, "ROLLBACK"),
        (two, "BEGIN"),
        (two, "INSERT INTO t VALUES (30, 'streamed and prepared')"),
        (two, FILL),
        (two, "PREPARE TRANSACTION 'large'"),
        (three, "INSERT INTO t VALUES (40, 'at once')"),
        (three, "BEGIN"),
        (three, "DELETE FROM t WHERE id = 40"),
        (three, "PREPARE TRANSACTION 'no'"),
        (one, "INSERT INTO u VALUES (1)"),
        (one, "ALTER TABLE u ADD w int DEFAULT 5"),
        (one, "INSERT INTO u VALUES (2, 6)"),
        (one, FILL),
        (one, "COMMIT"),
        (two, "COMMIT PREPARED 'large'"),
        (three, "ROLLBACK PREPARED 'no'"),
        (three, "COMMIT PREPARED 'small'"),
        (three, "UPDATE t SET v = 'last' WHERE id IN (1, 20, 30)"),
    ):
        session.execute(statement.encode())
    for session in (one, two, three):
        session.close()


@pytest.mark.promise("transactions are complete and once")
@pytest.mark.parametrize(
    ("when", "share"),
    [
        ("before it acknowledges", 0.3),
        pytest.param("before it acknowledges", 1, marks=pytest.mark.slow),
        pytest.param("before it lands", 1, marks=pytest.mark.slow),
        pytest.param("after it acknowledged", 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_ended_between_any_two_messages_loses_and_repeats_nothing(
    make_pipeline: MakePipeline, database: Database, monkeypatch: pytest.MonkeyPatch, when: str, share: float
) -> None:
    rng = Random(seed_of_run())
    judge = make_pipeline(name="judge", protocol=Protocol(version=1), create_publication="all")
    pipeline = make_pipeline(protocol=RICH)
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "CREATE TABLE filler (v text)",
        "ALTER TABLE filler ALTER v SET STORAGE PLAIN, REPLICA IDENTITY FULL",
        f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'",
    )
    judge.ingest()
    pipeline.ingest()
    interleave(database)

    passed: set[Key] = set()
    cuts: list[Cut] = []

    def start(*arguments: Any, **options: Any) -> Cut:
        cuts.append(Cut(start_walsender(*arguments, **options), passed, lambda: rng.random() < share))
        return cuts[-1]

    def land_when_due(self: Capture, lander: Any, is_done: bool) -> None:
        if cuts[-1].is_cut and when == "before it lands":
            crash()
        land(self, lander, is_done)
        if cuts[-1].is_cut:
            self._settle()
            crash()

    def end_before_acknowledging(step: CrashStep, moment: str) -> None:
        is_before = (step, moment) == (CrashStep.ACKNOWLEDGE, "before")
        if is_before and cuts[-1].is_cut and when == "before it acknowledges":
            crash()

    # The other moments are those of a message, which no step names.
    land = Capture._land_when_due
    with monkeypatch.context() as patch, observed(end_before_acknowledging):
        patch.setattr("pipeline.ingest.job.start_walsender", start)
        patch.setattr(capture, "LAND_SECONDS", 1e9 if when == "before it lands" else 0.0)
        patch.setattr(Capture, "_land_when_due", land_when_due)
        while not cuts or cuts[-1].is_cut:
            with suppress(Crash):
                pipeline.ingest()
    kinds = Counter(chr(message[0]) for message, _ in passed)
    print(f"{len(cuts) - 1} runs cut off, {when}: {dict(sorted(kinds.items()))}")
    assert len(cuts) - 1 == len(passed) if share == 1 else 1 < len(cuts) <= len(passed)
    assert set(kinds) == set(map(chr, BOUNDARIES))
    judge.ingest()
    assert pipeline.changes() == judge.changes()
    assert pipeline.frame("bronze", "prepared").count() == 0
    assert pipeline.apply().exit_code(strict=True) == 0
    pipeline.assert_equal(*TABLES)
