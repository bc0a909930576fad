"""Change the files of tables for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
