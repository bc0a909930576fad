"""The few requests that a lake makes of a store: list, read, create, replace, delete.

A file is created, or an entry replaced, on a condition that the store decides in one step, so two writers
exclude each other. Names are relative to the store's root, with `/` between segments.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from pipeline.errors import LakeError

HDFS = "hdfs"
SCHEMES = ("s3", "s3a", "gs", "abfss", "az", HDFS)
"""The schemes of roots on a store."""

WITHOUT_SPARK = ("gs", "abfss", "az")
"""Those for which the project installs no client of Spark's."""

PATIENCE = 60.0
"""Seconds after which a request without an answer ends."""

_AT_ONCE = 32  # requests of a process
Read = Callable[[str], tuple[bytes, "str | None"]]
_T = TypeVar("_T")
_R = TypeVar("_R")


class StoreError(LakeError):
    """A store that refuses a request, or does not answer."""


class Location(Protocol):
    """Where a lake is: its root, and the options of its store's client."""

    @property
    def root(self) -> str:
        """The root, without a slash at its end."""

    @property
    def options(self) -> Mapping[str, str]:
        """The options; some may be credentials."""


@dataclass(frozen=True, slots=True)
class Object:
    """An object as a listing has it; `modified` is in milliseconds since 1970."""

    name: str
    size: int
    etag: str | None
    modified: int


def is_store(url: str) -> bool:
    """Return whether a root is on a store: an object store or HDFS."""
    return parts_of(url)[0] in SCHEMES


def parts_of(url: str) -> tuple[str, str, str]:
    """Return the scheme, the server or bucket, and the path of a URL on a store.

    In names of objects, as in Hadoop's, `#` and `?` have no meaning. Hadoop also writes `hdfs:/lake`.
    """
    scheme, _, rest = url.partition(":")
    place, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest.lstrip("/"))
    return scheme.lower(), place, f"/{path}"


class Entry(Protocol):
    """A small object that processes replace, each on the condition that it has the content that it read.

    Every content has to tell its writer from others.
    """

    def read(self) -> tuple[bytes, str]:
        """Return the content and its tag; raise FileNotFoundError if there is none."""

    def create(self, content: bytes) -> str | None:
        """Create the entry and return its tag; return None if it exists with other content."""

    def replace(self, content: bytes, tag: str) -> str | None:
        """Replace the content that has a tag and return the new tag; return None if it has another one."""

    def remove(self) -> None:
        """Remove the entry, if it exists."""


class Store(ABC):
    """The objects below one root. Every method can be used by several threads."""

    def __init__(self, url: str) -> None:
        """Use a root such as `s3://bucket/lake`."""
        self.url = url.rstrip("/")
        self.requests = 0
        """The number of requests that were made, repeated ones not counted."""
        self._pool: ThreadPoolExecutor | None = None
        self._workers: set[threading.Thread] = set()
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def client_options(self) -> dict[str, str]:
        """What other clients of Rust's `object_store` need to use the store; some may be credentials."""

    @abstractmethod
    def with_patience(self, seconds: float) -> Store:
        """Return the same store with another patience."""

    @abstractmethod
    def list(self, prefix: str = "", after: str | None = None) -> Iterator[Object]:
        """Yield the objects whose names begin with a prefix, up to the end of a segment, in order.

        With `after`, those whose names follow a name.
        """

    @abstractmethod
    def read(self, name: str) -> tuple[bytes, str | None]:
        """Return an object's content and its etag; raise FileNotFoundError if there is none."""

    @abstractmethod
    def download(self, name: str, path: Path) -> int:
        """Write an object's content to a new file and return when it was modified, in milliseconds."""

    @abstractmethod
    def upload(self, path: Path, name: str) -> str | None:
        """Write a file to an object, over what is there, and return its etag."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> str | None:
        """Write an object, over what is there, and return its etag."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> str | None:
        """Create an object and return its etag; return None if it exists with other content.

        The content has to tell its writer from others.
        """

    @abstractmethod
    def entry(self, name: str) -> Entry:
        """Return an entry by its name."""

    @abstractmethod
    def keeps_versions(self, name: str) -> bool | None:
        """Return whether the store keeps older versions of an object that was written just now.

        None if that cannot be known.
        """

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store, over what is there."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that do not exist are left out."""

    @abstractmethod
    def remove_unfinished(self) -> None:
        """Remove what processes left that died while they wrote an object; a listing does not have it.

        No process may write meanwhile.
        """

    def each(self, call: Callable[[_T], _R], values: Iterable[_T]) -> Sequence[_R]:
        """Call a function for each value, several at once, and return the results in order.

        Within such a call the values are taken one after the other: threads that wait for threads of one pool
        would wait without end.
        """
        chosen = list(values)
        if len(chosen) < 2 or threading.current_thread() in self._workers:
            return [call(value) for value in chosen]
        with self._lock:
            if self._pool is None:
                add = self._workers.add
                self._pool = ThreadPoolExecutor(
                    _AT_ONCE, "store", initializer=lambda: add(threading.current_thread())
                )
        return list(self._pool.map(call, chosen))

    def _own(self, name: str, content: bytes, read: Read | None = None) -> str | None:
        """Return the tag of an object if it has this content: a repeated request finds what it wrote."""
        try:
            found, tag = (read or self.read)(name)
        except FileNotFoundError:
            return None
        return (tag or "") if found == content else None

    @contextmanager
    def _request(self, verb: str, name: str) -> Iterator[None]:
        """Count a request, and raise the store's error for one that its client raises."""
        with self._lock:
            self.requests += 1
        try:
            yield
        except Exception as error:
            found = self._translate(error, verb, self._place(name))
            if found is None:
                raise
            raise found from None

    @abstractmethod
    def _translate(self, error: Exception, verb: str, place: str) -> Exception | None:
        """Return the error of a request to raise for one of the client; None if it is not the client's."""

    def _place(self, name: str) -> str:
        return name if name == self.url else f"{self.url}/{name}".rstrip("/")


def first_line(error: BaseException) -> str:
    """Return the first line of a client's error, which names the request and no secrets."""
    return str(error).strip().splitlines()[0][:900] if str(error).strip() else type(error).__name__
