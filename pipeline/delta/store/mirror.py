"""This machine's copy of what a process reads and writes of a lake on an object store.

The files of a Delta table never change once they are there. So each process has a folder with those that it
has used, at the paths that they have below the root, and works on these as on a lake of this machine's file
system. Reading a file that is not there yet downloads it (`fetch`). A write is made here, uploaded by the
commit that names it, and becomes visible when the commit's own object is created (`create`). What the store
has is asked of the store: the folder is never listed instead.

The functions take paths, also of lakes on this machine, for which they do what their names say at no cost.
The folder is private, and removed when the process ends; the next process removes what a killed one left.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pipeline.delta.store.open_store import open_store
from pipeline.delta.store.store import Object, Store, StoreError, is_store, parts_of
from pipeline.errors import ConfigError
from pipeline.private_files import lock_folder, make_private_folder, remove_unless_locked

MAX_BYTES = 8 << 30
"""Bytes of data files that a mirror keeps; older ones are removed, and downloaded again when needed."""

CACHE_VARIABLE = "PGDELTA_CACHE"  # the folder of mirrors; by default one of temporary files
_MAX_FILES = 20_000  # so many data files at most, small ones too
_KEPT = 300.0  # seconds for which a file that was used stays
_AHEAD = 16  # files that are downloaded before they are read
_LOG = "_delta_log"
_MIRROR = re.compile("[0-9a-f]{32}")  # the names of the folders of mirrors

_mirrors: dict[str, Mirror] = {}  # by root
_folders: dict[str, Mirror] = {}  # by folder
_lock = threading.Lock()


class Mirror:
    """The folder of one root; `folder` is where the root's files are on this machine."""

    def __init__(self, store: Store, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.store = store
        self.folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._used: dict[str, tuple[float, int]] = {}  # data files: time and size, the longest unused first
        self._bytes = 0
        self._uploaded: set[str] = set()  # files that are here and in the store
        self._etags: dict[str, str | None] = {}  # of commits that are here

    def name(self, path: str | Path) -> str:
        """Return the name of the object of a path."""
        name = os.path.relpath(path, self.folder).replace(os.sep, "/")
        return "" if name == "." else name

    def path(self, name: str) -> str:
        """Return the path of an object."""
        return os.path.join(self.folder, *name.split("/"))

    def etag(self, path: str) -> str | None:
        """Return the etag of a commit that is here."""
        return self._etags.get(path)

    def fetch(self, path: str) -> None:
        """Download a file unless it is here; raise FileNotFoundError if the store does not have it."""
        if not os.path.exists(path):
            self._download(path)
        self._use(path)

    def fetch_all(self, objects: Iterable[Object]) -> None:
        """Download objects that are not here, or have another etag here, several at once."""
        paths = {self.path(each.name): each for each in objects}
        stale = [
            path for path, each in paths.items() if path in self._etags and self._etags[path] != each.etag
        ]
        for path in stale:
            self.drop(path)
        self.store.each(self.fetch, paths)
        for path, each in paths.items():
            self._etags[path] = each.etag

    def upload(self, path: str) -> None:
        """Upload a file that was written here, unless the store has it."""
        with self._lock:
            if path in self._uploaded:
                return
        if not os.path.exists(path):  # an older file, which the store has
            if not self._has(path):
                name = os.path.basename(path)  # a folder's name may have a value of a partition
                raise StoreError(f"{name} was removed before it was uploaded. Nothing is lost. Run again.")
            return
        self.store.upload(Path(path), self.name(path))
        with self._lock:
            self._uploaded.add(path)
        self._use(path)

    def create(self, path: str, content: bytes) -> bool:
        """Create an object and its file; return False if the object exists with other content."""
        etag = self.store.create(self.name(path), content)
        if etag is None:
            return False
        self._write(path, content)
        with self._lock:
            self._etags[path] = etag
            self._uploaded.add(path)
        return True

    def read_back(self, path: str) -> None:
        """Make the file of an object what the store has; raise FileNotFoundError if it has none."""
        content, etag = self.store.read(self.name(path))
        self._write(path, content)
        with self._lock:
            self._etags[path] = etag

    def remove(self, paths: Iterable[str]) -> None:
        """Delete objects and their files."""
        chosen = list(paths)
        self.store.delete(map(self.name, chosen))
        for path in chosen:
            self.drop(path)

    def drop(self, path: str) -> None:
        """Remove a file from this machine only."""
        with suppress(FileNotFoundError):
            os.unlink(path)
        with self._lock:
            self._uploaded.discard(path)
            self._etags.pop(path, None)
            self._bytes -= self._used.pop(path, (0.0, 0))[1]

    def drop_folder(self, folder: str) -> None:
        """Remove what this machine has of a folder, without the store's objects."""
        shutil.rmtree(folder, ignore_errors=True)
        begin = folder.rstrip(os.sep) + os.sep
        with self._lock:
            for known in (self._uploaded, self._etags, self._used):
                for path in [each for each in known if each.startswith(begin)]:
                    if known is self._used:
                        self._bytes -= self._used[path][1]
                    known.discard(path) if isinstance(known, set) else known.pop(path)

    def names(self, folder: str) -> Iterator[tuple[str, Object]]:
        """Yield the objects in a folder and in those below it, with their names relative to the folder."""
        begin = len(self.name(folder)) + 1 if self.name(folder) else 0
        return ((each.name[begin:], each) for each in self.list(folder))

    def list(self, folder: str, after: str | None = None) -> Iterator[Object]:
        """Yield the objects in a folder and in those below it, in order; with `after` those past a path."""
        return self.store.list(self.name(folder), None if after is None else self.name(after))

    def _has(self, path: str) -> bool:
        """Return whether the store has the object of a path."""
        name = self.name(path)
        following = self.store.list(name.rpartition("/")[0], after=name[:-1])
        return next((each.name for each in following if each.name >= name), None) == name

    def _download(self, path: str) -> None:
        temporary = Path(f"{path}.{uuid4().hex}.tmp")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            modified = self.store.download(self.name(path), temporary)
            os.utime(temporary, ns=(modified * 1_000_000, modified * 1_000_000))
            os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        with self._lock:
            self._uploaded.add(path)

    def _write(self, path: str, content: bytes) -> None:
        temporary = f"{path}.{uuid4().hex}.tmp"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, path)

    def _use(self, path: str) -> None:
        """Keep a file for a time, and remove what was not used for longer if there is too much."""
        if f"{os.sep}{_LOG}{os.sep}" in path:
            return
        try:
            size = os.path.getsize(path)
        except FileNotFoundError:
            return
        now = time.monotonic()
        old: list[str] = []
        with self._lock:
            self._bytes += size - self._used.pop(path, (0.0, 0))[1]
            self._used[path] = (now, size)
            excess, too_many = self._bytes - self._max_bytes, len(self._used) - _MAX_FILES
            for each, (used, bytes_) in self._used.items():
                if (excess <= 0 and too_many <= 0) or each == path or now - used < _KEPT:
                    break
                if each in self._uploaded:
                    old.append(each)
                    excess, too_many = excess - bytes_, too_many - 1
        for each in old:
            self.drop(each)


