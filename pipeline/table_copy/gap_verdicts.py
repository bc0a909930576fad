"""Results of comparing a table with the source, after a gap, a rewrite or for adoption, and the comparer.

The rows of an adopted table that are equal to the source become chunks of its copy without being read there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pipeline.bronze.copy_states import Adoption, Chunk, CopyHistory
from pipeline.key_ranges import KeyRange
from pipeline.postgres.key_conditions import KeyCondition
from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from pipeline.units import format_count

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


@dataclass(frozen=True, slots=True)
class GapVerdict:
    """A table is equal to the source, or differs in some keys, or is to be copied completely.

    `sentence` says so. A table that is not `is_whole` and has no key ranges is equal.
    """

    sentence: str
    key_ranges: tuple[KeyRange, ...] = ()
    is_whole: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether nothing is to be copied."""
        return not self.key_ranges and not self.is_whole

    @classmethod
    def equal(cls, rows: int) -> GapVerdict:
        """Return the verdict on a table of so many rows without a difference."""
        return cls(all_equal(rows))

    @classmethod
    def partial(cls, rows: int, keys: int, ranges: tuple[KeyRange, ...]) -> GapVerdict:
        """Return the verdict on a table with so many rows at the source, if some keys differ."""
        copied = f"{format_count(len(ranges), 'key range')} copied"
        differing = format_count(keys, "key", "differs", "differ")
        return cls(f"{differing} of {format_count(rows, 'row')}; {copied}.", ranges)

    @classmethod
    def whole(cls, reason: str) -> GapVerdict:
        """Return the verdict on a table that is copied completely, for a reason."""
        return cls(f"All rows are copied. {reason}", is_whole=True)


def all_equal(rows: int) -> str:
    """Return the sentence about a table of so many rows without a difference."""
    return f"All rows are equal to the source ({format_count(rows, 'row')}); none is copied."


class TableComparer(Protocol):
    """Compares silver tables with the source after a gap or a rewrite, and Delta tables that are adopted.

    A table that was rewritten comes with the LSN before which it was; with None, it is compared after a gap.
    """

    def waiting(self, names: Mapping[TableName, LSN | None], history: CopyHistory) -> Mapping[TableName, str]:
        """Return the tables that cannot be compared yet, each with a sentence."""

    def compare(
        self, keeper: SnapshotKeeper, names: Mapping[TableName, LSN | None], history: CopyHistory
    ) -> Mapping[TableName, GapVerdict]:
        """Return the verdict on each table under the keeper's snapshot."""

    def adopt(
        self, keeper: SnapshotKeeper, name: TableName, adoption: Adoption
    ) -> tuple[str, AdoptedRows | None]:
        """Return what a comparison with a Delta table found, and its rows that are equal to the source.

        There are no such rows if all are to be copied. Raises LakeError if the table cannot be adopted.
        """
