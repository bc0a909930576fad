"""Find the files of bronze that may have rows of one table, without a look at those of all others.

Built once for a version of `changes`, from the statistics in its log. Reads no file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.bronze.changes_scan import MAX_LSN, bounds_of
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
            name = _only_table(low, high)
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


def _only_table(low: Mapping[str, Any], high: Mapping[str, Any]) -> TableName | None:
    """Return the table that all rows with a name have, None if there may be several."""
    schema, table = low.get("schema_name"), low.get("table_name")
    if (
        schema is None
        or table is None
        or schema != high.get("schema_name")
        or table != high.get("table_name")
    ):
        return None  # the bounds of a long name are shortened and differ
    return TableName(schema, table)