def use_store(root: str, options: Mapping[str, str] | None = None) -> None:
    """Connect to the store of a root by these options, if the root is on one; the process has one mirror."""
    if is_store(root):
        _mirror_at(root, options)


def mirror_at(url: str) -> Mirror | None:
    """Return the mirror of the root that a URL is below, None if it is on no object store."""
    if not is_store(url):
        return None
    url = _normal(url)
    for root, found in list(_mirrors.items()):
        if url == root or url.startswith(root + "/"):
            return found
    return _mirror_at(url, None)


def local_copy(url: str) -> str | None:
    """Return where a URL of an object store is on this machine, None for another URL."""
    found = mirror_at(url)
    if found is None:
        return None
    root = _normal(found.store.url)
    name = _normal(url)[len(root) :].strip("/")
    return found.path(name) if name else str(found.folder)


def mirror_of(path: str | Path) -> Mirror | None:
    """Return the mirror that a path of this machine is in, None for other paths."""
    if not _folders:
        return None
    text = str(path)
    return next(
        (m for folder, m in list(_folders.items()) if text == folder or text.startswith(folder + os.sep)),
        None,
    )


def fetch(path: str) -> str:
    """Return a path, once its file is on this machine; raise FileNotFoundError if the store lacks it."""
    found = mirror_of(path)
    if found is not None:
        found.fetch(path)
    return path


