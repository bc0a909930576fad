"""The rows of a copy that an adopted Delta table already has, which are not read from the source."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from pipeline.bronze.copy_states import Chunk
from pipeline.postgres.key_conditions import KeyCondition

_NO_RELATION = 0  # the oid of no table


class AdoptedRows(Protocol):
    """The rows of a Delta table that are equal to the source under a snapshot, in parts."""

    path: str  # of the Delta table
    version: int
    part_count: int
    source_rows: int  # that the source has under the snapshot
    rest: KeyCondition | None  # selects the other rows of the source, None if there are none

    def read(self, part: int) -> pa.Array:
        """Return the rows of a part: the texts of their values, in the order of the published columns."""

    def close(self) -> None:
        """Remove the working files."""


def adopted_chunks(rows: AdoptedRows) -> tuple[Chunk, ...]:
    """Return the chunks of a copy that are parts of an adopted table; at least one.

    No file node belongs to them, so such a copy is never resumed under another snapshot.
    """
    return tuple(Chunk(_NO_RELATION, 0, part, part + 1) for part in range(max(1, rows.part_count)))


def is_adopted(chunk: Chunk) -> bool:
    """Return whether a chunk is a part of an adopted table."""
    return chunk.relation_id == _NO_RELATION
