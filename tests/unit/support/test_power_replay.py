"""The replayer, by traces written by hand: each step that forces something is needed, and none more."""

from collections.abc import Sequence

import pytest

from tests.support.power.disk import Disk, Event
from tests.support.power.replay import Entry, Logs, Replay, replay

ROOT = "/r"
TABLE = "/r/changes"
LOG = f"{TABLE}/_delta_log"
DATA = f"{TABLE}/a.parquet"
COMMIT = f"{LOG}/0.json"
LOGS = Logs(
    (Entry(COMMIT, 10, {DATA: 100}, lsn=7, relations=frozenset({1})),),
    (Entry("/r/rel.json", 5, relations=frozenset({1})),),
)


def forced(path: str, inode: int = 0) -> list[Event]:
    return [Event("begin", inode=inode, path=path), Event("force", inode=inode, path=path)]


def flush(lsn: int) -> list[Event]:
    return [Event("flush", first=lsn)]


RELATION = [
    Event("open", inode=9, path="/r/tmp"),
    Event("write", inode=9, second=5, path="/r/tmp"),
    *forced("/r/tmp", 9),
    Event("link", inode=9, path="/r/tmp", other="/r/rel.json"),
    *forced(ROOT),
]
#: A commit as the log store makes it, by steps that can be left out.
STEPS: dict[str, list[Event]] = {
    "folders": [Event("mkdir", path=TABLE), Event("mkdir", path=LOG)],
    "staged": [
        Event("open", inode=1, path="/r/staged"),
        Event("write", inode=1, second=100, path="/r/staged"),
        Event("rename", inode=1, path="/r/staged", other=DATA),
    ],
    "written": [
        Event("open", inode=2, path=f"{LOG}/.tmp"),
        Event("write", inode=2, second=10, path=f"{LOG}/.tmp"),
    ],
    "entry is forced": forced(f"{LOG}/.tmp", 2),
    "data are forced": forced(DATA, 1),
    "table is forced": forced(TABLE),
    "linked": [
        Event("link", inode=2, path=f"{LOG}/.tmp", other=COMMIT),
        Event("remove", path=f"{LOG}/.tmp"),
    ],
    "log is forced": forced(LOG),
    "root is forced": forced(ROOT),
    "reported": flush(7),
}


def run(events: Sequence[Event], logs: Logs = LOGS) -> Replay:
    return replay(events, ROOT, logs)


def trace(*left_out: str) -> list[Event]:
    steps = (events for name, events in STEPS.items() if name not in left_out)
    return [*RELATION, *(event for events in steps for event in events)]


def test_a_commit_that_is_forced_whole_is_not_ahead() -> None:
    verdict = run(trace()).verdict
    assert (verdict.ahead, verdict.torn, verdict.position, verdict.flushes) == ([], set(), 7, 1)


@pytest.mark.promise("power failures")
@pytest.mark.parametrize("step", [name for name in STEPS if "is forced" in name or "are forced" in name])
def test_each_step_that_forces_is_needed(step: str) -> None:
    verdict = run(trace(step)).verdict
    assert [(cut.flushed, cut.position) for cut in verdict.ahead] == [(7, 0)]
    assert bool(verdict.torn) == (list(STEPS).index(step) < list(STEPS).index("linked"))


def test_a_report_before_the_commit_is_durable_is_ahead_until_it_is() -> None:
    names = list(STEPS)
    for name in names:
        at = names.index(name)
        order = [*names[:at], "reported", *names[at:-1]]
        events = [*RELATION, *(event for step in order for event in STEPS[step])]
        ahead = run(events).verdict.ahead
        assert bool(ahead) == (name != "reported")
        assert all(cut.event < len(events) - 1 for cut in ahead)


def test_an_lsn_beyond_the_commit_is_ahead_and_an_earlier_one_is_not() -> None:
    assert len(run([*trace(), *flush(8)]).verdict.ahead) == 1
    assert run([*trace(), *flush(6)]).verdict.ahead == []
    early = [*flush(1), *trace()]
    assert len(run(early).verdict.ahead) == len(early) - 2  # until the last folder was forced


def test_an_advance_by_sql_counts_as_a_report() -> None:
    assert len(run([*trace(), Event("advance", first=8)]).verdict.ahead) == 1


