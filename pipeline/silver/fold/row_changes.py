"""Changes of one step to the rows of one version of a silver table, and the description of their commit.

Rows are known by their places: the number of their file in the version, and their number in it. What a mode
means is resolved before: a change says which rows go, which are replaced and by what, and which come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from pipeline.delta.txn import TableCommit

Numbers = np.ndarray[Any, Any]
"""Numbers of rows, from 0."""
_BYTES_AT_ONCE = 16 << 20  # in memory


@dataclass(frozen=True, slots=True)
class FileChanges:
    """What happens to the rows of one file: some go, and `replaced` are replaced by `rows`, in parallel.

    `removed` and `replaced` are sorted numbers of rows of the file, `rows` those of rows of the changes.
    """

    removed: Numbers
    replaced: Numbers
    rows: Numbers

    def within(self, first: int, end: int) -> FileChanges:
        """Return what happens to the rows from `first` on and before `end`, which are numbered from 0."""
        gone, replaced = (
            slice(*np.searchsorted(each, (first, end))) for each in (self.removed, self.replaced)
        )
        return FileChanges(self.removed[gone] - first, self.replaced[replaced] - first, self.rows[replaced])


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The changes of one step: files by their numbers, and complete rows with the table's types.

    `kept` has for columns, by name, which of the rows keep the value of the row that they replace. Rows of
    `inserted` replace none.
    """

    rows: pa.Table
    files: Mapping[int, FileChanges] = field(default_factory=dict)
    kept: Mapping[str, Numbers] = field(default_factory=dict)
    inserted: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    replaces_all: bool = False  # no row of the version stays

    def inserts(self) -> Iterator[pa.Table]:
        """Yield the rows that are inserted, some at a time."""
        count = max(1, _BYTES_AT_ONCE * self.rows.num_rows // max(1, self.rows.nbytes))
        for first in range(0, len(self.inserted), count):
            yield self.rows.take(pa.array(self.inserted[first : first + count]))

    def replacements(self, file: FileChanges, before: Callable[[list[str]], pa.Table]) -> pa.Table:
        """Return the rows that replace those of a file; `before` returns columns of these."""
        rows = self.rows.take(pa.array(file.rows))
        keeps = {name: each for name, mask in self.kept.items() if (each := mask[file.rows]).any()}
        if not keeps:
            return rows
        earlier = before([*keeps])
        columns = [
            _where(keeps[name], earlier.column(name), column) if name in keeps else column
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=rows.schema)

    def applied(self, file: FileChanges, rows: pa.Table) -> pa.Table:
        """Return what is left of a file's rows, with the rows that replace others in their places."""
        if not (len(file.removed) or len(file.replaced)):
            return rows
        count = rows.num_rows
        order = np.arange(count)
        if len(file.replaced):
            replaced = pa.array(file.replaced)
            new = self.replacements(file, lambda names: rows.select(names).take(replaced))
            rows = pa.concat_tables([rows, new])
            order[file.replaced] = count + np.arange(len(file.replaced))
        return rows.take(pa.array(np.delete(order, file.removed)))


def _where(mask: Numbers, yes: Any, no: Any) -> Any:
    """Return the values of one column where a mask is true, and of another one elsewhere."""
    both = pa.chunked_array([*yes.chunks, *no.chunks], type=no.type)
    count = len(mask)
    return both.take(pa.array(np.where(mask, np.arange(count), count + np.arange(count))))


@dataclass(frozen=True, slots=True)
class RowCommit:
    """What the commit of row changes records: its offset, and the operation in Delta's history.

    `source_rows` is how many rows a MERGE reads.
    """

    commit: TableCommit
    operation: str
    parameters: Mapping[str, str]
    is_append: bool = False  # depends on no row of the table
    source_rows: int = 0


class Committer(Protocol):
    """Makes row changes part of a version, in one commit or not at all."""

    def committing(
        self, changes: RowChanges, commit: RowCommit
    ) -> AbstractContextManager[Callable[[pa.Table], None]]:
        """Give a function that adds more rows, complete as those of the changes; commit after the block."""
