"""Whether a copy that was cut off may go on with what it has read."""

from __future__ import annotations

import pytest

from pipeline.bronze.copy_states import READING, Chunk, CopyState, Gap, SnapshotChunks
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.chunks import is_outdated
from pipeline.table_name import TableName

ENTRY = 7


def state(*, membership: int | None = ENTRY, requests: tuple[str, ...] = ("asked",)) -> CopyState:
    """Return a copy that was cut off, whose first snapshot is at 100."""
    pages = (Chunk(1, 1, 0, 10),)
    snapshots = [SnapshotChunks(LSN(100), (), 0, pages), SnapshotChunks(LSN(200), (), 1, pages)]
    return CopyState(1, TableName("public", "t"), READING, 1, membership, 1, snapshots, requests)


@pytest.mark.parametrize("requests", [(), ("asked",)])
def test_it_goes_on_where_nothing_came_between(requests: tuple[str, ...]) -> None:
    assert not is_outdated(state(), ENTRY, requests, [Gap(LSN(50), LSN(101), "")])


@pytest.mark.parametrize("membership", [8, None])
def test_it_begins_anew_where_the_table_left_and_came_back(membership: int | None) -> None:
    assert is_outdated(state(), membership, (), [])
    assert is_outdated(state(membership=membership), ENTRY, (), [])


def test_it_begins_anew_where_somebody_asked_since() -> None:
    assert is_outdated(state(), ENTRY, ("asked", "asked later"), [])
    assert is_outdated(state(requests=()), ENTRY, ("asked",), [])


def test_it_begins_anew_behind_a_gap() -> None:
    gaps = [Gap(LSN(10), LSN(50), ""), Gap(LSN(150), LSN(160), "")]
    assert is_outdated(state(), ENTRY, (), gaps)
    assert not is_outdated(state(), ENTRY, (), gaps[:1])
