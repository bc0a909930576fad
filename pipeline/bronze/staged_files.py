"""Staged files: Parquet as the bronze table holds it, with what Delta's log says of each.

A staged file becomes part of the table by a commit that names it; nothing rewrites it. So its schema, names
and statistics are those of the table. A file that was never committed is garbage: the server sends its
changes again.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.bronze.schema import CHANGES, STATISTICS
from pipeline.errors import SpoolError
from pipeline.protocol.events import CommittedPrepared, RolledBackPrepared
from pipeline.protocol.lsn import LSN

DAMAGE = (
    ": it was changed, or the disk is damaged; nothing of it has landed, and the next run gets its changes"
    " from the server again."
)
_BLOCK = 1 << 20  # bytes
_REPETITIVE = ["op", "schema_name", "table_name", "old_kind", "relation_version", "relation_id", "origin"]


@dataclass(frozen=True, slots=True)
class Part:
    """One finished file: rows, and the least and greatest values of the columns that readers select by."""

    path: Path
    size: int  # bytes
    checksum: int  # CRC-32 of them
    row_count: int
    least: dict[str, Any]
    greatest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parked:
    """A prepared transaction, which is kept apart until it is decided."""

    gid: str
    xid: int
    part: Part


Decision: TypeAlias = CommittedPrepared | RolledBackPrepared


@dataclass(frozen=True, slots=True)
class Staged:
    """Whole transactions, ready to land: the files of committed ones, and the last position that they end at.

    `parked` are transactions that were prepared, `decisions` what became of prepared ones, in their order.
    """

    parts: tuple[Part, ...]
    end_lsn: LSN
    transaction_count: int
    change_count: int
    parked: tuple[Parked, ...] = ()
    decisions: tuple[Decision, ...] = ()

    @property
    def row_count(self) -> int:
        """Return the rows of all files."""
        return sum(part.row_count for part in self.parts)


class Sink:
    """A file for Arrow to write to, of which every byte is counted and checked."""

    def __init__(self, path: Path) -> None:
        self.size = self.checksum = 0
        self._file = pa.OSFile(str(path), "wb")

    @property
    def closed(self) -> bool:
        """Say whether the file is closed."""
        return bool(self._file.closed)

    def write(self, data: bytes) -> None:
        """Append the bytes."""
        self._file.write(data)
        self.size += len(data)
        self.checksum = crc32(data, self.checksum)

    def flush(self) -> None:
        """Hand what is buffered to the system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(slots=True)
class StagedFile:
    """A file that is being written."""

    path: Path
    sink: Sink
    writer: pq.ParquetWriter
    row_count: int = 0
    least: dict[str, Any] = field(default_factory=dict)
    greatest: dict[str, Any] = field(default_factory=dict)

    def write(self, table: pa.Table) -> None:
        """Append one row group."""
        self.writer.write_table(table)
        self.row_count += table.num_rows
        for name in STATISTICS:
            extremes = pc.min_max(table.column(name)).as_py()
            if extremes["min"] is not None:
                self.least[name] = min(self.least.get(name, extremes["min"]), extremes["min"])
                self.greatest[name] = max(self.greatest.get(name, extremes["max"]), extremes["max"])

    def close(self) -> Part:
        """Finish the file."""
        self.writer.close()
        self.sink.close()
        size, checksum = self.sink.size, self.sink.checksum
        return Part(self.path, size, checksum, self.row_count, self.least, self.greatest)

    def discard(self) -> None:
        """Remove the file."""
        self.writer.close()
        self.sink.close()
        self.path.unlink(missing_ok=True)


def create_file(directory: Path) -> StagedFile:
    """Begin a file of a name that no other has."""
    path = directory / f"{uuid4().hex}.parquet"
    sink = Sink(path)
    writer = pq.ParquetWriter(
        sink,
        CHANGES,
        compression="snappy",
        use_dictionary=_REPETITIVE,
        write_statistics=list(STATISTICS),
        write_page_checksum=True,
    )
    return StagedFile(path, sink, writer)


def complete(part: Part, end_lsn: LSN) -> Part:
    """Write the file of a transaction that outgrew a batch again, now that its end LSN is known.

    Row group by row group, so memory stays bounded; the file without it is removed.
    """
    check(part)
    file = create_file(part.path.parent)
    position = CHANGES.get_field_index("end_lsn")
    with pq.ParquetFile(part.path) as source:
        for group in range(source.num_row_groups):
            table = source.read_row_group(group)
            ends = pa.repeat(pa.scalar(int(end_lsn), pa.int64()), table.num_rows)
            file.write(table.set_column(position, CHANGES.field(position), ends))
    part.path.unlink()
    return file.close()


def check(part: Part) -> None:
    """Raise a `SpoolError` where the file is not what was written."""
    checksum = 0
    try:
        with part.path.open("rb") as file:
            while block := file.read(_BLOCK):
                checksum = crc32(block, checksum)
    except FileNotFoundError:
        checksum = -1
    if checksum != part.checksum:
        raise SpoolError(f"The staged file {part.path} is not as it was written{DAMAGE}")
