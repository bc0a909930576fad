"""The requests that a lake makes of HDFS, without a JVM.

A file is written under a name of its own and renamed, which HDFS does in one step and, where a file is to be
created, refuses if the name exists. So a file is there whole or not at all, as an object is, and commits
exclude each other, also with those of Delta's log store, which renames too.

HDFS cannot replace a file on a condition. Therefore an entry is a folder with a file for each content, whose
name is a number: the process that creates the next number has replaced the content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from pipeline.delta.store.hdfs_client import CHUNK, HdfsClient
from pipeline.delta.store.store import HDFS, PATIENCE, Object, Store, StoreError, first_line, parts_of
from pipeline.errors import ConfigError

_UPLOADS = "_pgdelta/uploads"
_ABANDONED = 24 * 3600 * 1000  # milliseconds after which a file there is one that a dead process left
_ATTEMPTS = 8  # of a request that other processes prevent
_DENIED = "AccessControlException"
_SERVERS_ERROR = re.compile(r'RPCError\("[^"]*", "(.*?)(?:\\n|"\))')


class HdfsStore(Store):
    """The files below a root on HDFS."""

    def __init__(
        self, url: str, options: Mapping[str, str] | None = None, *, patience: float = PATIENCE
    ) -> None:
        """Connect to a root such as `hdfs://server:8020/lake`, or `hdfs://nameservice/lake`.

        Hadoop's settings are those of HADOOP_CONF_DIR, and of `options` before them. A server that cannot be
        reached, or does not answer, is waited for twice as long as `patience`, in seconds.
        """
        super().__init__(url)
        _, server, path = parts_of(self.url)
        self._root = path.rstrip("/")
        self._options = dict(options or {})
        self._client = _connect(f"{HDFS}://{server}", self._options, patience)
        self._has_tidied = False

    @property
    def client_options(self) -> dict[str, str]:
        return dict(self._options)

    def with_patience(self, seconds: float) -> HdfsStore:
        return HdfsStore(self.url, self._options, patience=seconds)

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[Object]:
        begin = len(self._root) + 1
        hidden = f"{_UPLOADS}/"
        found = [
            Object(each.path[begin:], each.length, _tag(each), each.modification_time)
            for each in self._files(prefix)
        ]
        found = [each for each in found if not each.name.startswith(hidden)]
        found.sort(key=lambda each: each.name)
        return (each for each in found if after is None or each.name > after)

    def read(self, name: str) -> tuple[bytes, str | None]:
        with self._request("read", name):
            status = self._client.status(self._key(name))
            if status.isdir:
                raise FileNotFoundError
            return b"".join(self._chunks(name)), _tag(status)

    def download(self, name: str, path: Path) -> int:
        with self._request("read", name):
            modified: int = self._client.status(self._key(name)).modification_time
            with open(path, "xb") as file:
                for chunk in self._chunks(name):
                    file.write(chunk)
            return modified

    def upload(self, path: Path, name: str) -> str | None:
        with self._request("write", name), open(path, "rb") as file:
            return self._put(name, iter(lambda: file.read(CHUNK), b""), overwrites=True)

    def write(self, name: str, content: bytes) -> str | None:
        with self._request("write", name):
            return self._put(name, [content], overwrites=True)

    def create(self, name: str, content: bytes) -> str | None:
        with self._request("create", name):
            tag = self._put(name, [content], overwrites=False)
        return self._own(name, content) if tag is None else tag

    def entry(self, name: str) -> HdfsEntry:
        return HdfsEntry(self, name)

    def keeps_versions(self, name: str) -> bool | None:
        """Return whether a folder above the file has snapshots, which keep files that are removed."""
        folder = self._key(name).rpartition("/")[0]
        while folder:
            with self._request("list", name), suppress(FileNotFoundError):
                if self._has_snapshots(folder):
                    return True
            folder = folder.rpartition("/")[0]
        return False

    def copy(self, source: str, target: str) -> None:
        with self._request("copy", source):
            self._put(target, self._chunks(source), overwrites=True)

    def delete(self, names: Iterable[str]) -> None:
        self.each(self._delete_one, names)

    def remove_unfinished(self) -> None:
        self.remove_folder(_UPLOADS)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all that is in it, if it exists."""
        with self._request("delete", name):
            self._client.delete(self._key(name), recursive=True)

    def _delete_one(self, name: str) -> None:
        with self._request("delete", name):
            self._client.delete(self._key(name))

    def _has_snapshots(self, folder: str) -> bool:
        try:
            return bool(self._client.list(f"{folder}/.snapshot", recursive=False))
        except (OSError, RuntimeError) as error:
            if "SnapshotException" not in str(error):  # a folder that can have none
                raise
            return False

    def _files(self, prefix: str) -> Sequence[Any]:
        """Return the files in a folder and in those below it; none if it does not exist."""
        folder = self._key(prefix)
        for _ in range(_ATTEMPTS):
            with self._request("list", prefix):
                try:
                    found = self._client.list(folder, recursive=True)
                except FileNotFoundError:
                    if self._find(folder) is None:
                        return []
                    continue  # a folder below it was removed meanwhile
                return [each for each in found if not each.isdir and each.path != folder]
        raise StoreError(f"The folders below {self._place(prefix)} change too fast to be listed. Run again.")

    def _find(self, key: str) -> Any | None:
        """Return the status of a file or a folder, None if there is none."""
        try:
            return self._client.status(key)
        except FileNotFoundError:
            return None

    def _chunks(self, name: str) -> Iterator[bytes]:
        return self._client.read(self._key(name))

    def _put(self, name: str, chunks: Iterable[bytes], *, overwrites: bool) -> str | None:
        """Write a file and return its tag; return None if it exists and is not to be overwritten."""
        upload = self._key(f"{_UPLOADS}/{uuid4().hex}")
        try:
            self._client.write(upload, chunks)
            status = self._client.status(upload)
            try:
                self._rename(upload, self._key(name), _tag(status), overwrites)
            except FileExistsError:
                self._client.delete(upload)
                return None
        except BaseException:
            with suppress(Exception):
                self._client.delete(upload)
            raise
        if not self._has_tidied:
            self._tidy(status.modification_time)
        return _tag(status)

    def _rename(self, source: str, target: str, tag: str, overwrites: bool) -> None:
        try:
            self._client.rename(source, target, overwrites=overwrites)
        except FileNotFoundError:
            found = self._find(target) if self._find(source) is None else None
            if found is not None and _tag(found) == tag:  # it was renamed before, and the answer was lost
                return
            self._client.make_folder(target.rpartition("/")[0])
            self._client.rename(source, target, overwrites=overwrites)

    def _tidy(self, now: int) -> None:
        """Remove what processes left that died while they wrote a file; `now` is the server's time."""
        self._has_tidied = True
        with suppress(FileNotFoundError):
            for each in self._client.list(self._key(_UPLOADS), recursive=False):
                if now - each.modification_time > _ABANDONED:
                    self._client.delete(each.path)

    def _key(self, name: str) -> str:
        return "/".join([self._root, name]).rstrip("/") or "/"

    def _translate(self, error: Exception, verb: str, place: str) -> Exception | None:
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(place)
        if not isinstance(error, (OSError, RuntimeError)):
            return None
        if _DENIED in str(error):
            return StoreError(
                f"HDFS refuses to {verb} {place} ({_reason(error)}). Check the user and its rights."
            )
        return StoreError(f"HDFS failed to {verb} {place} ({_reason(error)}). Run again when it answers.")


