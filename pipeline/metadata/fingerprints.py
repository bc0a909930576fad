"""`_pgdelta/fingerprints`: the fingerprint of each data file of a silver table, once it has been read whole.

One row a table. A data file never changes, so what was recorded holds as long as the table has the file and
its rows are hashed in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pipeline.delta.record_table import RecordTable, TableRecord
from pipeline.delta.table import Lake
from pipeline.fingerprint import Fingerprint
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class HashedColumn:
    """A column whose values are hashed: its physical name, its type, the delimiter of its array elements."""

    physical_name: str
    ddl: str
    delimiter: str


@dataclass(frozen=True, slots=True)
class FileFingerprint(Fingerprint):
    """That of a data file; `file` is its path as the log has it, with its deletion vector."""

    file: str = ""


@dataclass(frozen=True, slots=True)
class TableFingerprint(TableRecord):
    """The files of one version of a table, whose id in Delta is `table_id`.

    `columns` are hashed, in this order; `fields` are the physical names of all columns that the table had.
    Rows for which `condition`, SQL of DuckDB, is not true are left out.
    """

    table_id: str
    version: int
    columns: tuple[HashedColumn, ...]
    fields: tuple[str, ...]
    condition: str
    files: tuple[FileFingerprint, ...]
    recorded_at: datetime

    @property
    def by_file(self) -> Mapping[str, FileFingerprint]:
        return {each.file: each for each in self.files}

    def holds_for(self, other: TableFingerprint) -> bool:
        """Return whether the files have the same hashes in the form of another record.

        They do with columns that were added at the end since: the files do not have them.
        """
        count = len(self.columns)
        return (
            self.table_id == other.table_id
            and self.condition == other.condition
            and self.columns == other.columns[:count]
            and not any(column.physical_name in self.fields for column in other.columns[count:])
        )


class Fingerprints:
    """Reads and writes `_pgdelta/fingerprints`."""

    def __init__(self, lake: Lake) -> None:
        self._records = RecordTable(lake, "fingerprints", TableFingerprint)

    def read(self) -> Mapping[TableName, TableFingerprint]:
        """Return the record of each table."""
        return {record.name: record for record in self._records.read()}

    def record(self, records: Iterable[TableFingerprint]) -> None:
        """Record these in place of earlier ones of the same tables, in one commit."""
        self._records.put(records, key=lambda record: record.name)
