"""The fingerprint of a silver table, as the sum of those of its data files: each file is read once.

A file's fingerprint is recorded when it is first needed. So a later sum reads only files that were written
since, and those with rows that waiting changes of bronze touch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pipeline.delta.sql import now
from pipeline.delta.table import Lake
from pipeline.delta.table_log import Snapshot
from pipeline.errors import LakeError
from pipeline.fingerprint import Fingerprint, total
from pipeline.metadata.fingerprints import FileFingerprint, Fingerprints, HashedColumn, TableFingerprint
from pipeline.postgres.snapshot.hashed_rows import RowHash
from pipeline.silver.compare.compared_rows import DatasetRows, fields_of
from pipeline.silver.compare.row_hashes import SilverColumn, SilverHashes
from pipeline.table_name import TableName


class FileCounts(NamedTuple):
    """How many files were read, and of how many the recorded fingerprint was taken."""

    read: int
    recorded: int


class FileFingerprints:
    """The fingerprints of the data files of a lake's tables; `counts` says how many files were read."""

    def __init__(self, lake: Lake) -> None:
        self._table = Fingerprints(lake)
        self._recorded = dict(self._table.read())
        self._new: dict[TableName, TableFingerprint] = {}
        self._read = self._kept = 0

    @property
    def counts(self) -> FileCounts:
        return FileCounts(self._read, self._kept)

    def record(self) -> None:
        """Record what was read, in one commit."""
        new, self._new = self._new, {}
        self._table.record(new.values())

    def of_rows(self, rows: DatasetRows, columns: Sequence[SilverColumn]) -> Fingerprint:
        """Return the fingerprint of the rows of a version with its overlay."""
        overlay = rows.overlay
        if overlay is None or overlay.is_empty:
            return self._of_files(rows, columns, {})
        if overlay.is_replaced:
            return fingerprint_of(rows, columns)
        changed = {key: overlay.files[key] for key in overlay.gone}
        self._read += len(changed)
        with_changes = rows.of_files(changed, replace(overlay, files=changed))
        return self._of_files(rows, columns, changed) + fingerprint_of(with_changes, columns)

    def _of_files(
        self, rows: DatasetRows, columns: Sequence[SilverColumn], without: Mapping[str, object]
    ) -> Fingerprint:
        """Return the sum of the files of a version, without some; record each that is known."""
        form = _form(rows, columns)
        before = self._recorded.get(form.name)
        known = before.by_file if before is not None and before.holds_for(form) else {}
        files: list[FileFingerprint] = []
        for key, add in rows.snapshot.files.items():
            found = known.get(key)
            if key not in without and found is None:
                one = fingerprint_of(rows.of_files({key: add}), columns)
                found = FileFingerprint(one.rows, one.first, one.second, key)
                self._read += 1
            elif key not in without:
                rows.require_file(add)
                self._kept += 1
            if found is not None:
                files.append(found)
        record = replace(form, files=tuple(files))
        if before is None or (before.files, before.columns) != (record.files, record.columns):
            self._recorded[form.name] = self._new[form.name] = record
        return total(each for each in files if each.file not in without)


class FileSums:
    """Silver's side of a comparison: the sum of all rows is that of its files; everything else is read."""

    def __init__(
        self, files: FileFingerprints, rows: DatasetRows, columns: Sequence[SilverColumn], key: Sequence[int]
    ) -> None:
        self._files = files
        self._rows = rows
        self._columns = columns
        self._hashes = SilverHashes(rows, columns, key)

    def sums(self, digits: int, within: Sequence[str] | None = None) -> Mapping[str, Fingerprint]:
        """Return the sums of each range of so many digits, of all rows or of those within some ranges."""
        if digits or within is not None:
            return self._hashes.sums(digits, within)
        found = self._files.of_rows(self._rows, self._columns)
        return {"": found} if found.rows else {}

    def rows(self, within: Sequence[str]) -> Sequence[RowHash]:
        """Return the rows of some ranges."""
        return self._hashes.rows(within)


def fingerprint_of(rows: DatasetRows, columns: Sequence[SilverColumn]) -> Fingerprint:
    """Read rows, and return their fingerprint."""
    return SilverHashes(rows, columns, ()).sums(0).get("", Fingerprint())


def columns_of_record(record: TableFingerprint, snapshot: Snapshot) -> list[SilverColumn]:
    """Return the columns that a record hashes, by the names that they have in a version.

    Raises LakeError if the version lacks one.
    """
    names = {physical: name for physical, (name, _) in fields_of(snapshot).items()}
    missing = [column.physical_name for column in record.columns if column.physical_name not in names]
    if missing:
        raise LakeError(f"The table has no column {', '.join(missing)} any more, which was hashed.")
    return [SilverColumn(names[each.physical_name], each.ddl, each.delimiter) for each in record.columns]


def _form(rows: DatasetRows, columns: Sequence[SilverColumn]) -> TableFingerprint:
    """Return a record of a version without files: how its rows are hashed."""
    physical = {name: key for key, (name, _) in fields_of(rows.snapshot).items()}
    return TableFingerprint(
        *rows.registered.name,
        table_id=rows.snapshot.table_id,
        version=rows.snapshot.version,
        columns=tuple(HashedColumn(physical[each.name], each.ddl, each.delimiter) for each in columns),
        fields=tuple(physical.values()),
        condition=rows.condition,
        files=(),
        recorded_at=now(),
    )
