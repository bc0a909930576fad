"""Change the files of tables for a while, and search everything that a lake has on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

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


def places_of(lake: Path, word: str) -> list[str]:
    """Return the files and folders of a lake that have a word in bytes, values, statistics or names."""
    found = []
    for path in sorted(lake.rglob("*")):
        name = str(path.relative_to(lake))
        texts = [name, unquote(unquote(name))]
        if path.is_file():
            texts.append(path.read_bytes().decode("latin-1"))
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                texts.append(str(file.read().to_pylist()))
                for group in range(file.metadata.num_row_groups):
                    texts.append(str(file.metadata.row_group(group).to_dict()))
        if any(word in text for text in texts):
            found.append(name)
    return found
