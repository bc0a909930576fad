"""Which table is written first, which one a batch does not wait for, and that small ones always get on."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial

import pytest

from pipeline.apply.planner import LARGE, TablePlan
from pipeline.apply.table_pool import Job, TablePool, in_order
from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.table_input import Survey, TableSurvey
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.decision import Decision, Step, TableFacts
from pipeline.table_name import TableName
from tests.support.threads import wait_until

PATIENCE = 0.1


def name(table: str) -> TableName:
    return TableName("public", table)


def names(*tables: str) -> set[TableName]:
    return set(map(name, tables))


class Gate:
    """Jobs that begin, and end once they are let through."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._open = threading.Event()

    def job(self, table: str, *, is_large: bool = True, lsn: int = 1) -> Job[str]:
        def work() -> str:
            self.begun.append(table)
            assert self._open.wait(30)
            return table

        return Job(name(table), LSN(lsn), is_large, work)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def pool() -> TablePool[str]:
    return TablePool(3, PATIENCE)


def quick(table: str, *, is_large: bool = False, lsn: int = 1, work: Callable[[], object] = int) -> Job[str]:
    return Job(name(table), LSN(lsn), is_large, lambda: str(work()) and table)


@contextmanager
def running(pool: TablePool[str], *jobs: Job[str], is_whole: bool = False) -> Iterator[list[object]]:
    """Run jobs in a thread; give a list that has the result once the run has ended."""
    result: list[object] = []
    with ThreadPoolExecutor(1) as executor:
        ended = executor.submit(pool.run, jobs, is_whole=is_whole)
        ended.add_done_callback(lambda future: result.append(future.result()))
        yield result


def test_small_tables_come_first_and_then_those_that_wait_longest() -> None:
    jobs = [
        quick("big", is_large=True, lsn=1),
        quick("b", lsn=7),
        quick("a", lsn=7),
        quick("slow", lsn=2),
        quick("old", lsn=3),
    ]
    ordered = [job.name.table for job in in_order(jobs, names("slow"))]
    assert ordered == ["old", "a", "b", "big", "slow"]
    assert [job.name.table for job in in_order(reversed(jobs), names("slow"))] == ordered


def test_a_table_waits_since_its_oldest_change_and_is_large_by_its_rows() -> None:
    when = datetime(2026, 1, 1, tzinfo=timezone.utc)
    surveys = tuple(
        TableSurvey(Survey(1, (lsn, 0), (lsn + 5, 0), inserts=3), {"I": 3}, when) for lsn in (60, 45)
    )
    facts = TableFacts(name("t"), LSN(100), LSN(40), counts={"I": 6})
    plan = TablePlan(facts, Decision(Step.APPLY, ""), surveys)
    assert (plan.oldest_lsn, plan.is_large) == (45, False)
    copy = CompleteCopy(7, 1, (LSN(30), LSN(80)), LARGE)
    copied = TableFacts(name("t"), LSN(100), INVALID, copy=copy, counts={"I": 6})
    plan = TablePlan(copied, Decision(Step.START_FROM_COPY, ""), surveys)
    assert (plan.oldest_lsn, plan.is_large) == (30, True)
    assert not TablePlan(copied, Decision(Step.APPLY, ""), surveys).is_large
    assert not TablePlan(copied, Decision(Step.HOLD, "")).is_large
    assert TablePlan(facts, Decision(Step.REBUILD, "")).is_large
    many = TableFacts(name("t"), LSN(100), LSN(40), counts={"I": LARGE - 1, "D": 1})
    assert TablePlan(many, Decision(Step.APPLY, "")).is_large


def test_a_whole_batch_waits_for_all_and_uses_every_thread(pool: TablePool[str], gate: Gate) -> None:
    with running(pool, *(gate.job(table) for table in "abcd"), is_whole=True) as result:
        wait_until(lambda: len(gate.begun) == 3)
        time.sleep(3 * PATIENCE)
        assert not result
        gate.open()
    assert result == [{name(table): table for table in "abcd"}]
    assert pool.busy == set()


def test_a_slow_table_is_busy_until_a_later_batch_takes_its_result(pool: TablePool[str], gate: Gate) -> None:
    small = [quick(f"s{number}") for number in range(20)]
    assert pool.run([gate.job("big"), *small], is_whole=False).keys() == {job.name for job in small}
    assert pool.busy == names("big")
    assert pool.take_ended() == {}
    assert pool.run(small, is_whole=False).keys() == {job.name for job in small}
    gate.open()
    pool.wait()
    assert pool.ended == ["big"]
    assert pool.busy == names("big")  # no batch has taken the result
    assert pool.take_ended() == {name("big"): "big"}
    assert pool.busy == set()


