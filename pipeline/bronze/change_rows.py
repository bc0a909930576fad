"""Read rows of bronze for the native writer: into memory for few pending changes, else in chunks.

Files are chosen by their statistics in the log, or are those that the last commits added. A file that is read
into memory is read once for all tables: it is kept until the next batch begins, or until it is too much.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pipeline.bronze.changes_scan import (
    MAX_LSN,
    ChangesScan,
    bounds_of,
    has_only_copied_rows,
    may_have_table,
    missing_file,
)
from pipeline.bronze.log import Bronze
from pipeline.bronze.surveys import is_table
from pipeline.bronze.table_input import InputStart, SequenceKey
from pipeline.delta.table_log import data_path, local_path
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

if TYPE_CHECKING:
    import pyarrow as pa

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
_KEPT_BYTES = 256 << 20  # of the rows that are kept, in memory
_MOST_BYTES = 256 << 20  # of a table's rows that are read at once, in memory
_MOST_BYTES_OF_FILE = 512 << 20  # of its values in memory
CHUNK_ROWS = 262_144
CHUNK_BYTES = 32 << 20  # in memory


class ChangeRows:
    """Reads the rows of bronze; several threads may use it."""

    def __init__(self, bronze: Bronze) -> None:
        self._bronze = bronze
        self._lock = threading.RLock()
        self._rows: dict[str, dict[TableName, pa.Table]] = {}  # by file
        self._size = 0

    def begin_batch(self) -> None:
        """Forget the rows that are in memory."""
        with self._lock:
            self._rows, self._size = {}, 0

    def size(self, name: TableName, start: InputStart, end_lsn: LSN) -> int | None:
        """Return the bytes of the files with a table's input up to an LSN, None if only Spark reads them."""
        files = self._files(name, start, end_lsn)
        return None if files is None else sum(files.values())

    def read(self, name: TableName, start: InputStart, end_lsn: LSN) -> pa.Table:
        """Return rows of a table that include its input up to an LSN.

        Raises TooLargeError if they need too much memory.
        """
        import pyarrow as pa

        from pipeline.delta.data_files import TooLargeError

        files = self._files(name, start, end_lsn)
        assert files is not None
        tables, size = [], 0
        for path in files:
            with self._lock:
                rows = self._file(path)
            if name in rows:
                tables.append(rows[name])
                size += rows[name].nbytes
                if size > _MOST_BYTES:
                    raise TooLargeError(f"{name} has more than {_MOST_BYTES} bytes of changes")
        return pa.concat_tables(tables) if tables else _empty()

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
        scan = ChangesScan(path, snapshot, tuple(ops), begin, end, name, tuple(files))
        return scan.chunks(COLUMNS, CHUNK_ROWS, CHUNK_BYTES)

    def _files(self, name: TableName, start: InputStart, end_lsn: LSN) -> dict[str, int] | None:
        """Return the files that may have rows of a table's input, with their sizes in bytes."""
        bronze = self._bronze
        if bronze.changes.local_path is None:
            return None
        new = bronze.new_files
        if start.copy is None and new is not None and new.covers(start.offset, end_lsn):
            paths = [local_path(path) for path in new.paths]
            with suppress(FileNotFoundError):  # compacted meanwhile: another file has its rows
                return {path: os.path.getsize(path) for path in paths}
        found = {}
        first_lsn = bronze.start_of(name, start)
        for add in bronze.changes.snapshot().files.values():
            if add.get("deletionVector"):
                return None
            if _may_have(add, name, start, first_lsn, end_lsn):
                found[data_path(bronze.changes.local_path, add["path"])] = int(add["size"])
        return found

    def _file(self, path: str) -> dict[TableName, pa.Table]:
        found = self._rows.get(path)
        if found is None:
            found = _split(_read(path))
            size = sum(rows.nbytes for rows in found.values())
            if self._size + size > _KEPT_BYTES:
                self.begin_batch()
            self._rows[path] = found
            self._size += size
        return found


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
    rows: str, name: TableName, start: InputStart, end_lsn: LSN, first: SequenceKey, last: SequenceKey
) -> str:
    """Return DuckDB's query for the row changes in (first, last] of a table's input, without truncations.

    Copied rows are inserts there, as in `log.between`.
    """
    copy = start.copy
    if copy is None:
        condition = f"op NOT IN ('M', 'R') AND end_lsn > {int(start.offset)} AND end_lsn <= {int(end_lsn)}"
    else:
        condition = f"(op = 'R' OR end_lsn <= {int(end_lsn)}) AND {copy.condition()}"
    commit_lsn = copy.commit_lsn() if copy else "commit_lsn"
    return (
        "SELECT commit_lsn, ordinal, commit_time, CASE op WHEN 'R' THEN 'I' ELSE op END AS op, "
        "relation_version, old_kind, old, new, unsent "
        f"FROM (SELECT * REPLACE ({commit_lsn} AS commit_lsn) FROM {rows} "
        f"WHERE {is_table(name)} AND {condition}) AS b "
        "WHERE op IN ('I', 'U', 'D', 'R') "
        f"AND (commit_lsn > {first[0]} OR (commit_lsn = {first[0]} AND ordinal > {first[1]})) "
        f"AND (commit_lsn < {last[0]} OR (commit_lsn = {last[0]} AND ordinal <= {last[1]}))"
    )


def _read(path: str) -> pa.Table:
    import pyarrow.compute as pc

    from pipeline.delta.data_files import read_data_file

    try:
        rows = read_data_file(path, COLUMNS, _MOST_BYTES_OF_FILE)
    except FileNotFoundError:
        raise missing_file(path) from None
    return rows.filter(pc.field("op") != "M")


def _split(rows: pa.Table) -> dict[TableName, pa.Table]:
    """Return the rows of each table, in their order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not rows.num_rows:
        return {}
    codes = np.zeros(rows.num_rows, np.int64)
    for column in ("schema_name", "table_name"):
        encoded = pc.dictionary_encode(rows.column(column).combine_chunks())
        codes = codes * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    found = {}
    for indexes in np.split(order, bounds):
        part = rows.take(pa.array(indexes)) if len(indexes) < rows.num_rows else rows
        name = TableName(part.column("schema_name")[0].as_py(), part.column("table_name")[0].as_py())
        found[name] = part
    return found


def _empty() -> pa.Table:
    import pyarrow as pa

    from pipeline.bronze.schema import CHANGES

    return pa.schema([CHANGES.field(name) for name in COLUMNS]).empty_table()
