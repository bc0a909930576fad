"""The files of a lake, by their paths on this machine, whatever storage they are on.

`LocalFiles` are those of a file system of this machine, which are synced to disk. The files of an object
store have copies here, which `mirror.Mirror` downloads and uploads. `mirror.files_of` gives which it is.
"""

from __future__ import annotations

import errno
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pipeline.delta.store.store import Object
from pipeline.delta.sync import sync_file, sync_folder, sync_names
from pipeline.errors import LakeError, naming
from pipeline.private_files import make_private_folder, open_private

SYNC_VARIABLE = "PGDELTA_SYNC"  # false omits syncing to disk, for measurements
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
_AHEAD = 16  # files that are downloaded before they are read


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a lake; `modified` is in seconds since 1970."""

    path: Path
    size: int
    modified: float


class LakeFiles(ABC):
    """What a storage does with files. A commit calls `finish`, `create`, `read_back` and `finish_commit`."""

    is_local = True
    """Whether files are where they are used, in folders that can be empty."""

    @abstractmethod
    def fetch(self, path: str) -> None:
        """Let a file be on this machine; raise FileNotFoundError if a store lacks it."""

    @abstractmethod
    def fetch_all(self, paths: Iterable[str]) -> None:
        """Let files be on this machine, several at once."""

    def fetched(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield paths whose files are on this machine, in order, downloading some ahead."""
        left = list(paths)
        for start in range(0, len(left), _AHEAD):
            self.fetch_all(left[start : start + _AHEAD])
            yield from left[start : start + _AHEAD]

    @abstractmethod
    def below(self, folder: Path) -> Iterator[StoredFile]:
        """Yield the files in a folder and in those below it."""

    @abstractmethod
    def names_in(self, folder: str) -> dict[str, float]:
        """Return the files in a folder by name, with their times in seconds since 1970; none if not there."""

    @abstractmethod
    def listed(self, folder: str, after: str | None = None) -> Mapping[str, Object | None]:
        """Return what is in a folder by its path below it, with the object of a store.

        A store lists only what sorts after a path.
        """

    @abstractmethod
    def has_version(self, log: Path, version: int) -> bool:
        """Return whether a log has the commit or the checkpoint of a version."""

    @abstractmethod
    def read(self, path: Path) -> bytes:
        """Read a small file that may be overwritten."""

    @abstractmethod
    def write(self, path: Path, content: bytes) -> None:
        """Write a small file that only this user may read; it is stored once this returns."""

    @abstractmethod
    def replace(self, written: Path, path: Path) -> None:
        """Put a file that was written on this machine in the place of another one, if there is one."""

    @abstractmethod
    def place(self, made: Path, path: Path) -> bool:
        """Give a file that was made on this machine a second name; return False if the name is taken."""

    @abstractmethod
    def finish(self, table: Path, paths: Sequence[Path]) -> None:
        """Let the data files of a table be stored before a commit names them."""

    @abstractmethod
    def create(self, path: str, content: bytes) -> bool:
        """Create a commit in one step; return False if it exists.

        Raises FileNotFoundError if its folder does not exist.
        """

    @abstractmethod
    def read_back(self, path: str) -> None:
        """Let a commit's file be what the storage has."""

    @abstractmethod
    def finish_commit(self, log: Path, *, is_first: bool) -> None:
        """Let a commit that was created outlive a loss of power."""

    @abstractmethod
    def copy_all(self, pairs: Sequence[tuple[str, Path]]) -> None:
        """Give each file the content of another one: pairs of source and target."""

    @abstractmethod
    def remove(self, paths: Iterable[str]) -> int:
        """Remove files that exist, with Hadoop's checksums of them; return how many there were."""

    @abstractmethod
    def drop(self, path: str) -> None:
        """Remove this machine's copy of a file of a store."""

    @abstractmethod
    def sync_folder(self, folder: Path) -> None:
        """Let the names in a folder outlive a loss of power, if it exists."""

    @abstractmethod
    def url(self, path: str) -> str:
        """Return where the storage has a file."""

    @property
    @abstractmethod
    def client_options(self) -> dict[str, str] | None:
        """The options with which another library opens a URL of the storage, None if it needs none."""

    @abstractmethod
    def keeps_versions(self, path: Path) -> bool | None:
        """Return whether the storage keeps what is removed, given a file in it; None if it does not say."""


