"""Erase a subject from the pipeline's own tables: misfits, differences, fingerprints, requests and copies.

Misfits and differences have keys as JSON. Requests and copies have them as key ranges: a range that is one of
the keys is taken out. A request of such ranges only is removed, and a copy of such ranges only no longer
counts, which is right because none of its rows remain. The fingerprint of a file of few rows would show
whether a guess is right, so those of the table are removed; they are computed again when they are needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.bronze.copy_states import ABANDONED, COMPLETE, CopyHistory
from pipeline.bronze.erasures import FORGET
from pipeline.delta.data_files import DataFile
from pipeline.delta.native_commit import Action, Operation, remove_action, removing_uncommitted
from pipeline.delta.native_write import rows_file
from pipeline.delta.rows import read_rows
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import OURS
from pipeline.errors import LakeError
from pipeline.reading.row_keys import ForgottenTable

Transform = Callable[[pa.Table], tuple[int, pa.Table]]
"""Return how many rows of a table have the subject's keys, and the table without these keys."""

_NO_RANGE: dict[str, list[str]] = {
    "first": [],
    "last": [],
}  # a copy without ranges would be one of the whole table
_ERASED = "Its keys were erased by pgdelta forget."


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """A table of the pipeline, and how the subject's keys are erased from it."""

    name: str
    table: LakeTable
    transform: Transform


def record_places(
    lake: Lake,
    copies: LakeTable,
    table: ForgottenTable,
    keys: AbstractSet[str],
    commit_lsns: AbstractSet[int],
) -> list[RecordPlace]:
    """Return the tables of the pipeline that may have one of the keys.

    `commit_lsns` are those of the erased changes: by them misfits are found whose key is NULL.
    """
    ranges = _Ranges(table, keys)
    by_json = _by_json(table, keys, commit_lsns)
    rows = copies.rows().to_pylist() if copies.exists() else []
    emptied = {row["copy_id"] for row in rows if ranges.are_all(row)}
    places = (
        RecordPlace("_pgdelta/misfits", lake.table("_pgdelta", "misfits"), by_json),
        RecordPlace("_pgdelta/differences", lake.table("_pgdelta", "differences"), by_json),
        RecordPlace("_pgdelta/fingerprints", lake.table("_pgdelta", "fingerprints"), _of_table(table)),
        RecordPlace("_pgdelta/requests", lake.table("_pgdelta", "requests"), ranges.of_requests),
        RecordPlace("bronze/copies", copies, lambda found: ranges.of_copies(found, emptied)),
    )
    return [place for place in places if place.table.exists()]


def check_requests(history: CopyHistory, table: ForgottenTable, keys: AbstractSet[str]) -> None:
    """Raise LakeError if a request or a copy has one of the keys in a way that cannot be erased."""
    ranges = _Ranges(table, keys)
    waiting = history.open_requests
    for request in (each for name in table.names for each in waiting.get(name, [])):
        if any(ranges.is_one(each.first, each.last) for each in request.key_ranges):
            raise LakeError(
                f"A partial resync of {request.name} that has one of the keys waits for ingest. Run pgdelta "
                "ingest and pgdelta apply, then pgdelta forget again."
            )
    found = [
        each for request in history.requests if request.name in table.names for each in request.key_ranges
    ]
    found += [
        each for name in table.names for state in history.states.get(name, ()) for each in state.key_ranges
    ]
    if any(ranges.is_bound(each.first, each.last) for each in found):
        raise LakeError(
            f"A partial resync of {table.name} had one of the keys as the first or last key of a range. "
            "pgdelta forget cannot take it out of the records of copies. Nothing was erased."
        )


