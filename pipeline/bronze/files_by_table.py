"""The files of `bronze/changes` by table, from the statistics in the log, so that no table looks at all."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.bronze.changes_scan import MAX_LSN, bounds_of, only_table
from pipeline.delta.table_log import Snapshot
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

_File = tuple[int, Mapping[str, Any]]
"""The number of a file in the log, and its `add` action."""


class FilesByTable:
    """The files of one version: those that have rows of one table only by its name, all others by LSN."""

    def __init__(self, adds: Iterable[Mapping[str, Any]]) -> None:
        self.has_vectors = False  # whether a file has a deletion vector
        self._of_table: dict[TableName, list[_File]] = {}
        others: list[tuple[int, int, Mapping[str, Any]]] = []
        for number, add in enumerate(adds):
            self.has_vectors = self.has_vectors or bool(add.get("deletionVector"))
            low, high = bounds_of(add)
            name = only_table(low, high)
            if name is None:
                others.append((int(high.get("end_lsn", MAX_LSN)), number, add))
            else:
                self._of_table.setdefault(name, []).append((number, add))
        others.sort(key=lambda other: other[:2])
        self._last_lsns = [last_lsn for last_lsn, _, _ in others]
        self._others: list[_File] = [(number, add) for _, number, add in others]

    def that_may_have(self, name: TableName, first_lsn: LSN) -> list[Mapping[str, Any]]:
        """Return all files that may have rows of a table that end at or after an LSN, as the log orders them.

        Some of them may have none.
        """
        later = self._others[bisect_left(self._last_lsns, first_lsn) :]
        found = sorted([*self._of_table.get(name, ()), *later], key=lambda file: file[0])
        return [add for _, add in found]


class FileIndex:
    """The files by table of the version that was read last; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: tuple[tuple[str, int], FilesByTable] | None = None

    def of(self, snapshot: Snapshot) -> FilesByTable:
        """Return the files of a version by table."""
        key = (snapshot.table_id, snapshot.version)
        with self._lock:
            if self._newest is None or self._newest[0] != key:
                self._newest = (key, FilesByTable(snapshot.files.values()))
            return self._newest[1]
