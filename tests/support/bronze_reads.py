"""Which files of bronze are opened for their rows: by surveys, the native writer and reads of tables."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from pipeline.bronze import change_rows
from pipeline.bronze.change_rows import FilePart
from pipeline.bronze.changes_scan import ChangesScan
from pipeline.delta import rows


@dataclass
class BronzeReads:
    """The paths of the files that were opened, one entry for each time."""

    paths: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(os.path.getsize(path) for path in self.paths)


@contextmanager
def bronze_reads() -> Iterator[BronzeReads]:
    """Record the files of `bronze/changes` that are opened during a block."""
    reads, batches_of, read = BronzeReads(), ChangesScan._batches_of, change_rows._read

    def scan(changes: ChangesScan, path: str, schema: Any) -> Any:
        reads.paths.append(path)
        return batches_of(changes, path, schema)

    def read_part(part: FilePart, columns: Sequence[str]) -> Any:
        reads.paths.append(part.path)
        return read(part, columns)

    class DataFile(rows._DataFile):
        def __init__(self, path: str, *arguments: Any) -> None:
            if "/bronze/changes/" in path:
                reads.paths.append(path)
            super().__init__(path, *arguments)

    with (
        patch.object(ChangesScan, "_batches_of", scan),
        patch.object(change_rows, "_read", read_part),
        patch.object(rows, "_DataFile", DataFile),
    ):
        yield reads