class _Ranges:
    """Key ranges as requests and copies record them."""

    def __init__(self, table: ForgottenTable, keys: AbstractSet[str]) -> None:
        self._table = table
        self._keys = keys
        self._width = len(table.key)

    def is_one(self, first: Sequence[str], last: Sequence[str]) -> bool:
        """Return whether a range is one of the keys."""
        is_single = list(first) == list(last) and len(first) == self._width
        return is_single and self._is_key(first)

    def is_bound(self, first: Sequence[str], last: Sequence[str]) -> bool:
        """Return whether one of the keys is a bound of a range of other keys."""
        if list(first) == list(last):
            return False
        whole = (each for each in (first, last) if len(each) == self._width)
        return any(map(self._is_key, whole))

    def _is_key(self, texts: Sequence[str]) -> bool:
        try:
            return self._table.key_of(texts) in self._keys
        except ValueError:  # no value of the type that the column has now
            return False

    def rest(self, row: Mapping[str, Any]) -> list[dict[str, list[str]]] | None:
        """Return the ranges of a row that are none of the keys."""
        ranges = row["key_ranges"]
        if ranges is None or (row["schema_name"], row["table_name"]) not in self._table.names:
            return ranges  # type: ignore[no-any-return]
        return [each for each in ranges if not self.is_one(each["first"], each["last"])]

    def are_all(self, row: Mapping[str, Any]) -> bool:
        """Return whether all ranges of a row are among the keys."""
        return bool(row["key_ranges"]) and not self.rest(row)

    def of_requests(self, rows: pa.Table) -> tuple[int, pa.Table]:
        return self._changed(
            rows, lambda row: None if self.are_all(row) else {**row, "key_ranges": self.rest(row)}
        )

    def of_copies(self, rows: pa.Table, emptied: AbstractSet[int]) -> tuple[int, pa.Table]:
        def change(row: dict[str, Any]) -> dict[str, Any]:
            row = {**row, "key_ranges": [_NO_RANGE] if self.are_all(row) else self.rest(row)}
            if row["copy_id"] in emptied and row["state"] == COMPLETE:
                row |= {"state": ABANDONED, "sentence": _ERASED}
            return row

        return self._changed(rows, change)

    @staticmethod
    def _changed(
        rows: pa.Table, change: Callable[[dict[str, Any]], dict[str, Any] | None]
    ) -> tuple[int, pa.Table]:
        before = rows.to_pylist()
        after = [change(row) for row in before]
        count = sum(one != other for one, other in zip(before, after, strict=True))
        kept = [row for row in after if row is not None]
        return count, pa.Table.from_pylist(kept, schema=rows.schema)


def _by_json(table: ForgottenTable, keys: AbstractSet[str], commit_lsns: AbstractSet[int]) -> Transform:
    names = {tuple(name) for name in table.names}

    def has_key(row: Mapping[str, Any]) -> bool:
        if (row["schema_name"], row["table_name"]) not in names:
            return False
        found = table.key_in_json(row["key"])
        return row["lsn"] in commit_lsns if found is None else found in keys

    def transform(rows: pa.Table) -> tuple[int, pa.Table]:
        found = rows.select(["schema_name", "table_name", "key", "lsn"]).to_pylist()
        kept = rows.filter(pa.array([not has_key(row) for row in found], pa.bool_()))
        return rows.num_rows - kept.num_rows, kept

    return transform


def _of_table(table: ForgottenTable) -> Transform:
    names = {tuple(name) for name in table.names}

    def transform(rows: pa.Table) -> tuple[int, pa.Table]:
        found = zip(*(rows.column(name).to_pylist() for name in ("schema_name", "table_name")), strict=True)
        kept = rows.filter(pa.array([name not in names for name in found], pa.bool_()))
        return rows.num_rows - kept.num_rows, kept

    return transform


def count_records(place: RecordPlace) -> int:
    """Return how many rows of the newest version have one of the keys."""
    assert place.table.local_path is not None
    return place.transform(read_rows(place.table.local_path, place.table.snapshot()))[0]


def erase_records(place: RecordPlace, forget_id: str) -> tuple[int, int, int]:
    """Erase the keys in one commit; return how many rows had one, in how many files of how many bytes."""
    folder, snapshot = place.table.folder, place.table.snapshot()
    actions: list[Action] = []
    files: list[DataFile] = []
    total = size = 0
    with removing_uncommitted(folder, snapshot.version, files):
        for key, add in snapshot.files.items():
            count, kept = place.transform(read_rows(str(folder), snapshot.with_files({key: add})))
            if count:
                total, size = total + count, size + add["size"]
                actions.append(remove_action(add))
                if kept.num_rows:
                    files.append(rows_file(folder, snapshot, kept))
        if actions:
            metadata = json.dumps({OURS: 1, "operation": FORGET, "forget_id": forget_id})
            operation = Operation("DELETE", {"predicate": "[]"}, {"numDeletedRows": str(total)}, metadata)
            added = [file.action() for file in files]
            place.table.commit(snapshot, [*actions, *added], {}, operation)
    return total, len(actions), size
