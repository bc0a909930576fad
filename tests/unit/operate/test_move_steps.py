"""The steps of a move, in every order in which a command can end early."""

import pytest

from pipeline.operate.move_source import MoveFacts, MoveStep, next_step, wal_file_after
from pipeline.protocol.lsn import LSN


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (MoveFacts(False, True, False, False), MoveStep.DRAIN),
        (MoveFacts(False, True, False, True), MoveStep.SWITCH),
        (MoveFacts(False, True, True, True), MoveStep.SWITCH),
        (MoveFacts(False, False, False, False), MoveStep.SWITCH),
        (MoveFacts(True, True, False, True), MoveStep.COMPARE),
        (MoveFacts(True, False, False, False), MoveStep.DONE),
    ],
)
def test_the_next_step(facts: MoveFacts, step: MoveStep) -> None:
    assert next_step(facts) is step


@pytest.mark.parametrize(
    ("lsn", "megabytes", "timeline", "name"),
    [
        ("0/1500000", 16, 1, "000000010000000000000003"),
        ("1/FF000000", 16, 2, "000000020000000200000001"),
        ("1/FF000000", 1024, 1, "000000010000000200000001"),
    ],
)
def test_the_wal_file_begins_after_the_lsn(lsn: str, megabytes: int, timeline: int, name: str) -> None:
    size = megabytes << 20
    assert wal_file_after(LSN.parse(lsn), size, timeline) == name
    segment = int(name[8:16], 16) * (2**32 // size) + int(name[16:], 16)
    assert segment * size > LSN.parse(lsn)
