"""What capture and copies know of each other: offsets, and names that the source has changed."""

import threading

from pipeline.bronze.relations import relation_version
from pipeline.postgres.publication import Membership
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Relation
from pipeline.table_copy.capture_state import MAX_SESSIONS, CaptureState
from pipeline.table_name import TableName

PUBLISHED = {TableName("s2", "t"): Membership(500, 7), TableName("s2", "u"): Membership(501, 8)}


def described(*schemas: str) -> CaptureState:
    state = CaptureState()
    for schema in schemas:
        state.describe(relation_version(Relation(500, schema, "t", "d", ()), None, LSN(1)))
    return state


def test_a_table_has_its_old_name_until_a_session_describes_it_again() -> None:
    state = described("s")
    assert state.renamed(PUBLISHED) == {TableName("s2", "t"): TableName("s", "t")}
    state.forget_names()
    assert state.renamed(PUBLISHED) == {}
    assert described("s", "s2").renamed(PUBLISHED) == {}


def test_another_session_is_due_once_bronze_is_beyond_the_renaming() -> None:
    state = described("s")
    assert not state.is_session_due(LSN(100))
    begun: list[bool] = []
    requesting = threading.Thread(target=lambda: begun.append(state.request_session(LSN(50))))
    requesting.start()
    while not state.is_session_due(LSN(50)):
        pass
    assert not state.is_session_due(LSN(49))
    state.start_session()
    requesting.join()
    assert begun == [True]
    assert state.renamed(PUBLISHED) == {}
    state.stop()
    assert not state.request_session(LSN(60))


def test_a_name_that_stays_old_does_not_request_sessions_for_ever() -> None:
    state = described("s")
    requested = [
        state.may_request_session(500, TableName("s2", "t"), TableName("s", "t"))
        for _ in range(MAX_SESSIONS + 1)
    ]
    assert requested == [True] * MAX_SESSIONS + [False]
    assert state.may_request_session(500, TableName("s3", "t"), TableName("s", "t"))


def test_a_copy_waits_until_bronze_is_beyond_an_lsn_or_the_run_stops() -> None:
    state = CaptureState()
    state.set_captured_offset(LSN(100))
    assert state.wait_past(LSN(99))
    found: list[bool] = []
    waiting = [
        threading.Thread(target=lambda lsn=lsn: found.append(state.wait_past(lsn)))
        for lsn in (LSN(100), LSN(101))
    ]
    for thread in waiting:
        thread.start()
    state.set_captured_offset(LSN(101))
    waiting[0].join()
    state.stop()
    waiting[1].join()
    assert found == [True, False]


def test_what_a_copy_requires_only_grows_and_is_known_to_capture_at_once() -> None:
    state, seen = CaptureState(), list[LSN]()
    state.interrupt = lambda: seen.append(state.required_lsn)
    for lsn in (LSN(50), LSN(70), LSN(60)):
        state.require(lsn)
    assert state.required_lsn == LSN(70)
    assert seen == [LSN(50), LSN(70)]
