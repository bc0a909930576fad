"""Where staged files lie until a commit makes them part of bronze: under the storage root, or on the way.

On a root of this machine's file system the spool writes below the root, and landing moves a file into the
table's folder. For any other root files are written to a temporary folder and copied with Hadoop's own file
system client. Each run has a folder of its own, which nobody else can enter; a file that leaves it for a
table has the mode that the umask gives. A run holds a lock on its folder: what dead runs left behind is
removed by the next one, which holds the slot, and one that is only held up keeps its files until its commit
is refused.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from pipeline.bronze.staged_files import Part, check
from pipeline.delta.commit_files import DataFile
from pipeline.delta.filesystem import hadoop_files, hadoop_path
from pipeline.delta.table import Lake, LakeTable, local_path
from pipeline.errors import LakeError
from pipeline.private_files import make_private_folder

# NFS locks no folder that is open for reading only
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF)


class Staging:
    """The folder of one ingest run, from which files go to tables of the lake.

    LakeError where a link is in the place of the folder that all runs have theirs in.
    """

    def __init__(self, lake: Lake, name: str = "staging") -> None:
        self._lake = lake
        self._local_root = lake.local_root
        self._lock: int | None = None
        if self._local_root is None:
            self.directory = Path(tempfile.mkdtemp(prefix="pgdelta-"))
            return
        runs = Path(self._local_root, "_pgdelta", name)
        # what is above a run's own folder belongs to the lake, which others may write to as well
        runs.mkdir(parents=True, exist_ok=True)
        if runs.is_symlink():
            raise LakeError(
                f"{runs} is a symbolic link, which is not followed: what is staged there could be read or "
                "changed by others; remove the link"
            )
        for left in runs.iterdir():
            _remove_unless_held(left)
        self.directory = runs / uuid4().hex
        make_private_folder(self.directory)
        self._lock = _open(self.directory)
        _hold(self._lock)

    def move(self, part: Part, table: LakeTable) -> DataFile:
        """Bring a file into the folder of a table, where a commit can name it."""
        check(part)
        if self._local_root is None:
            spark = self._lake.spark
            files, target = hadoop_files(spark, f"{table.path}/{part.path.name}")
            files.copyFromLocalFile(True, True, hadoop_path(spark, f"file:{part.path}"), target)
        else:
            part.path.rename(Path(local_path(table.path), part.path.name))
        return DataFile(part.path.name, part.size, part.row_count, part.least, part.greatest)

    def close(self) -> None:
        """Remove what is left."""
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            with suppress(OSError):  # others have theirs in it
                self.directory.parent.rmdir()


def _remove_unless_held(path: Path) -> None:
    """Remove what a dead run left, a file or a folder; of a link only the link."""
    try:
        folder = _open(path)
    except OSError:  # no folder, gone meanwhile, or another user's
        with suppress(OSError):
            path.unlink()
        return
    try:
        if _hold(folder):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _hold(folder: int) -> bool:
    """Lock a folder for as long as it is open; say whether no other process holds it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True