@dataclass(frozen=True, slots=True)
class HdfsEntry:
    """An entry that is a folder of numbered files; its tag is the greatest number.

    A late process may create a number that is gone already. It finds a greater one then, and has replaced
    nothing. The file with the greatest number is never removed.
    """

    store: HdfsStore
    name: str

    def read(self) -> tuple[bytes, str]:
        """Return the content and its tag."""
        for _ in range(_ATTEMPTS):
            newest = max(self._numbers(), default=0)
            if not newest:
                raise FileNotFoundError(f"{self.store.url}/{self.name}")
            with suppress(FileNotFoundError):  # replaced meanwhile
                return self.store.read(self._file(newest))[0], str(newest)
        raise StoreError(f"{self.store.url}/{self.name} changes too fast to be read. Run again.")

    def create(self, content: bytes) -> str | None:
        """Create the first file."""
        return self._own(content) if self._numbers() else self._add(1, content)

    def replace(self, content: bytes, tag: str) -> str | None:
        """Create the next file after the one with a number."""
        number = int(tag)
        if max(self._numbers(), default=0) != number:  # removed, or replaced
            return self._own(content)
        return self._add(number + 1, content)

    def remove(self) -> None:
        """Remove the folder."""
        self.store.remove_folder(self.name)

    def _add(self, number: int, content: bytes) -> str | None:
        if self.store.create(self._file(number), content) is None:
            return self._own(content)
        found = self._numbers()
        if max(found, default=0) > number:
            self.store.delete([self._file(number)])
            return self._own(content)
        self.store.delete(self._file(each) for each in found if each < number)
        return str(number)

    def _own(self, content: bytes) -> str | None:
        try:
            found, tag = self.read()
        except FileNotFoundError:
            return None
        return tag if found == content else None

    def _numbers(self) -> list[int]:
        return [int(each.name.rpartition("/")[2]) for each in self.store.list(self.name)]

    def _file(self, number: int) -> str:
        return f"{self.name}/{number:020}"


def _connect(url: str, options: Mapping[str, str], patience: float) -> HdfsClient:
    try:
        return HdfsClient(url, options, patience)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"The root {url} cannot be used ({_reason(error)}). Correct storage.root, or Hadoop's"
            " settings in HADOOP_CONF_DIR."
        ) from None


def _reason(error: Exception) -> str:
    """Return the sentence of a server's exception, without the calls that it names, or the client's."""
    found = _SERVERS_ERROR.search(str(error))
    return first_line(error) if found is None else found[1].replace('\\"', '"')


def _tag(status: Any) -> str:
    """Return what tells a file's content from others: a file is written whole, under a new time."""
    return f"{status.modification_time:x}-{status.length:x}"
