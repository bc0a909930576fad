"""A version of a silver table with pending changes in memory; nothing is written.

An overlay is what the native writer would commit: the rows of data files that are gone, by their places, and
the rows that are new. Reading a file without the rows that are gone, and then the new rows, shows the table
after the changes. Steps of one input follow one another on the same overlay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipeline.delta.data_files import arrow_columns
from pipeline.delta.file_list import Add
from pipeline.delta.schema import TableSchema
from pipeline.delta.table_log import Snapshot
from pipeline.silver.fold.row_changes import Numbers, RowChanges, RowCommit

if TYPE_CHECKING:
    from pipeline.silver.write.table_version import TableVersion


@dataclass(slots=True)
class Overlay:
    """A version of a table with changes: its files, the places in them that are gone, and new rows.

    `files` are `add` actions by the key of the snapshot; `gone` has the same keys.
    """

    files: Mapping[str, Add]
    rows: pa.Table
    gone: dict[str, Numbers] = field(default_factory=dict)
    is_replaced: bool = False  # the files of the version are left out

    @classmethod
    def of(cls, snapshot: Snapshot) -> Overlay:
        """Return the overlay without changes of a version."""
        columns = arrow_columns(TableSchema.of_json(snapshot.schema_string))
        # in one order: places name files by their numbers
        return cls(dict(snapshot.files.items()), columns.empty_table())

    @property
    def is_empty(self) -> bool:
        """Whether the version is shown as it is."""
        return not (self.is_replaced or self.gone or self.rows.num_rows)

    def apply(self, version: TableVersion, changes: RowChanges, added: list[pa.Table]) -> None:
        """Make changes of a version, and rows that they add, part of the overlay of that version."""
        parts = [*added, changes.rows.take(pa.array(changes.inserted))]
        for number, each in changes.files.items():
            before = partial(version.read_rows, number, each.replaced)
            parts.append(changes.replacements(each, before))
        if changes.replaces_all:
            self.files, self.gone, self.rows = {}, {}, self.rows.slice(0, 0)
            self.is_replaced = True
        keys = [*self.files]
        for number, each in changes.files.items():
            gone = np.union1d(each.removed, each.replaced).astype(np.int64)
            if number == len(keys):
                self.rows = self.rows.take(pa.array(np.delete(np.arange(self.rows.num_rows), gone)))
            else:
                earlier = self.gone.get(keys[number], gone)
                self.gone[keys[number]] = np.union1d(earlier, gone)
        self.rows = pa.concat_tables([self.rows, *parts])


@dataclass(frozen=True, slots=True)
class OverlayCommitter:
    """Makes row changes of a version part of its overlay."""

    version: TableVersion
    overlay: Overlay

    @contextmanager
    def committing(self, changes: RowChanges, commit: RowCommit) -> Iterator[Callable[[pa.Table], None]]:
        """Give a function that adds more rows; the overlay has the changes after the block."""
        added: list[pa.Table] = []
        yield added.append
        self.overlay.apply(self.version, changes, added)
