"""Tables whose copies fail are tried at growing intervals, and held if they are rewritten again and again."""

from types import SimpleNamespace

import pytest

from pipeline.table_copy import attempts as module
from pipeline.table_copy.attempts import MAX_RETRY_SECONDS, MAX_REWRITES, RETRY_SECONDS, CopyAttempts
from pipeline.table_name import TableName

A, B = TableName("public", "a"), TableName("public", "b")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def wait(attempts: CopyAttempts, clock: SimpleNamespace) -> float:
    """Let time pass until the table is due; return the seconds."""
    began = clock.now
    while not attempts.is_due(A, ()):
        clock.now += 0.5
    return float(clock.now - began)


def test_a_rewritten_table_is_held_after_some_attempts(clock: SimpleNamespace) -> None:
    attempts = CopyAttempts()
    pauses = []
    for _ in range(MAX_REWRITES - 1):
        assert attempts.record_rewrite(A, ()) is None
        pauses.append(wait(attempts, clock))
    assert pauses == [1, 2, 4, 8]
    sentence = attempts.record_rewrite(A, ())
    assert sentence is not None
    assert "5 times" in sentence
    assert "pgdelta resync --table public.a" in sentence
    assert wait(attempts, clock) == 16
    for _ in range(100):
        assert attempts.record_rewrite(A, ()) is not None
    assert wait(attempts, clock) == MAX_RETRY_SECONDS
    attempts.record_success(A)
    assert attempts.record_rewrite(A, ()) is None


def test_a_failed_table_waits_and_a_request_does_not(clock: SimpleNamespace) -> None:
    attempts = CopyAttempts()
    attempts.record_failure(A, ())
    assert attempts.is_due(B, ())
    assert wait(attempts, clock) == RETRY_SECONDS
    attempts.record_failure(A, ())
    assert not attempts.is_due(A, ())
    assert attempts.is_due(A, ("a request",))
    assert wait(attempts, clock) == 2 * RETRY_SECONDS


def test_tables_that_need_no_copy_are_forgotten(clock: SimpleNamespace) -> None:
    attempts = CopyAttempts()
    for number in range(5000):
        name = TableName("public", f"t{number}")
        attempts.record_failure(name, ())
        attempts.keep({name: None})
    assert len(attempts._failed) == 1
