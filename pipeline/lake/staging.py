"""Where staged files lie until Spark has landed them: under the storage root, where every executor sees them.

On a root of this machine's file system the spool writes there at once; for any other the files are written
to a temporary folder and copied with Hadoop's own file system client. What a dead run left behind is removed
once this run holds the slot, and so is the only writer.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from pipeline.bronze.spool import Staged
from pipeline.lake.tables import Lake


class Staging:
    """The folder of one ingest run."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._remote = lake.path("_pgdelta", "staging")
        local = lake.local_root
        self._is_remote = local is None
        if local is None:
            self.directory = Path(tempfile.mkdtemp(prefix="pgdelta-"))
        else:
            self.directory = Path(local, "_pgdelta", "staging")
        self.clear()

    def clear(self) -> None:
        """Remove every staged file; the server sends again what was not landed."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._is_remote:
            self._file_system().delete(self._path(self._remote), True)

    def publish(self, staged: Staged) -> dict[str, str]:
        """Make the files visible to Spark's executors and return local path → path for Spark."""
        if not self._is_remote:
            return {str(part.path): f"file:{part.path}" for part in staged.parts}
        published = {}
        for part in staged.parts:
            target = f"{self._remote}/{part.path.name}"
            self._file_system().copyFromLocalFile(
                True, True, self._path(f"file:{part.path}"), self._path(target)
            )
            published[str(part.path)] = target
        return published

    def remove(self, staged: Staged) -> None:
        """Remove files that have landed."""
        for part in staged.parts:
            if self._is_remote:
                self._file_system().delete(self._path(f"{self._remote}/{part.path.name}"), False)
            else:
                part.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove what is left."""
        self.clear()
        if self._is_remote:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _path(self, path: str) -> Any:
        jvm: Any = self._lake.spark._jvm
        return jvm.org.apache.hadoop.fs.Path(path)

    def _file_system(self) -> Any:
        spark: Any = self._lake.spark
        return self._path(self._remote).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