def test_an_fsync_covers_what_was_there_when_it_began() -> None:
    begin, end = forced(f"{LOG}/.tmp", 2)
    late = [begin, Event("write", thread=2, inode=2, first=0, second=10, path=f"{LOG}/.tmp"), end]
    names = [name for name in STEPS if name != "written"]
    opened = STEPS["written"][:1]
    events = [*RELATION]
    for name in names:
        events += [*opened, *late] if name == "entry is forced" else STEPS[name]
    assert run(events).verdict.ahead
    assert not run([*events[:-1], *forced(COMMIT, 2), *flush(7)]).verdict.ahead


def test_a_name_made_while_its_folder_is_forced_is_not_durable() -> None:
    begin, end = forced(LOG)
    events = [*trace("linked", "log is forced", "reported"), begin, *STEPS["linked"], end, *flush(7)]
    assert run(events).verdict.ahead


def test_a_file_that_changes_after_it_was_forced_is_not_durable() -> None:
    # by the name of the temporary file that it was linked from
    changed = Event("write", thread=2, inode=2, first=10, second=1, path=f"{LOG}/.tmp (deleted)")
    verdict = run([*trace(), changed]).verdict
    assert len(verdict.ahead) == 1
    for last in (Event("truncate", inode=1, first=0, path=DATA), Event("remove", path=DATA)):
        assert len(run([*trace(), last]).verdict.ahead) == 1
    assert len(run([*trace(), Event("rename", path=TABLE, other="/r/elsewhere")]).verdict.ahead) == 1


def test_a_file_that_is_shorter_than_its_log_entry_is_not_whole() -> None:
    events = [e._replace(second=99) if e.kind == "write" and e.inode == 1 else e for e in trace()]
    assert run(events).verdict.ahead


def test_a_hole_in_the_log_hides_what_follows() -> None:
    second = Entry(f"{LOG}/1.json", 10, {}, lsn=9)
    logs = Logs((*LOGS.changes, second), LOGS.relations)
    commit = [
        Event("open", inode=3, path=second.path),
        Event("write", inode=3, second=10, path=second.path),
        *forced(second.path, 3),
        *forced(LOG),
        *flush(9),
    ]
    assert run([*trace(), *commit], logs).verdict.position == 9
    broken = run([*trace("data are forced", "reported"), *commit], logs).verdict
    assert [(cut.flushed, cut.position) for cut in broken.ahead] == [(9, 0)]


def test_rows_need_the_relation_versions_that_they_name() -> None:
    without = [event for event in trace() if event.inode != 9]
    assert run(without).verdict.ahead
    unforced = [event for event in trace() if not (event.inode == 9 and event.kind in ("begin", "force"))]
    assert run(unforced).verdict.ahead


def test_a_commit_needs_what_was_prepared_before_it_and_not_what_is_later() -> None:
    prepared = Entry("/r/p.json", 3)
    logs = Logs(LOGS.changes, LOGS.relations, (prepared,))
    commit = [
        Event("open", inode=4, path=prepared.path),
        Event("write", inode=4, second=3, path=prepared.path),
    ]
    assert run([*commit, *trace()], logs).verdict.ahead
    assert run([*commit, *forced(prepared.path, 4), *trace()], logs).verdict.ahead == []
    assert run([*trace(), *commit], logs).verdict.ahead == []


def test_an_inode_that_is_used_again_is_another_file() -> None:
    disk = Disk(ROOT)
    for event in (
        Event("open", inode=1, path="/r/a"),
        Event("write", inode=1, second=5, path="/r/a"),
        *forced("/r/a", 1),
        Event("remove", path="/r/a"),
        Event("open", inode=1, path="/r/b"),
        Event("write", inode=1, second=6, path="/r/b"),
        *forced(ROOT),
    ):
        disk.apply(event)
    assert disk.sizes() == {"b": 6}
    assert not disk.keeps("/r/b", 6)
    assert disk.keeps_name("/r/b")


def test_a_folder_is_moved_with_what_is_in_it() -> None:
    disk = Disk(ROOT)
    for event in (
        Event("mkdir", path="/r/a"),
        Event("open", inode=1, path="/r/a/f"),
        *forced("/r/a"),
        Event("rename", path="/r/a", other="/r/b"),
    ):
        disk.apply(event)
    assert disk.sizes() == {"b/f": 0}
    assert not disk.keeps("/r/b/f", 0)
    for event in forced(ROOT):
        disk.apply(event)
    assert disk.keeps("/r/b/f", 0)
