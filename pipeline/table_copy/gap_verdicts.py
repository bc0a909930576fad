"""Results of comparing a table with the source, after a gap, a rewrite or for adoption, and the comparer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pipeline.bronze.adoptions import Adoption
from pipeline.bronze.copy_states import CopyHistory
from pipeline.key_ranges import KeyRange
from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.adopted_rows import AdoptedRows
from pipeline.table_name import TableName
from pipeline.units import format_count


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
        return cls(f"All {format_count(rows, 'row')} are equal to the source; none is copied.")

    @classmethod
    def partial(cls, rows: int, keys: int, ranges: tuple[KeyRange, ...]) -> GapVerdict:
        """Return the verdict on a table with so many rows at the source, if some keys differ."""
        copied = f"{format_count(len(ranges), 'key range')} copied"
        return cls(f"{format_count(keys, 'key')} differ of {format_count(rows, 'row')}; {copied}.", ranges)

    @classmethod
    def whole(cls, reason: str) -> GapVerdict:
        """Return the verdict on a table that is copied completely, for a reason."""
        return cls(f"All rows are copied. {reason}", is_whole=True)


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