def test_the_last_thread_is_left_to_small_tables(pool: TablePool[str], gate: Gate) -> None:
    large = [gate.job(f"big{number}", lsn=number) for number in (3, 1, 2)]
    began = time.monotonic()
    assert pool.run(large, is_whole=False) == {}
    assert time.monotonic() - began < 5
    assert pool.busy == names("big1", "big2")
    assert pool.run([*large[:1], quick("small")], is_whole=False) == {name("small"): "small"}
    assert sorted(gate.begun) == ["big1", "big2"]
    gate.open()
    pool.wait()
    assert set(pool.take_ended().values()) == {"big1", "big2"}
    assert pool.run(large[:1], is_whole=False) == {name("big3"): "big3"}


def test_the_batch_waits_while_no_thread_is_free(pool: TablePool[str], gate: Gate) -> None:
    first, others = Gate(), [gate.job(table, is_large=False) for table in "bc"]
    with running(pool, first.job("a", is_large=False), *others) as result:
        time.sleep(5 * PATIENCE)
        assert not result
        first.open()
    assert result == [{name("a"): "a"}]
    assert pool.busy == names("b", "c")


def test_a_table_that_was_slow_counts_as_large_until_it_is_quick(pool: TablePool[str]) -> None:
    slow = quick("a", work=lambda: time.sleep(2 * PATIENCE))
    pool.run([slow], is_whole=True)
    order: list[str] = []
    jobs = [quick(table, lsn=lsn, work=partial(order.append, table)) for lsn, table in enumerate("ab")]
    single: TablePool[str] = TablePool(1, PATIENCE)
    single._slow = pool._slow
    for expected in ("ba", "ab"):
        order.clear()
        single.run(jobs, is_whole=True)
        assert "".join(order) == expected


def test_a_table_that_may_not_stay_busy_is_waited_for(pool: TablePool[str], gate: Gate) -> None:
    threading.Timer(5 * PATIENCE, gate.open).start()
    done = pool.run(
        [gate.job("new"), quick("a")], is_whole=False, may_stay_busy=lambda table: table != name("new")
    )
    assert done.keys() == names("new", "a")


def test_nothing_is_written_any_more_once_a_batch_has_failed(pool: TablePool[str], gate: Gate) -> None:
    def fail() -> None:
        threading.Timer(2 * PATIENCE, gate.open).start()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.run([gate.job("big"), quick("a", work=fail)], is_whole=False)
    assert gate._open.is_set()


def test_a_busy_table_that_ends_the_process_ends_the_batch_that_finds_it(pool: TablePool[str]) -> None:
    def fail() -> None:
        time.sleep(5 * PATIENCE)
        raise KeyboardInterrupt

    assert pool.run([quick("a", is_large=True, work=fail)], is_whole=False) == {}
    pool.wait()
    with pytest.raises(KeyboardInterrupt):
        pool.take_ended()


def test_no_thread_is_left_of_a_pool_that_was_closed(pool: TablePool[str]) -> None:
    before = {*threading.enumerate()}
    assert pool.run([quick("a"), quick("b")], is_whole=True).keys() == names("a", "b")
    assert {*threading.enumerate()} - before
    pool.close()
    assert not {*threading.enumerate()} - before


def test_a_single_thread_makes_every_batch_whole(gate: Gate) -> None:
    single: TablePool[str] = TablePool(1, PATIENCE)
    with running(single, gate.job("big"), quick("small")) as result:
        time.sleep(3 * PATIENCE)
        assert not result
        gate.open()
    assert result == [{name(table): table for table in ("big", "small")}]
    assert single.busy == set()


@pytest.mark.parametrize("threads", [5, 2])
def test_the_number_of_threads_may_change(pool: TablePool[str], gate: Gate, threads: int) -> None:
    assert pool.run([quick("a"), quick("b")], is_whole=True).keys() == names("a", "b")
    pool.threads = threads
    with running(pool, *(gate.job(f"t{number}") for number in range(6)), is_whole=True):
        wait_until(lambda: len(gate.begun) >= threads)
        time.sleep(2 * PATIENCE)
        assert len(gate.begun) == threads
        gate.open()


def test_a_whole_batch_shows_what_is_written_while_it_waits(gate: Gate) -> None:
    pool: TablePool[str] = TablePool(3, PATIENCE, whole_patience=PATIENCE)
    shown: list[set[TableName]] = []
    has_shown = threading.Event()

    def show(done: Mapping[TableName, str]) -> None:
        shown.append(set(done))
        has_shown.set()
        if name("later") in done:
            gate.open()

    later = quick("later", is_large=True, work=lambda: has_shown.wait(30))
    jobs = [gate.job("big"), later, quick("a"), quick("b")]
    assert pool.run(jobs, is_whole=True, show=show).keys() == names("big", "later", "a", "b")
    assert shown == [names("a", "b"), names("a", "b", "later")]


def test_a_whole_batch_with_nothing_new_to_show_shows_nothing(gate: Gate) -> None:
    pool: TablePool[str] = TablePool(3, PATIENCE, whole_patience=PATIENCE)
    threading.Timer(5 * PATIENCE, gate.open).start()
    shown: list[object] = []
    assert pool.run([gate.job("big")], is_whole=True, show=shown.append).keys() == names("big")
    assert not shown
