"""Staged files: Parquet as `bronze/changes` holds it, from the first row to the folder of a table.

A run of ingest writes its files to a staging folder of its own; a file is moved to the folder of a table, and
a commit that names it makes it part of that table. Nothing rewrites it, so its schema, names and statistics
are those of the table. A file that was never committed is garbage: the server sends its changes again.

On a root of this machine's file system the staging folder is below the root, and a file is moved by renaming
it. For any other root it is a temporary folder, and files are copied with Hadoop's file system client. No
other user can enter the folder of a run; a file in the folder of a table has the mode that the umask gives. A
run locks its folder: the next run, which holds the slot, removes what dead runs left behind, and keeps the
files of one that is only delayed until its commit is refused.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.bronze.schema import CHANGES, STATISTICS
from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.data_files import DataFile
from pipeline.delta.filesystem import hadoop_files, hadoop_path
from pipeline.delta.statistics import statistics_json
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import LakeError, SpoolError, naming
from pipeline.private_files import lock_folder, make_private_folder, remove_unless_locked

FOLDERS = STREAM, COPIES, RETENTION_FOLDER = "staging", "copies", "retention"
"""Where runs have their staged files, below `_pgdelta`."""

_BLOCK = 1 << 20  # bytes
_REPETITIVE = ["op", "schema_name", "table_name", "old_kind", "relation_version", "relation_id", "origin"]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished file in the staging folder, and what Delta's log will have of it."""

    path: Path
    checksum: int  # CRC-32 of its bytes
    data: DataFile

    def check(self) -> None:
        """Raise SpoolError if the file is not what was written."""
        checksum = 0
        try:
            with self.path.open("rb") as file:
                while block := file.read(_BLOCK):
                    checksum = crc32(block, checksum)
        except FileNotFoundError:
            checksum = -1
        if checksum != self.checksum:
            raise damaged_file(str(self.path))


def damaged_file(file: str) -> SpoolError:
    """Return the error for a staged file that is not as it was written."""
    return SpoolError(
        f"The staged file {file} is not as it was written: it was changed, or the disk is damaged. None of "
        "its rows are in bronze; check the disk, and run again to get them from the server."
    )


def open_parquet(sink: Any) -> pq.ParquetWriter:
    """Return a writer of the files of `bronze/changes` into what has the methods of a binary file."""
    return pq.ParquetWriter(
        sink,
        CHANGES,
        compression="snappy",
        use_dictionary=_REPETITIVE,
        write_statistics=list(STATISTICS),
        write_page_checksum=True,
    )


class StagedFileWriter:
    """A new file in a folder, under a name that no other file has."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{uuid4().hex}.parquet"
        self._sink = _ChecksumSink(self._path)
        self._parquet = open_parquet(self._sink)
        self.row_count = 0
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}

    def write(self, table: pa.Table) -> None:
        """Append one row group."""
        self._parquet.write_table(table)
        self.row_count += table.num_rows
        for name in STATISTICS:
            extremes = pc.min_max(table.column(name)).as_py()
            if extremes["min"] is not None:
                self._least[name] = min(self._least.get(name, extremes["min"]), extremes["min"])
                self._greatest[name] = max(self._greatest.get(name, extremes["max"]), extremes["max"])

    def close(self) -> StagedFile:
        """Finish the file."""
        self._parquet.close()
        self._sink.close()
        data = DataFile(
            self._path.name,
            self._sink.size,
            self.row_count,
            statistics_json(self.row_count, self._least, self._greatest),
        )
        return StagedFile(self._path, self._sink.checksum, data)

    def discard(self) -> None:
        """Remove the file."""
        self._parquet.close()
        self._sink.close()
        self._path.unlink(missing_ok=True)


class _ChecksumSink:
    """A file for Arrow to write to that counts its bytes and computes their CRC-32."""

    def __init__(self, path: Path) -> None:
        self.size = self.checksum = 0
        self._path = path
        self._file = pa.OSFile(str(path), "wb")

    @property
    def closed(self) -> bool:
        """Return whether the file is closed."""
        return bool(self._file.closed)

    def write(self, data: bytes) -> None:
        """Append the bytes."""
        with naming(self._path):
            self._file.write(data)
        self.size += len(data)
        self.checksum = crc32(data, self.checksum)

    def flush(self) -> None:
        """Flush the buffer to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StagingFolder:
    """The folder of one run, from which files are moved to tables of the lake.

    Raises LakeError if a symbolic link is in the place of the folder that holds those of all runs.
    """

    def __init__(self, lake: Lake, name: str = STREAM) -> None:
        self._lake = lake
        self._local_root = lake.working_root
        self._lock: int | None = None
        if self._local_root is None:
            self.path = Path(tempfile.mkdtemp(prefix="pgdelta-"))
            return
        runs = Path(self._local_root, "_pgdelta", name)
        # what is above a run's own folder belongs to the lake, which others may write to as well
        runs.mkdir(parents=True, exist_ok=True)
        if runs.is_symlink():
            raise LakeError(
                f"{runs} is a symbolic link, and others could read or change what is staged there. Remove "
                "the link and run again."
            )
        for path in runs.iterdir():
            remove_unless_locked(path)
        self.path = runs / uuid4().hex
        make_private_folder(self.path)
        self._lock = lock_folder(self.path)

    def size(self) -> int:
        """Return the bytes of the files that are in the folder now."""
        total = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # moved meanwhile
                    total += entry.stat(follow_symlinks=False).st_size
        return total

    def move(self, file: StagedFile, table: LakeTable) -> DataFile:
        """Move a file to the folder of a table, for a commit to name it; raise SpoolError if damaged."""
        with crash_step(CrashStep.MOVE_FILE):
            file.check()
            if self._local_root is None:
                spark = self._lake.spark  # other storage is reached by Hadoop only
                files, target = hadoop_files(spark, f"{table.path}/{file.path.name}")
                files.copyFromLocalFile(True, True, hadoop_path(spark, f"file:{file.path}"), target)
            else:
                file.path.rename(table.folder / file.path.name)
        return file.data

    def close(self) -> None:
        """Remove the folder and what is left in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            with suppress(OSError):  # others have theirs in it
                self.path.parent.rmdir()


def remove_dead_runs(lake_root: str) -> None:
    """Remove the staged files of runs that ended; `lake_root` is a path on this machine."""
    for name in FOLDERS:
        runs = Path(lake_root, "_pgdelta", name)
        if runs.is_dir() and not runs.is_symlink():
            for path in runs.iterdir():
                remove_unless_locked(path)
