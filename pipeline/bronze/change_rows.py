"""Read rows of bronze for the native writer: into memory for few pending changes, else in chunks.

Files are chosen by their statistics in the log, or are those that the last commits added. Those with the new
changes, which all tables need, are read once in a batch, some row groups at a time, and divided by table
(`divided_rows`). What no longer fits into memory is kept on disk; older files, which only tables that lag
behind need, are then read for each table.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.bronze.changes_scan import (
    MAX_LSN,
    ChangesScan,
    advised,
    bounds_in_group,
    bounds_of,
    has_only_copied_rows,
    may_have_table,
    missing_file,
)
from pipeline.bronze.divided_rows import DividedRows
from pipeline.bronze.log import Bronze, log_op, selected_ops
from pipeline.bronze.surveys import is_table
from pipeline.bronze.table_input import InputStart, SequenceKey
from pipeline.delta.data_files import TooLargeError, read_data_file
from pipeline.delta.parquet_files import open_data_file
from pipeline.delta.store.mirror import fetch, fetch_all
from pipeline.delta.table_log import data_path, local_path
from pipeline.errors import DataFileError
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

COLUMNS = (
    "commit_lsn",
    "end_lsn",
    "ordinal",
    "commit_time",
    "op",
    "relation_version",
    "schema_name",
    "table_name",
    "old_kind",
    "old",
    "new",
    "unsent",
    "copy_id",
)
_MAX_BYTES = 256 << 20  # of a table's rows that are read at once, in memory
MAX_SHARED_BYTES = 2 << 30  # of files that are read once for all tables
_MAX_BYTES_OF_PART = 16 << 20  # of a file, as Parquet holds its values before it compresses them
_MAX_BYTES_IN_MEMORY = 512 << 20  # of a part's values
CHUNK_ROWS = 262_144
_STREAMED_ROWS = 16_384  # at a time
CHUNK_BYTES = 32 << 20  # in memory


@dataclass(frozen=True, slots=True)
class _Files:
    """Files that may have rows of a table's input; `shared` are those that all tables of a batch need."""

    sizes: Mapping[str, int]  # bytes by path, of the part that ends within the input, by its LSNs
    shared: Set[str] = frozenset()
    shared_rows: int = 0

    @property
    def shared_size(self) -> int:
        """The bytes of the shared files."""
        return sum(self.sizes[path] for path in self.shared)

    def share(self, changes: int) -> int:
        """Return the bytes that changes of one table take: the part of the shared files, and all others."""
        if self.shared_size > MAX_SHARED_BYTES:
            return sum(self.sizes.values())
        part = min(1.0, changes / max(self.shared_rows, 1))
        return sum(self.sizes.values()) - self.shared_size + round(self.shared_size * part)


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some row groups of a file, and the least and the greatest LSN at which one of their rows may end.

    `size` are the bytes of their values, as Parquet holds them before it compresses them.
    """

    path: str
    groups: tuple[int, ...]
    least: LSN
    greatest: LSN
    size: int
    rows: int

    def joined(self, other: FilePart) -> FilePart:
        """Return this part with those that follow it."""
        bounds = min(self.least, other.least), max(self.greatest, other.greatest)
        groups, size = (*self.groups, *other.groups), self.size + other.size
        return FilePart(self.path, groups, *bounds, size, self.rows + other.rows)

    def is_within(self, start: InputStart, end_lsn: LSN) -> bool:
        """Return whether it may have rows of an input up to an LSN."""
        return start.copy is not None or (self.greatest > start.offset and self.least <= end_lsn)


class RowStream:
    """Rows for DuckDB that are too many for memory; each query reads them again.

    `failure` is why the last one could not: DuckDB raises an error of its own.
    """

    def __init__(self, schema: pa.Schema, read: Callable[[], Iterator[pa.Table]]) -> None:
        self.failure: Exception | None = None
        self._schema = schema
        self._read = read

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of the rows, as Arrow's interface of PyCapsules defines it."""
        reader = pa.RecordBatchReader.from_batches(self._schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for rows in self._read():
                yield from rows.cast(self._schema).to_batches(_STREAMED_ROWS)
        except Exception as error:
            self.failure = error
            raise


class ChangeRows:
    """Reads the rows of bronze; several threads may use it."""

    def __init__(self, bronze: Bronze) -> None:
        self._bronze = bronze
        self._columns = COLUMNS if bronze.visible == "true" else (*COLUMNS, "xid")
        self._lock = threading.RLock()
        self._divided, self._earlier = DividedRows(), DividedRows()  # of this batch, of the one before
        self._file_parts: dict[str, list[FilePart]] = {}  # of this batch
        self._shared_from = INVALID
        self._batch_from: LSN | None = None  # before the first batch

    @property
    def visible(self) -> str:
        """SQL that is true for the rows which count as a table's input."""
        return self._bronze.visible

    def begin_batch(self, shared_from: LSN = INVALID, behind: Iterable[LSN] = ()) -> None:
        """Forget the rows that are kept; most tables need what ends after `shared_from`.

        `behind` are the offsets of the others. Those that the last batch left behind get its rows once more.
        """
        with self._lock:
            is_same = shared_from == self._batch_from
            kept_from = self._shared_from if is_same else self._batch_from
            if kept_from is None or all(lsn < kept_from for lsn in behind):
                kept_from = None
            elif is_same:
                return
            self._earlier.clear()
            self._shared_from = shared_from
            if kept_from is not None:
                self._divided, self._earlier = self._earlier, self._divided
                self._shared_from = kept_from
            self._divided.clear()
            self._file_parts.clear()
            self._batch_from = shared_from

    def release(self, name: TableName) -> None:
        """Forget the rows of a table that is written; they are read again if it needs them again."""
        with self._lock:
            self._divided.release(name)
            self._earlier.release(name)

    def size(self, name: TableName, start: InputStart, end_lsn: LSN, changes: int) -> int | None:
        """Return the bytes of bronze that so many changes of a table take, None if only Spark reads them.

        Files that all tables of a batch need are read once, and count in part; so do those that have more.
        """
        files = self._files(name, start, end_lsn)
        return None if files is None else files.share(changes)

    def values_by_lsn(
        self, name: TableName, start: InputStart, end_lsn: LSN, changes: int, limit: int
    ) -> list[tuple[LSN, float]]:
        """Return where parts of an input end, ascending, and the bytes of their values.

        They are a share of all values, by the `changes` of the input. Where all together have more bytes than
        `limit`, files that all tables of a batch need, and are read once, are read for it: a table's rows may
        be wider than most. Empty if only Spark reads them.
        """
        files = self._files(name, start, end_lsn)
        if files is None:
            return []
        fetch_all(files.sizes)
        parts = [(part, path in files.shared) for path in files.sizes for part in self._parts_of_file(path)]
        parts = [(part, is_shared) for part, is_shared in parts if part.is_within(start, end_lsn)]
        is_kept = self._batch_from is not None and files.shared_size <= MAX_SHARED_BYTES
        is_read = is_kept and sum(part.size for part, _ in parts) > limit
        share = min(1.0, changes / max(1, sum(part.rows for part, _ in parts)))
        return sorted(
            (
                min(part.greatest, end_lsn),
                self._value_bytes(part, name) if is_read and is_shared else part.size * share,
            )
            for part, is_shared in parts
        )

    def _value_bytes(self, part: FilePart, name: TableName) -> int:
        """Return the bytes of a table's values in a part of a file that all tables need."""
        with self._lock:
            rows = self._part(part, name, is_shared=True)
        return 0 if rows is None else sum(rows.column(each).nbytes for each in ("old", "new"))

    def fits(self, name: TableName, start: InputStart, end_lsn: LSN) -> bool:
        """Return whether `read` needs no more memory than it may; the rows may be wider than most."""
        try:
            self.read(name, start, end_lsn)
        except TooLargeError:
            return False
        return True

    def read(self, name: TableName, start: InputStart, end_lsn: LSN) -> pa.Table:
        """Return rows of a table that include its input up to an LSN.

        Raises TooLargeError if they need too much memory.
        """
        tables, size = [], 0
        for rows in self._parts(self._files(name, start, end_lsn), name, start, end_lsn):
            tables.append(rows)
            size += rows.nbytes
            if size > _MAX_BYTES:
                raise TooLargeError(f"{name} has more than {_MAX_BYTES} bytes of changes")
        return pa.concat_tables(tables) if tables else _empty(self._columns)

    def stream(self, name: TableName, start: InputStart, end_lsn: LSN) -> RowStream:
        """Return the rows of `read`, which are read again, a file at a time, for each query about them."""
        files = self._files(name, start, end_lsn)
        return RowStream(_empty(self._columns).schema, lambda: self._parts(files, name, start, end_lsn))

    def _parts(
        self, files: _Files | None, name: TableName, start: InputStart, end_lsn: LSN
    ) -> Iterator[pa.Table]:
        assert files is not None
        for path in files.sizes:
            for part in self._parts_of_file(path):
                if not part.is_within(start, end_lsn):
                    continue
                with self._lock:
                    rows = self._part(part, name, is_shared=path in files.shared)
                if rows is not None:
                    yield rows

    def _parts_of_file(self, path: str) -> list[FilePart]:
        with self._lock:
            known = self._file_parts.get(path)
            if known is None:
                known = self._file_parts[path] = _parts_of(path)
            return known

    def chunks(
        self, name: TableName, start: InputStart, end_lsn: LSN, ops: Sequence[str]
    ) -> Iterator[pa.Table]:
        """Yield rows that include those of a table's input up to an LSN that have some operations.

        Chunks are in no order, and may have rows of other tables.
        """
        files = self._files(name, start, end_lsn)
        path = self._bronze.changes.local_path
        assert files is not None
        assert path is not None
        begin, end = start.offset, end_lsn
        if start.copy is not None:  # whose rows may lie past that LSN
            begin, end = LSN(max(0, start.copy.lsn - 1)), MAX_LSN
        snapshot = self._bronze.changes.snapshot()
        scan = ChangesScan(path, snapshot, tuple(ops), begin, end, name, tuple(files.sizes))
        return scan.chunks(self._columns, CHUNK_ROWS, CHUNK_BYTES)

    def _files(self, name: TableName, start: InputStart, end_lsn: LSN) -> _Files | None:
        """Return the files that may have rows of a table's input."""
        bronze = self._bronze
        if bronze.changes.local_path is None:
            return None
        new = bronze.new_files
        if start.copy is None and new is not None and new.covers(start.offset, end_lsn):
            paths = [local_path(path) for path in new.paths]
            with suppress(FileNotFoundError):  # compacted meanwhile: another file has its rows
                part = _overlap(new.start_lsn, new.end_lsn, start.offset, end_lsn)
                sizes = {path: round(os.path.getsize(path) * part) for path in fetch_all(paths)}
                return _Files(sizes, frozenset(paths), new.rows)
        sizes, shared, rows = {}, set[str](), 0
        first_lsn = bronze.start_of(name, start)
        files = bronze.index.of(bronze.changes.snapshot())
        if files.has_vectors:
            return None
        # a row ends at or after the LSN of its commit or copy
        least_lsn = first_lsn if start.copy is None else start.copy.lsn
        for add in files.that_may_have(name, least_lsn):
            if _may_have(add, name, start, first_lsn, end_lsn):
                found = data_path(bronze.changes.local_path, add["path"])
                low, high = bounds_of(add)
                ends = low.get("end_lsn", INVALID), high.get("end_lsn", MAX_LSN)
                part = 1.0 if start.copy is not None else _overlap(*ends, first_lsn, end_lsn)
                sizes[found] = round(int(add["size"]) * part)
                if high.get("end_lsn", INVALID) > self._shared_from:
                    shared.add(found)
                    rows += json.loads(add["stats"]).get("numRecords", 0)
        return _Files(sizes, shared, rows)

    def _part(self, part: FilePart, name: TableName, *, is_shared: bool) -> pa.Table | None:
        """Return the rows of a table in a part of a file, None if it has none."""
        for kept in (self._divided, self._earlier):
            if kept.has(part, name):
                return kept.get(part, name)
        tables = _split(_read(part, self._columns))
        self._divided.add(part, tables, is_shared=is_shared)
        return tables.get(name)


def _overlap(low: LSN, high: LSN, start_lsn: LSN, end_lsn: LSN) -> float:
    """Return which part of the LSNs from `low` to `high` lies in (start_lsn, end_lsn], 1 of a single one."""
    within = min(high, end_lsn) - max(low, start_lsn)
    return min(1.0, max(0.0, within / (high - low))) if high > low else 1.0


def _may_have(
    add: Mapping[str, Any], name: TableName, start: InputStart, first_lsn: LSN, end_lsn: LSN
) -> bool:
    """Return whether a file may have rows of a table's input that end after `first_lsn` (exclusive)."""
    low, high = bounds_of(add)
    if not may_have_table(low, high, name):
        return False
    if start.copy is not None:
        return bool(high.get("commit_lsn", start.copy.lsn) >= start.copy.lsn)
    if has_only_copied_rows(low, high):
        return False
    return bool(high.get("end_lsn", MAX_LSN) > first_lsn and low.get("end_lsn", end_lsn) <= end_lsn)


def row_changes(
    rows: str,
    name: TableName,
    start: InputStart,
    end_lsn: LSN,
    first: SequenceKey,
    last: SequenceKey,
    *,
    is_log: bool = False,
) -> str:
    """Return DuckDB's query for the row changes in (first, last] of a table's input, without truncations.

    Copied rows are inserts there, as in `log.between`. With `is_log` they are not, and truncations remain; of
    a copy that is later, only its rows.
    """
    copy = start.copy
    if copy is None:
        condition = f"op NOT IN ('M', 'R') AND end_lsn > {int(start.offset)} AND end_lsn <= {int(end_lsn)}"
    else:
        condition = f"(op = 'R' OR end_lsn <= {int(end_lsn)}) AND {copy.condition()}"
    lsn = f"({copy.commit_lsn()})" if copy else "commit_lsn"
    return (
        f"SELECT {lsn} AS commit_lsn, ordinal, commit_time, {log_op(is_log=is_log)} AS op, "
        f"relation_version, old_kind, old, new, unsent FROM {rows} WHERE {is_table(name)} AND {condition} "
        f"AND op IN {selected_ops(is_log=is_log, is_later=start.is_later)} "
        f"AND ({lsn} > {first[0]} OR ({lsn} = {first[0]} AND ordinal > {first[1]})) "
        f"AND ({lsn} < {last[0]} OR ({lsn} = {last[0]} AND ordinal <= {last[1]}))"
    )


@contextmanager
def _advised(path: str) -> Iterator[None]:
    """Raise DataFileError, with what to do for a table, for a file that is missing or damaged."""
    try:
        yield
    except FileNotFoundError:
        raise advised(missing_file(path)) from None
    except DataFileError as error:
        raise advised(error) from error


def _parts_of(path: str) -> list[FilePart]:
    """Return the parts of a file, none much larger than `_MAX_BYTES_OF_PART`; a row group is not divided."""
    with _advised(path), open_data_file(fetch(path)) as file:
        metadata = file.metadata
    parts: list[FilePart] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        bounds = bounds_in_group(group, "end_lsn")
        part = FilePart(path, (number,), *bounds, group.total_byte_size, group.num_rows)
        if parts and parts[-1].size + part.size <= _MAX_BYTES_OF_PART:
            parts[-1] = parts[-1].joined(part)
        else:
            parts.append(part)
    return parts


def _read(part: FilePart, columns: Sequence[str]) -> pa.Table:
    import pyarrow.compute as pc

    with _advised(part.path):
        rows = read_data_file(fetch(part.path), columns, _MAX_BYTES_IN_MEMORY, part.groups)
    is_message = pc.equal(rows.column("op"), "M")
    return rows.filter(pc.invert(is_message)) if pc.any(is_message).as_py() else rows  # it copies all texts


def _split(rows: pa.Table) -> dict[TableName, pa.Table]:
    """Return the rows of each table, in their order."""
    import pyarrow.compute as pc

    if not rows.num_rows:
        return {}
    rows = rows.combine_chunks()  # else each `take` would copy all of them
    codes = np.zeros(rows.num_rows, np.int64)
    for column in ("schema_name", "table_name"):
        encoded = pc.dictionary_encode(rows.column(column).chunk(0))
        codes = codes * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    found = {}
    for indexes in np.split(order, bounds):
        part = rows.take(pa.array(indexes)) if len(indexes) < rows.num_rows else rows
        name = TableName(part.column("schema_name")[0].as_py(), part.column("table_name")[0].as_py())
        found[name] = part
    return found


def _empty(columns: Sequence[str]) -> pa.Table:
    from pipeline.bronze.schema import CHANGES

    return pa.schema([CHANGES.field(name) for name in columns]).empty_table()
