"""Erase rows of `bronze/changes`: find the keys of a subject, and write the files that have its rows again.

A commit replaces these files by files without the rows. It changes no offset, and readers that follow the
table skip it (`dataChange` is false). It records how many changes it erased by the LSN at which they ended,
and how many copied rows by copy, so that `pgdelta audit` still knows how many rows bronze has to have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.erasures import ERASED, ERASED_COPIES, FORGET, FORGET_ID
from pipeline.bronze.log import Bronze
from pipeline.bronze.rewritten_files import read_changes, replace_files, write_changes
from pipeline.bronze.schema import CHANGES
from pipeline.delta.data_files import DataFile
from pipeline.delta.native_commit import removing_uncommitted
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import data_file
from pipeline.reading.row_keys import ForgottenTable, SubjectRows, close_keys


@dataclass(slots=True)
class ErasedRows:
    """What is erased from one place; `changes` are counted by end LSN, `copies` by the id of the copy.

    `commit_lsns` are those of the erased rows.
    """

    rows: int = 0
    files: int = 0
    byte_count: int = 0  # of the files that had the rows
    changes: Counter[int] = field(default_factory=Counter)
    copies: Counter[int] = field(default_factory=Counter)
    commit_lsns: set[int] = field(default_factory=set)

    def add(self, rows: pa.Table) -> None:
        """Count rows of `changes`."""
        self.rows += rows.num_rows
        for op, gid, end_lsn, copy_id, commit_lsn in zip(
            *(rows.column(n).to_pylist() for n in ("op", "gid", "end_lsn", "copy_id", "commit_lsn")),
            strict=True,
        ):
            self.commit_lsns.add(commit_lsn)
            if op == "R":
                self.copies[copy_id] += 1
            elif gid is None:
                self.changes[end_lsn] += 1


_FACTS = ("op", "gid", "end_lsn", "copy_id", "commit_lsn")


def find_keys(bronze: Bronze, table: ForgottenTable, keys: Sequence[str]) -> set[str]:
    """Return the keys with all those that key changes in `changes` or `prepared` connect with them."""
    changes: set[tuple[str, str]] = set()
    subject = SubjectRows(table)
    for place in (bronze.changes, bronze.prepared):
        for add in _files(place):
            for rows in _row_groups(place, add, SubjectRows.COLUMNS):
                changes |= subject.key_changes(rows)
    return close_keys(keys, changes)


def count_rows(place: LakeTable, subject: SubjectRows) -> ErasedRows:
    """Return what is to be erased from the newest version of `changes` or `prepared`."""
    found = ErasedRows()
    for add in _files(place):
        _count_file(place, add, subject, found)
    return found


def erase_rows(bronze: Bronze, subject: SubjectRows, forget_id: str) -> ErasedRows:
    """Erase the rows from `changes` in one commit, and return what was erased."""
    place = bronze.changes
    snapshot = place.snapshot()
    found = ErasedRows()
    replaced: list[dict[str, Any]] = []
    files: list[DataFile] = []
    with removing_uncommitted(place.folder, snapshot.version, files):
        for add in _files(place):
            if _count_file(place, add, subject, found):
                replaced.append(add)
                groups = _row_groups(place, add, CHANGES.names)
                kept = (rows.filter(pc.invert(subject.mask(rows))) for rows in groups)
                files += write_changes(place.folder, kept)
        if replaced:
            metadata = {
                "operation": FORGET,
                FORGET_ID: forget_id,
                ERASED: sorted(found.changes.items()),
                ERASED_COPIES: sorted(found.copies.items()),
            }
            replace_files(place, snapshot, replaced, files, found.rows, metadata)
    return found


def _count_file(place: LakeTable, add: dict[str, Any], subject: SubjectRows, found: ErasedRows) -> bool:
    """Add what a file has of the subject; return whether it has any."""
    before = found.rows
    for rows in _row_groups(place, add, (*SubjectRows.COLUMNS, *_FACTS)):
        found.add(rows.filter(subject.mask(rows)))
    if found.rows == before:
        return False
    found.files += 1
    found.byte_count += add["size"]
    return True


def _files(place: LakeTable) -> Iterator[dict[str, Any]]:
    """Yield the files of the newest version."""
    yield from map(dict, place.snapshot().files.values())


def _row_groups(place: LakeTable, add: dict[str, Any], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a file, a row group at a time; columns that it does not have are NULL."""
    assert place.local_path is not None
    yield from read_changes(data_file(place.local_path, add["path"]), columns)
