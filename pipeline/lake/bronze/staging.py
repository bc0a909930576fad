"""Where staged files lie until a commit makes them part of bronze: under the storage root, or on the way.

On a root of this machine's file system the spool writes below the root, and landing moves a file into the
table's folder. For any other root files are written to a temporary folder and copied with Hadoop's own file
system client. What a dead run left behind is removed once this run holds the slot, and so is the only writer.
Nobody else can enter the folder; a file that leaves it for a table has the mode that the umask gives.
"""

import shutil
import tempfile
from pathlib import Path

from pipeline.bronze.staged import Part, check
from pipeline.lake.commits import DataFile
from pipeline.lake.folders import hadoop_files, path_of
from pipeline.lake.tables import Lake, LakeTable, local_path
from pipeline.private import make_private_folder


class Staging:
    """The folder of one ingest run, from which files go to tables of the lake."""

    def __init__(self, lake: Lake, name: str = "staging") -> None:
        self._lake = lake
        self._local_root = lake.local_root
        if self._local_root is None:
            self.directory = Path(tempfile.mkdtemp(prefix="pgdelta-"))
        else:
            self.directory = Path(self._local_root, "_pgdelta", name)
        self.clear()

    def clear(self) -> None:
        """Remove every staged file; the server sends again what was not landed."""
        shutil.rmtree(self.directory, ignore_errors=True)
        # what is above belongs to the lake, which others may write to as well
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(self.directory, exist_ok=True)

    def move(self, part: Part, table: LakeTable) -> DataFile:
        """Bring a file into the folder of a table, where a commit can name it."""
        check(part)
        if self._local_root is None:
            spark = self._lake.spark
            files, target = hadoop_files(spark, f"{table.path}/{part.path.name}")
            files.copyFromLocalFile(True, True, path_of(spark, f"file:{part.path}"), target)
        else:
            part.path.rename(Path(local_path(table.path), part.path.name))
        return DataFile(part.path.name, part.size, part.row_count, part.least, part.greatest)

    def close(self) -> None:
        """Remove what is left."""
        shutil.rmtree(self.directory, ignore_errors=True)