def fetch_all(paths: Iterable[str]) -> list[str]:
    """Return paths, once their files are on this machine, downloading several at once."""
    chosen = list(paths)
    found = mirror_of(chosen[0]) if chosen else None
    if found is not None:
        found.store.each(found.fetch, chosen)
    return chosen


def fetched(paths: Iterable[str]) -> Iterator[str]:
    """Yield paths whose files are on this machine, in order, downloading some ahead."""
    left = list(paths)
    if left and mirror_of(left[0]) is None:
        yield from left
        return
    for start in range(0, len(left), _AHEAD):
        yield from fetch_all(left[start : start + _AHEAD])


def remove_files(paths: Iterable[str | Path]) -> None:
    """Remove files of one lake that exist, in the store too."""
    chosen = [str(path) for path in paths]
    found = mirror_of(chosen[0]) if chosen else None
    if found is not None:
        found.remove(chosen)
        return
    for path in chosen:
        with suppress(FileNotFoundError):
            os.unlink(path)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a lake; `modified` is in seconds since 1970."""

    path: Path
    size: int
    modified: float


def files_below(folder: Path) -> Iterator[StoredFile]:
    """Yield the files in a folder and in those below it; of a store the objects, also those not here."""
    found = mirror_of(folder)
    if found is not None:
        for each in found.list(str(folder)):
            yield StoredFile(Path(found.path(each.name)), each.size, each.modified / 1000)
        return
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            with suppress(FileNotFoundError):
                status = path.stat()
                yield StoredFile(path, status.st_size, status.st_mtime)


def names_in(folder: str) -> dict[str, float]:
    """Return the files in a folder by name, with their times in seconds since 1970; none if not there."""
    found = mirror_of(folder)
    if found is not None:
        return {name: each.modified / 1000 for name, each in found.names(folder) if "/" not in name}
    times: dict[str, float] = {}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                times[entry.name] = entry.stat().st_mtime
    return times


def _mirror_at(root: str, options: Mapping[str, str] | None) -> Mirror:
    root = _normal(root)
    with _lock:
        found = _mirrors.get(root)
        if found is None:
            folder = _make_folder()
            found = _mirrors[root] = Mirror(open_store(root, options), folder)
            _folders[str(folder)] = found
        return found


def _normal(url: str) -> str:
    scheme, place, path = parts_of(url)
    return f"{'s3' if scheme == 's3a' else scheme}://{place}{path.rstrip('/')}"


def _make_folder() -> Path:
    """Make the folder of a mirror, and remove those of processes that were killed."""
    chosen = os.environ.get(CACHE_VARIABLE)
    parent = Path(chosen or tempfile.gettempdir(), f"pgdelta-{os.getuid()}")
    make_private_folder(parent, exist_ok=True)
    if parent.is_symlink() or parent.stat().st_uid != os.getuid():
        raise ConfigError(f"{parent} belongs to another user. Name a folder by {CACHE_VARIABLE}.")
    while True:
        for each in parent.iterdir():
            if _MIRROR.fullmatch(each.name):
                remove_unless_locked(each)
        folder = parent / uuid4().hex
        make_private_folder(folder)
        with suppress(FileNotFoundError):  # another process took it for that of a dead one
            descriptor = lock_folder(folder)
            if folder.exists():
                atexit.register(_remove_folder, folder, descriptor)
                return folder.resolve()


def _remove_folder(folder: Path, descriptor: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.close(descriptor)
