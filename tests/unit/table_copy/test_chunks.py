"""Whether an interrupted copy may be resumed with what it has read."""

import pytest

from pipeline.bronze.copy_states import READING, Chunk, CopyState, Gap, SnapshotChunks
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.planner import is_outdated
from pipeline.table_name import TableName

ENTRY = 7


def state(*, membership: int | None = ENTRY, requests: tuple[str, ...] = ("requested",)) -> CopyState:
    """Return an interrupted copy whose first snapshot is at 100."""
    chunks = (Chunk(1, 1, 0, 10),)
    snapshots = [SnapshotChunks(LSN(100), (), 0, chunks), SnapshotChunks(LSN(200), (), 1, chunks)]
    return CopyState(1, TableName("public", "t"), READING, 1, membership, 1, snapshots, requests)


@pytest.mark.parametrize("requests", [(), ("requested",)])
def test_it_is_resumed_if_nothing_came_between(requests: tuple[str, ...]) -> None:
    assert not is_outdated(state(), ENTRY, requests, [Gap(LSN(50), LSN(101), "")])


@pytest.mark.promise("interrupted copies")
@pytest.mark.parametrize("membership", [8, None])
def test_it_restarts_if_the_table_left_and_came_back(membership: int | None) -> None:
    assert is_outdated(state(), membership, (), [])
    assert is_outdated(state(membership=membership), ENTRY, (), [])


def test_it_restarts_if_a_copy_was_requested_since() -> None:
    assert is_outdated(state(), ENTRY, ("requested", "requested later"), [])
    assert is_outdated(state(requests=()), ENTRY, ("requested",), [])


def test_it_restarts_after_a_gap() -> None:
    gaps = [Gap(LSN(10), LSN(50), ""), Gap(LSN(150), LSN(160), "")]
    assert is_outdated(state(), ENTRY, (), gaps)
    assert not is_outdated(state(), ENTRY, (), gaps[:1])