class LocalFiles(LakeFiles):
    """The files of a file system of this machine."""

    def fetch(self, path: str) -> None: ...

    def fetch_all(self, paths: Iterable[str]) -> None: ...

    def below(self, folder: Path) -> Iterator[StoredFile]:
        for root, _, names in os.walk(folder):
            for name in names:
                path = Path(root, name)
                with suppress(FileNotFoundError):
                    status = path.stat()
                    yield StoredFile(path, status.st_size, status.st_mtime)

    def names_in(self, folder: str) -> dict[str, float]:
        times: dict[str, float] = {}
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    times[entry.name] = entry.stat().st_mtime
        return times

    def listed(self, folder: str, after: str | None = None) -> Mapping[str, Object | None]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return dict.fromkeys(os.listdir(folder))
        return {}

    def has_version(self, log: Path, version: int) -> bool:
        return (log / f"{version:020}.json").exists() or any(log.glob(f"{version:020}.checkpoint*"))

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, content: bytes) -> None:
        make_private_folder(path.parent, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        with open_private(temporary) as file:
            file.write(content.decode())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_folder(path.parent)

    def replace(self, written: Path, path: Path) -> None:
        with suppress(FileNotFoundError):
            os.chmod(written, path.stat().st_mode & 0o777)
        sync_file(written)
        _remove_checksum(path)
        written.replace(path)
        sync_folder(path.parent)

    def place(self, made: Path, path: Path) -> bool:
        sync_file(made)
        try:
            os.link(made, path)
        except FileExistsError:
            return False
        sync_folder(path.parent)
        return True

    def finish(self, table: Path, paths: Sequence[Path]) -> None:
        """Sync the files, Hadoop's checksums of them, and their folders in the table."""
        if not _syncs():
            return
        folders: dict[Path, None] = {}
        for path in paths:
            # a file that does not exist any more, and that is added again, was not written by this commit
            if not sync_file(path):
                continue
            sync_file(path.with_name(f".{path.name}.crc"))
            folders[path.parent] = None
            for above in path.parents:
                if above.is_relative_to(table):
                    folders[above] = None
        for folder in folders:
            sync_folder(folder)

    def create(self, path: str, content: bytes) -> bool:
        target = Path(path)
        if target.exists():
            return False
        temporary = target.with_name(f".{target.name}.{uuid4()}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with naming(path), os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if _syncs():
                    os.fsync(descriptor)
            # readers would refuse the new file by Hadoop's checksum of an earlier one of this name
            _remove_checksum(target)
            return _link(temporary, target)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()

    def read_back(self, path: str) -> None: ...

    def finish_commit(self, log: Path, *, is_first: bool) -> None:
        if _syncs():
            sync_folder(log)
            if is_first:
                sync_names(log.parent)

    def copy_all(self, pairs: Sequence[tuple[str, Path]]) -> None:
        for source, target in pairs:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:  # the file system may have no more links of a file
                shutil.copyfile(source, target)

    def remove(self, paths: Iterable[str]) -> int:
        count = 0
        for path in map(Path, paths):
            with suppress(FileNotFoundError):
                path.unlink()
                count += 1
                _remove_checksum(path)
        return count

    def drop(self, path: str) -> None: ...

    def sync_folder(self, folder: Path) -> None:
        with suppress(FileNotFoundError):
            sync_folder(folder)

    def url(self, path: str) -> str:
        return path

    @property
    def client_options(self) -> dict[str, str] | None:
        return None

    def keeps_versions(self, path: Path) -> bool | None:
        return False


LOCAL = LocalFiles()


def _syncs() -> bool:
    return os.environ.get(SYNC_VARIABLE) != "false"


def _remove_checksum(path: Path) -> None:
    """Remove Hadoop's checksum of a file."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _link(temporary: Path, target: Path) -> bool:
    try:
        os.link(temporary, target)
    except FileExistsError:
        # NFS repeats a request whose answer was lost, and then finds the link that the first request made
        return os.path.samefile(temporary, target)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise LakeError(
                f"The file system of {target.parent} has no hard links ({error.strerror}), so two writers "
                "could commit one version. Use a storage.root on a file system with hard links."
            ) from error
        raise
    return True
