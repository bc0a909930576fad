"""Fold pending changes onto a version of a silver table in memory, and write nothing.

An overlay is what the native writer would commit: the rows of data files that are gone, by their places, and
the rows that are new. Reading a file without the places that are gone, and then the new rows, shows the table
after the changes. Steps of one input follow one another on the same overlay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.delta.data_files import arrow_columns
from pipeline.delta.file_list import Add
from pipeline.delta.native_commit import Operation, Reads
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.silver.duckdb_sql import DuckSql
from pipeline.silver.native_files import NotNative, with_columns
from pipeline.silver.native_target import NativeTarget, PlannedChanges, Rewrite, where
from pipeline.silver.write import Write, WriteKind

Places = np.ndarray[Any, Any]
"""Numbers of rows in a file, sorted."""


@dataclass(slots=True)
class Overlay:
    """A version of a table with changes: its files, the places in them that are gone, and new rows.

    `files` are `add` actions by the key of the snapshot; `gone` has the same keys.
    """

    files: Mapping[str, Add]
    rows: pa.Table
    gone: dict[str, Places] = field(default_factory=dict)
    is_replaced: bool = False  # the files of the version are left out

    @classmethod
    def of(cls, snapshot: Snapshot) -> Overlay:
        """Return the overlay without changes of a version."""
        columns = arrow_columns(TableSchema.of_json(snapshot.schema_string))
        return cls(snapshot.files, columns.empty_table())

    @property
    def is_empty(self) -> bool:
        """Whether the version is shown as it is."""
        return not (self.is_replaced or self.gone or self.rows.num_rows)


class OverlayTarget(NativeTarget):
    """An overlay as the target of one write."""

    def __init__(
        self, session: DuckSql, table: LakeTable, snapshot: Snapshot, overlay: Overlay, most_bytes: int | None
    ) -> None:
        super().__init__(session, table, snapshot.with_files(overlay.files), most_bytes)
        self._overlay = overlay
        self._keys = list(overlay.files)
        # The new rows are a file, whose rows any change may concern.
        self._files = [*self._files, {"path": "", "size": 0}]

    @property
    def _new_rows(self) -> int:
        return len(self._keys)

    def _read(self, number: int, schema: pa.Schema) -> pa.Table:
        if number == self._new_rows:
            return with_columns(self._overlay.rows.select(schema.names), schema)
        return super()._read(number, schema)

    def _read_present(self, number: int, schema: pa.Schema) -> tuple[pa.Table, Places]:
        rows, places = super()._read_present(number, schema)
        gone = None if number == self._new_rows else self._overlay.gone.get(self._keys[number])
        if gone is None:
            return rows, places
        places = np.delete(places, gone)
        return rows.take(pa.array(places)), places

    @contextmanager
    def adding_rows(self, write: Write) -> Iterator[Callable[[pa.Table], None]]:
        """Give a function that adds rows to those of an append or overwrite."""
        if write.kind is WriteKind.REPLACE_KEYS:
            raise NotNative("copied key ranges are replaced")
        added: list[pa.Table] = []
        yield lambda rows: added.append(self._complete(rows))
        overlay = self._overlay
        if write.kind is WriteKind.OVERWRITE:
            overlay.files, overlay.gone, overlay.rows = {}, {}, self._arrow.empty_table()
            overlay.is_replaced = True
        overlay.rows = pa.concat_tables([overlay.rows, *added])

    def _rewrite(
        self,
        rewrites: Mapping[int, Rewrite],
        values: pa.Table,
        states: Mapping[str, np.ndarray[Any, Any]],
        inserts: pa.Table,
        changes: PlannedChanges,
    ) -> None:
        del changes
        overlay, parts = self._overlay, []
        for number, rewrite in rewrites.items():
            parts.append(self._updated(number, rewrite, values, states))
        for number, rewrite in rewrites.items():
            gone = np.union1d(rewrite.deleted, rewrite.updated).astype(np.int64)
            if number == self._new_rows:
                kept = np.delete(np.arange(overlay.rows.num_rows), gone)
                overlay.rows = overlay.rows.take(pa.array(kept))
            else:
                before = overlay.gone.get(self._keys[number], np.empty(0, np.int64))
                overlay.gone[self._keys[number]] = np.union1d(before, gone)
        overlay.rows = pa.concat_tables([overlay.rows, *parts, inserts])

    def _updated(
        self,
        number: int,
        rewrite: Rewrite,
        values: pa.Table,
        states: Mapping[str, np.ndarray[Any, Any]],
    ) -> pa.Table:
        """Return the updated rows of a file, with its values in the columns that keep them."""
        rows = values.take(pa.array(rewrite.rows))
        keeps = {name: mask for name, each in states.items() if (mask := each[rewrite.rows]).any()}
        if not keeps:
            return rows
        schema = pa.schema([self._arrow.field(name) for name in keeps])
        before = self._read(number, schema).take(pa.array(rewrite.updated))
        for name, mask in keeps.items():
            place = rows.schema.get_field_index(name)
            column = where(mask, before.column(name), rows.column(name))
            rows = rows.set_column(place, rows.schema.field(place), column)
        return rows

    def _commit(self, write: Write, changes: PlannedChanges, operation: Operation, reads: Reads) -> None:
        """Do nothing: the overlay has the rows."""

    def _removing(self, changes: PlannedChanges) -> AbstractContextManager[None]:
        return nullcontext()
