"""Read what a write needs of a silver table's files without Spark: those that may have rows of changed keys.

Files are chosen by their statistics. Rows have their places, so that a write can replace them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.delta.partitions import partition_bounds
from pipeline.key_ranges import KeyRange
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import Fold
from pipeline.silver.fold.fold_sql import reduced_images
from pipeline.silver.fold.key_bounds import TIMES
from pipeline.silver.fold.merge import same_keys
from pipeline.silver.fold.unchanged_values import EARLIER, EARLIER_VALUES, NEEDED, EarlierRows
from pipeline.silver.schema.column_mapping import free_name
from pipeline.silver.write.data_layout import (
    FileChoice,
    column_bounds,
    file_bounds,
    may_have,
    may_have_null,
)
from pipeline.silver.write.native_files import MAX_BYTES_IN_MEMORY, NotNative
from pipeline.silver.write.step_writer import Target
from pipeline.silver.write.table_version import TableVersion
from pipeline.silver.write.writer_choice import MAX_COMPARED_BYTES

_SMALL_FILES, _SMALL_BYTES = 4, 1 << 20  # of a table whose keys are all read


class NativeReads(Target):
    """One version of a silver table on this machine: what a write reads of its files."""

    session: DuckSql

    def __init__(self, session: DuckSql, version: TableVersion, max_bytes: int | None) -> None:
        self.session = session
        self._version = version
        self._files = version.files
        self._max_bytes = max_bytes
        names = {name.lower() for name in version.columns.names}
        self._file, self._row, self._flags = (free_name(name, names) for name in ("file", "row", "flags"))
        self._has_silver = False

    @property
    def _is_small(self) -> bool:
        """Whether reading all keys costs less than a query for those that change."""
        if self._version.partition_by:
            return False  # the keys name the partitions, and no file of another one is read
        most = _SMALL_BYTES if self._max_bytes is None else min(_SMALL_BYTES, self._max_bytes)
        return len(self._files) <= _SMALL_FILES and self._version.size <= most

    def define_silver(
        self, fold: Fold, aggregates: Mapping[str, Any] | None = None, *, with_values: bool = False
    ) -> None:
        """Define `silver`: columns of the files that may have a key of `folded`."""
        if self._has_silver:
            return
        self._has_silver = True
        chosen: Sequence[int] = range(len(self._files))
        if not fold.truncates and not self._is_small:
            chosen = FileChoice.of_keys(self.session, fold).candidates(self._files, self._version.snapshot)
        chosen = self._with_current(fold, chosen)
        self._require_few([self._files[number] for number in chosen])
        numbers = (*fold.key, *fold.partial) if with_values else fold.key
        names = [fold.columns[i].name for i in dict.fromkeys(numbers)]
        self._add_silver(chosen, [*names, *([fold.current_column] if fold.current_column else [])])

    def define_keys(self, fold: Fold, ranges: Sequence[KeyRange]) -> None:
        """Define `silver`: the key columns of files that may have a key in ranges."""
        found = column_bounds(self.session, fold, ranges)
        bounds = {self._version.physical[name]: each for name, each in found.items()}
        types = {self._version.physical[column.name]: column.type.ddl for column in fold.columns}
        times = [name for name in bounds if types[name] in TIMES]
        chosen = [
            number
            for number, file in enumerate(self._files)
            if may_have(file, bounds, times, partition_bounds(self._version.snapshot, file))
        ]
        self._require_few([self._files[number] for number in chosen])
        self._add_silver(chosen, [fold.columns[i].name for i in fold.key])

    def define_whole_silver(self, fold: Fold) -> None:
        if self._has_silver:
            return
        self._has_silver = True
        chosen = self._with_current(fold, range(len(self._files)))
        self._require_few([self._files[number] for number in chosen], max_bytes=MAX_COMPARED_BYTES)
        self._add_silver(chosen, self._version.columns.names)

    def _with_current(self, fold: Fold, numbers: Sequence[int]) -> Sequence[int]:
        """Return the files that may have versions which are not over; others stay as they are."""
        if fold.mode != "history" or not fold.current_column:
            return numbers
        stats = [file.get("stats") or "{}" for file in self._files]
        name = self._version.physical[fold.current_column]
        return [number for number in numbers if may_have_null(stats[number], name)]

    def define_silver_rows(self, fold: Fold) -> None:
        chosen: Sequence[int] = range(len(self._files))
        if len(chosen) > 1:
            choice = FileChoice.of_rows(self.session, fold, reduced_images("net"))
            chosen = choice.candidates(self._files, self._version.snapshot)
        self._require_few([self._files[number] for number in chosen], max_bytes=MAX_COMPARED_BYTES)
        self._add_silver(chosen, self._version.columns.names)

    def _require_few(self, files: Sequence[Mapping[str, Any]], max_bytes: float = inf) -> None:
        size = sum(int(file["size"]) for file in files)
        if self._max_bytes is not None and size > min(self._max_bytes, max_bytes):
            raise NotNative(f"{size} bytes of files may have changed rows")

    def _add_silver(self, numbers: Sequence[int], names: Sequence[str]) -> None:
        schema = self._version.schema_of(names)
        tables, size = [], 0
        for number in numbers:
            rows, found = self._version.read_present(number, schema)
            size += rows.nbytes
            if size > MAX_BYTES_IN_MEMORY:
                raise NotNative(f"more than {MAX_BYTES_IN_MEMORY} bytes of rows are compared")
            tables.append(self._with_places(rows, number, found))
        places = [pa.field(self._file, pa.int32()), pa.field(self._row, pa.int64())]
        schema = pa.schema([*schema, *places])
        self.session.add("silver", pa.concat_tables(tables) if tables else schema.empty_table())

    def newest_lsn(self, rows: EarlierRows) -> int | None:
        name = self._version.physical[rows.commit_lsn]
        found = [_newest_lsn(file, name) for file in self._files]
        return None if inf in found else int(max(found, default=0))

    def define_earlier(self, rows: EarlierRows) -> None:
        """Define `earlier`: the rows with keys of `needed`, from the newest files on, while one may be newer.

        Rows have their places.
        """
        self.session.add(EARLIER, self._earlier_rows(rows, []))
        found: list[pa.Table] = []
        chosen = FileChoice.of_keys(self.session, rows.fold, NEEDED).candidates(
            self._files, self._version.snapshot
        )
        name = self._version.physical[rows.commit_lsn]
        newest = {number: _newest_lsn(self._files[number], name) for number in chosen}
        schema = self._version.schema_of(rows.names)
        columns = [f"t.{self.session.engine.quoted(name)}" for name in (*rows.names, self._file, self._row)]
        size = 0
        least: float | None = None
        for number in sorted(chosen, key=lambda number: (newest[number], number), reverse=True):
            if least is not None and newest[number] < least:
                break
            part, places = self._version.read_present(number, schema)
            self.session.add("searched", self._with_places(part, number, places))
            matched = self.session.table(rows.matches("searched", self.session.engine, *columns))
            if not matched.num_rows:
                continue
            size += matched.nbytes
            if size > MAX_BYTES_IN_MEMORY:
                raise NotNative(f"more than {MAX_BYTES_IN_MEMORY} bytes of keys are compared")
            found.append(matched)
            self.session.add(EARLIER, self._earlier_rows(rows, found))
            least = self._least_newest(rows)

    def _earlier_rows(self, rows: EarlierRows, found: Sequence[pa.Table]) -> pa.Table:
        places = [pa.field(self._file, pa.int32()), pa.field(self._row, pa.int64())]
        schema = pa.schema([*self._version.schema_of(rows.names), *places])
        return pa.concat_tables([table.cast(schema) for table in found] or [schema.empty_table()])

    def _least_newest(self, rows: EarlierRows) -> float | None:
        """Return the LSN from which on every key of `needed` has its newest row, None if one has none yet."""
        lsn, ordinal = rows.order(self.session.engine)
        before = f"{lsn} < s.asked_lsn OR ({lsn} = s.asked_lsn AND {ordinal} < s.asked_ordinal)"
        keys = ", ".join(f"s.{name}" for name in rows.fold.key_names)
        newest = (
            f"SELECT max(CASE WHEN {before} THEN {lsn} END) AS newest FROM {NEEDED} AS s "
            f"LEFT JOIN {EARLIER} AS t ON {same_keys(rows.fold, self.session.engine)} GROUP BY {keys}"
        )
        found = self.session.row(
            f"SELECT min(newest) AS least, count(*) = count(newest) AS is_complete FROM ({newest}) AS n"
        )
        return float(found.least) if found.is_complete else None

    def define_earlier_values(self, rows: EarlierRows, sources: str) -> None:
        """Define `earlier_values`: the rows that a query names as sources, read from their files."""
        file, row = (f"t.{self.session.engine.quoted(name)}" for name in (self._file, self._row))
        matches = self.session.table(
            f"SELECT {file} AS file, {row} AS place FROM {EARLIER} AS t "
            f"WHERE {rows.source(self.session.engine)} IN ({sources}) ORDER BY 1, 2"
        )
        schema = self._version.schema_of(rows.value_names)
        tables, size = [], 0
        files, places = as_numpy(matches.column(0)), as_numpy(matches.column(1))
        for number in np.unique(files):
            part = self._version.read_rows(int(number), places[files == number], rows.value_names)
            size += part.nbytes
            if size > MAX_BYTES_IN_MEMORY:
                raise NotNative(f"more than {MAX_BYTES_IN_MEMORY} bytes of values are read")
            tables.append(part)
        self.session.add(EARLIER_VALUES, pa.concat_tables(tables) if tables else schema.empty_table())

    def _with_places(self, rows: pa.Table, number: int, places: np.ndarray[Any, Any]) -> pa.Table:
        """Return rows of a file with its number and their places in it."""
        rows = rows.append_column(self._file, pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows))
        return rows.append_column(self._row, pa.array(places))


def _newest_lsn(file: Mapping[str, Any], column: str) -> float:
    """Return the greatest LSN in a file by its statistics, infinity if they do not have it."""
    ((_, newest),) = file_bounds(file, {column: "BIGINT"})
    return inf if newest is None else float(newest)


def as_numpy(column: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = column.to_numpy()
    return found
