"""What is on disk of an open transaction: pieces in the order of arrival, each after its size and checksum.

The file is open only while it is written or read, and nothing that is in it stays in memory.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from uuid import uuid4
from zlib import crc32

import pyarrow as pa
import pyarrow.ipc as ipc

from pipeline.bronze.staged_files import damaged_file

_COMPRESSED = ipc.IpcWriteOptions(compression="lz4")
_SIZE = Struct("<Q")  # bytes of a piece
_CHECKSUM = Struct("<I")  # CRC-32 of size and piece, so that zeros are no piece


class Pieces:
    """A new file in a folder, for one thread at a time; `row_count` is for its owner to count."""

    def __init__(self, folder: Path, xid: int) -> None:
        self.row_count = 0
        self._path = folder / f"{uuid4().hex}.arrow"
        self._xid = xid
        self._count = 0

    def add(self, piece: bytes | pa.Buffer) -> None:
        """Add a piece at the end."""
        view = memoryview(piece)
        with self._path.open("ab") as file:
            size = _SIZE.pack(len(view))
            file.write(size + _CHECKSUM.pack(crc32(view, crc32(size))))
            file.write(view)
        self._count += 1

    def add_table(self, table: pa.Table) -> None:
        """Add rows as a piece, an Arrow stream."""
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, table.schema, options=_COMPRESSED) as writer:
            writer.write_table(table)
        self.add(sink.getvalue())

    def take(self) -> Iterator[pa.Buffer]:
        """Yield the pieces, then remove the file; raise SpoolError if one is not as it was written."""
        with pa.OSFile(str(self._path)) as file:
            for _ in range(self._count):
                yield self._next(file)
        self.remove()

    def remove(self) -> None:
        """Remove the file, if there is one."""
        self._path.unlink(missing_ok=True)

    def _next(self, file: pa.OSFile) -> pa.Buffer:
        head, checksum = file.read(_SIZE.size), file.read(_CHECKSUM.size)
        if len(checksum) == _CHECKSUM.size:
            [size] = _SIZE.unpack(head)
            if size <= file.size() - file.tell():
                piece = file.read_buffer(size)
                if crc32(piece, crc32(head)) == _CHECKSUM.unpack(checksum)[0]:
                    return piece
        raise damaged_file(f"{self._path} of the open transaction {self._xid}")


def table_of(piece: pa.Buffer) -> pa.Table:
    """Return the rows of a piece that `add_table` added."""
    with ipc.open_stream(piece) as reader:
        return reader.read_all()
