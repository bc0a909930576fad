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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from pipeline.delta.store.files import LOCAL, LakeFiles, StoredFile
from pipeline.delta.store.open_store import open_store
from pipeline.delta.store.store import Object, Store, StoreError, is_store, parts_of
from pipeline.errors import ConfigError
from pipeline.private_files import lock_folder, make_private_folder, remove_unless_locked

MAX_BYTES = 8 << 30
"""Bytes of data files that a mirror keeps; older ones are removed, and downloaded again when needed."""

CACHE_VARIABLE = "PGDELTA_CACHE"  # the folder of mirrors; by default one of temporary files
_MAX_FILES = 20_000  # so many data files at most, small ones too
_KEPT = 300.0  # seconds for which a file that was used stays
_LOG = "_delta_log"
_MIRROR = re.compile("[0-9a-f]{32}")  # the names of the folders of mirrors

_mirrors: dict[str, Mirror] = {}  # by root
_folders: dict[str, Mirror] = {}  # by folder
_lock = threading.Lock()


class Mirror(LakeFiles):
    """The files of one root of a store; `folder` is where they are on this machine."""

    is_local = False

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
        if not os.path.exists(path):
            self._download(path)
        self._use(path)

    def fetch_all(self, paths: Iterable[str]) -> None:
        self.store.each(self.fetch, list(paths))

    def fetch_objects(self, objects: Iterable[Object]) -> None:
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
        etag = self.store.create(self.name(path), content)
        if etag is None:
            return False
        self._write(path, content)
        with self._lock:
            self._etags[path] = etag
            self._uploaded.add(path)
        return True

    def read_back(self, path: str) -> None:
        content, etag = self.store.read(self.name(path))
        self._write(path, content)
        with self._lock:
            self._etags[path] = etag

    def below(self, folder: Path) -> Iterator[StoredFile]:
        for each in self.list(str(folder)):
            yield StoredFile(Path(self.path(each.name)), each.size, each.modified / 1000)

    def names_in(self, folder: str) -> dict[str, float]:
        return {name: each.modified / 1000 for name, each in self.names(folder) if "/" not in name}

    def listed(self, folder: str, after: str | None = None) -> Mapping[str, Object | None]:
        return {os.path.relpath(self.path(each.name), folder): each for each in self.list(folder, after)}

    def has_version(self, log: Path, version: int) -> bool:
        begin = f"{version:020}"
        found = next(self.list(str(log), after=str(log / begin)), None)
        return found is not None and Path(self.path(found.name)).name.startswith(f"{begin}.")

    def read(self, path: Path) -> bytes:
        return self.store.read(self.name(path))[0]

    def write(self, path: Path, content: bytes) -> None:
        self.store.write(self.name(path), content)

    def replace(self, written: Path, path: Path) -> None:
        self.store.upload(written, self.name(path))
        if path.exists():
            written.replace(path)
        else:
            written.unlink()

    def place(self, made: Path, path: Path) -> bool:
        os.link(made, path)
        self.upload(str(path))
        return True

    def finish(self, table: Path, paths: Sequence[Path]) -> None:
        self.store.each(self.upload, map(str, paths))

    def finish_commit(self, log: Path, *, is_first: bool) -> None: ...

    def sync_folder(self, folder: Path) -> None: ...

    def copy_all(self, pairs: Sequence[tuple[str, Path]]) -> None:
        self.store.each(lambda each: self.store.copy(self.name(each[0]), self.name(each[1])), pairs)

    def remove(self, paths: Iterable[str]) -> int:
        chosen = list(paths)
        self.store.delete(map(self.name, chosen))
        for path in chosen:
            self.drop(path)
        return len(chosen)

    def url(self, path: str) -> str:
        return f"{self.store.url}/{self.name(path)}"

    @property
    def client_options(self) -> dict[str, str] | None:
        return self.store.client_options

    def keeps_versions(self, path: Path) -> bool | None:
        return self.store.keeps_versions(self.name(path))

    def drop(self, path: str) -> None:
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


def files_of(path: str | Path) -> LakeFiles:
    """Return what the storage that a path of this machine is on does with files."""
    return mirror_of(path) or LOCAL


def fetch(path: str) -> str:
    """Return a path, once its file is on this machine; raise FileNotFoundError if the store lacks it."""
    files_of(path).fetch(path)
    return path


def fetch_all(paths: Iterable[str]) -> list[str]:
    """Return paths of one lake, once their files are on this machine, downloading several at once."""
    chosen = list(paths)
    if chosen:
        files_of(chosen[0]).fetch_all(chosen)
    return chosen


def fetched(paths: Sequence[str]) -> Iterator[str]:
    """Yield paths of one lake whose files are on this machine, in order, downloading some ahead."""
    return files_of(paths[0]).fetched(paths) if paths else iter(())


def remove_files(paths: Iterable[str | Path]) -> int:
    """Remove files of one lake that exist; return how many there were."""
    chosen = [str(path) for path in paths]
    return files_of(chosen[0]).remove(chosen) if chosen else 0


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
