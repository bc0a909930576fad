"""Change the files of tables for a while, and search everything that a lake has on disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.ipc as ipc
import pyarrow.parquet as pq


@contextmanager
def unreadable(paths: set[Path]) -> Iterator[None]:
    """Let files have the same size and no content for a block."""
    contents = {path: path.read_bytes() for path in paths}
    checksums = {path: path.with_name(f".{path.name}.crc") for path in paths}
    texts = {path: path.read_bytes() for path in checksums.values() if path.exists()}
    for path in texts:
        path.unlink()
    for path, content in contents.items():
        path.write_bytes(bytes(len(content)))
    try:
        yield
    finally:
        for path, content in (contents | texts).items():
            path.write_bytes(content)


def places_of(folder: Path, word: str) -> list[str]:
    """Return the files and folders below one that have a word in bytes, values, statistics or names."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if word in name or word in unquote(unquote(name)) or (path.is_file() and _has_word(path, word)):
            found.append(name)
    return found


_searched: set[tuple[Path, str, int, int]] = set()  # files without a word, by size and time of modification


def _has_word(path: Path, word: str) -> bool:
    state = path.stat()
    key = (path, word, state.st_size, state.st_mtime_ns)
    if key in _searched:
        return False
    if word in path.read_bytes().decode("latin-1") or any(word in text for text in _contents(path)):
        return True
    _searched.add(key)
    return False


def _contents(path: Path) -> list[str]:
    """Return what a file holds; one that a kill cut short has no footer, and its bytes must do."""
    if path.suffix == ".parquet" and path.read_bytes()[4:].endswith(b"PAR1"):
        with pq.ParquetFile(path) as file:
            groups = [str(file.metadata.row_group(n).to_dict()) for n in range(file.num_row_groups)]
            return [str(file.read().to_pylist()), *groups]
    return [str(piece) for piece in _pieces(path)] if path.suffix == ".arrow" else []


def _pieces(path: Path) -> Iterator[list[Any]]:
    """Yield the rows of an open stream's pieces; those that are sealed are no Arrow."""
    with path.open("rb") as file:
        while head := file.read(12):
            piece = file.read(int.from_bytes(head[:8], "little"))
            if piece.startswith(b"\xff\xff\xff\xff"):
                with ipc.open_stream(piece) as reader:
                    yield reader.read_all().to_pylist()
