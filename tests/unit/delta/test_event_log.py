"""`EventLog`: an event is recorded once, whoever records it; what was read of the table is not read again."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from pipeline.delta.table import Lake, LakeTable
from pipeline.metadata.events import Event, EventLog
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName


def event(number: int, kind: str = "evolved") -> Event:
    return Event("public", f"t{number}", LSN(number), kind, f"Sentence {number}.")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def log_of(lake: Lake) -> EventLog:
    """Return the log as another process would open it."""
    log = EventLog(lake)
    log.ensure()
    return log


def sentences(lake: Lake) -> list[str]:
    return sorted(lake.table("_pgdelta", "events").rows(["sentence"])["sentence"].to_pylist())


def test_an_event_that_another_process_recorded_is_not_recorded_again(lake: Lake) -> None:
    first, second = log_of(lake), log_of(lake)
    for number in range(30):  # compactions are among the versions
        first.record([event(number)])
        second.record([event(number), event(number + 100)])
        first.record([event(number + 100)])
    assert sentences(lake) == sorted(event(n + m).sentence for n in range(30) for m in (0, 100))


def test_only_files_that_are_new_are_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = log_of(lake), log_of(lake)
    for number in range(5):
        log.record([event(number)])
    read: list[int] = []
    rows = LakeTable.rows

    def counted(self: LakeTable, *arguments: Any, **options: Any) -> Any:
        found = rows(self, *arguments, **options)
        read.append(found.num_rows)
        return found

    monkeypatch.setattr(LakeTable, "rows", counted)
    log.record([event(5)])
    log.record([event(6)])
    assert sum(read) == 0  # it knows its own
    other.record([event(7)])
    read.clear()
    log.record([event(8)])
    assert read == [1]  # the other's


def test_a_table_that_was_removed_is_read_again(lake: Lake) -> None:
    log, other = log_of(lake), log_of(lake)
    log.record([event(1)])
    other.record([event(2)])
    rmtree(lake.table("_pgdelta", "events").folder)
    log_of(lake).record([event(3, "resync")])
    assert log.resyncs() == {TableName("public", "t3"): LSN(3)}
    log.record([event(3, "resync"), event(4)])
    assert sentences(lake) == [event(3).sentence, event(4).sentence]


def test_threads_that_wait_are_recorded_together(lake: Lake) -> None:
    log = log_of(lake)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: log.record([event(number)]), range(40)))
    assert sentences(lake) == sorted(event(number).sentence for number in range(40))
    assert lake.table("_pgdelta", "events").version() <= 40 + 4  # each compaction is a version


def test_threads_learn_that_their_events_are_not_recorded(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(lake)
    append = LakeTable.append_rows

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(LakeTable, "append_rows", fail)
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(log.record, [event(number)]) for number in range(8)]
        assert all(isinstance(each.exception(), OSError) for each in running)
    monkeypatch.setattr(LakeTable, "append_rows", append)
    log.record([event(0)])  # with those that were refused
    assert len(sentences(lake)) == 8
