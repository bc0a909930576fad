"""The rows of bronze files, divided by table: in memory up to a limit, and beyond it in a temporary file.

The temporary file has no name: no other process opens it, and nothing remains of it however this one ends.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Hashable, Mapping
from typing import IO

import pyarrow as pa

from pipeline.table_name import TableName

MAX_IN_MEMORY = 96 << 20  # bytes
MAX_ON_DISK = 8 << 30  # bytes, compressed


class DividedRows:
    """Rows by part of a file, and table; used by one thread at a time."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, dict[TableName, pa.Table]] = {}
        self._places: dict[Hashable, dict[TableName, tuple[int, int]]] = {}  # offset and bytes on disk
        self._in_memory = self._on_disk = 0
        self._file: IO[bytes] | None = None
        self._released: set[TableName] = set()

    def has(self, part: Hashable, name: TableName) -> bool:
        """Return whether `get` knows the rows of a table in a part, or that there are none."""
        return part in self._places or (part in self._rows and name not in self._released)

    def get(self, part: Hashable, name: TableName) -> pa.Table | None:
        """Return the rows of a table in a part, None if it has none."""
        if part in self._rows:
            return self._rows[part].get(name)
        place = self._places[part].get(name)
        return None if place is None else self._read(*place)

    def add(self, part: Hashable, tables: Mapping[TableName, pa.Table], *, is_shared: bool) -> None:
        """Keep the rows of a part if there is room for them: on disk only those that many tables need."""
        if part in self._rows:  # read again for a table that was released
            return
        needed = {name: rows for name, rows in tables.items() if name not in self._released}
        size = sum(rows.nbytes for rows in needed.values())
        if self._in_memory + size <= MAX_IN_MEMORY:
            self._rows[part] = needed
            self._in_memory += size
        elif is_shared and self._on_disk < MAX_ON_DISK:
            try:
                self._places[part] = {name: self._write(rows) for name, rows in tables.items()}
            except OSError:  # no room on disk: each table reads the file
                self._places.pop(part, None)

    def release(self, name: TableName) -> None:
        """Forget the rows of a table that are in memory."""
        self._released.add(name)
        for tables in self._rows.values():
            if (rows := tables.pop(name, None)) is not None:
                self._in_memory -= rows.nbytes

    def clear(self) -> None:
        """Forget all rows."""
        if self._file is not None:
            self._file.close()
        self._rows, self._places, self._file = {}, {}, None
        self._released = set()
        self._in_memory = self._on_disk = 0

    def _write(self, rows: pa.Table) -> tuple[int, int]:
        buffer = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(buffer, rows.schema, options=options) as writer:
            writer.write_table(rows)
        data = buffer.getvalue()
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="pgdelta-")  # noqa: SIM115 - closed by `clear`
            weakref.finalize(self, self._file.close)
        self._file.seek(self._on_disk)
        self._file.write(data)
        self._file.flush()
        place = (self._on_disk, data.size)
        self._on_disk += data.size
        return place

    def _read(self, offset: int, size: int) -> pa.Table:
        assert self._file is not None
        data = os.pread(self._file.fileno(), size, offset)
        return pa.ipc.open_stream(data).read_all()
