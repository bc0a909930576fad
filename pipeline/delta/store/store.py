"""The few requests that a lake makes of an object store: list, read, create, replace, delete.

An object is created or replaced on a condition that the store decides in one step, so two writers exclude
each other. The client repeats a request that fails or whose answer is lost; a repeated creation finds the
object of the first one, so an object that cannot be created is read and compared. Names are relative to the
store's root, with `/` between segments.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlparse

from pipeline.errors import ConfigError, LakeError

SCHEMES = ("s3", "s3a", "gs", "abfss", "az")
"""The schemes of roots on an object store."""

_AT_ONCE = 32  # requests of a process
_METADATA_SERVICE = "169.254.169.254"  # of machines in a cloud, which has their credentials
_EXPIRED = ("ExpiredToken", "RequestExpired", "TokenRefreshRequired")
_ALLOW_HTTP = "allow_http"  # an option of the client, which its other options do not imply for each cloud
_NO_ANSWER = "error sending request"
_PATIENCE = 60.0  # seconds
_T = TypeVar("_T")
_R = TypeVar("_R")


class StoreError(LakeError):
    """A store that refuses a request, or does not answer."""


class Location(Protocol):
    """Where a lake is: its root, and the options of its object store's client."""

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
    """Return whether a root is on an object store."""
    return urlparse(url).scheme in SCHEMES


class Store:
    """The objects below one root. Every method can be used by several threads."""

    def __init__(
        self, url: str, options: Mapping[str, str] | None = None, *, patience: float = _PATIENCE
    ) -> None:
        """Connect to a root such as `s3://bucket/lake`.

        The cloud's own environment variables apply where `options` do not say otherwise. A request that gets
        no answer ends after `patience` seconds, and one that fails is repeated for twice as long.
        """
        self.url = url.rstrip("/")
        self._prefix = urlparse(self.url).path.strip("/")
        self._options = dict(options or {})
        self._allows_http = endpoint_of(self._options).startswith("http://")
        self._store = _open(self.url, self._options, timedelta(seconds=patience))
        self._has_generations = urlparse(self.url).scheme == "gs"
        self._pool: ThreadPoolExecutor | None = None
        self._workers: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self.requests = 0
        """The number of requests that were made, repeated ones not counted."""

    @property
    def client_options(self) -> dict[str, str]:
        """What other clients of Rust's `object_store` need to use the store; some may be credentials."""
        return {**self._options, **({"allow_http": "true"} if self._allows_http else {})}

    def with_patience(self, seconds: float) -> Store:
        """Return the same store with another patience."""
        return Store(self.url, self._options, patience=seconds)

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[Object]:
        """Yield the objects whose names begin with a prefix, up to the end of a segment, in order.

        With `after`, those whose names follow a name.
        """
        import obstore

        begin = len(self._prefix) + 1 if self._prefix else 0
        offset = None if after is None else self._key(after)
        with self._request("list", prefix):
            for chunk in obstore.list(self._store, self._key(prefix) or None, offset=offset, chunk_size=1000):
                for found in chunk:
                    if found["size"] == 0 and "." not in found["path"].rpartition("/")[2]:
                        continue  # Hadoop's mark of a folder, whose name ends with a slash that is left out
                    if offset is not None and found["path"] <= offset:
                        continue  # some servers list all names
                    modified = int(found["last_modified"].timestamp() * 1000)
                    yield Object(found["path"][begin:], found["size"], found["e_tag"], modified)

    def read(self, name: str) -> tuple[bytes, str | None]:
        """Return an object's content and its etag; raise FileNotFoundError if there is none."""
        import obstore

        with self._request("read", name):
            found = obstore.get(self._store, self._key(name))
            return bytes(found.bytes()), self._tag(found.meta)

    def download(self, name: str, path: Path) -> int:
        """Write an object's content to a new file and return when it was modified, in milliseconds."""
        import obstore

        with self._request("read", name):
            found = obstore.get(self._store, self._key(name))
            with open(path, "xb") as file:
                for chunk in found.stream(min_chunk_size=1 << 20):
                    file.write(chunk)
            return int(found.meta["last_modified"].timestamp() * 1000)

    def upload(self, path: Path, name: str) -> str | None:
        """Write a file to an object, over what is there, and return its etag."""
        import obstore

        with self._request("write", name):
            return obstore.put(self._store, self._key(name), path)["e_tag"]

    def write(self, name: str, content: bytes) -> str | None:
        """Write an object, over what is there, and return its etag."""
        import obstore

        with self._request("write", name):
            return obstore.put(self._store, self._key(name), content)["e_tag"]

    def create(self, name: str, content: bytes) -> str | None:
        """Create an object and return its etag; return None if it exists with other content.

        The content has to tell its writer from others.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._request("create", name):
            try:
                result = _answered(
                    lambda: obstore.put(
                        self._store, self._key(name), content, mode="create", use_multipart=False
                    )
                )
                return self._tag(result) or ""
            except (AlreadyExistsError, PreconditionError):
                pass
        return self._own(name, content)

    def replace(self, name: str, content: bytes, etag: str) -> str | None:
        """Replace an object that has an etag and return the new one; return None if it has another.

        The content has to tell its writer from others.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

        condition: Any = {"version" if self._has_generations else "e_tag": etag}
        with self._request("replace", name):
            try:
                result = obstore.put(
                    self._store, self._key(name), content, mode=condition, use_multipart=False
                )
                return self._tag(result) or ""
            except (AlreadyExistsError, NotFoundError, PreconditionError):
                pass
        return self._own(name, content)

    def keeps_versions(self, name: str) -> bool | None:
        """Return whether the store keeps older versions of an object that was written just now.

        None if that cannot be known: `gs` gives every object a version.
        """
        import obstore

        if self._has_generations:
            return None
        with self._request("read", name):
            return obstore.head(self._store, self._key(name)).get("version") is not None

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store, over what is there."""
        import obstore

        with self._request("copy", source):
            obstore.copy(self._store, self._key(source), self._key(target))

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that do not exist are left out."""
        import obstore
        from obstore.exceptions import NotFoundError

        keys = [self._key(name) for name in names]
        if not keys:
            return
        with self._request("delete", self.url):
            try:
                _answered(lambda: obstore.delete(self._store, keys))
            except (NotFoundError, FileNotFoundError):  # a name without an object ended the request
                self.each(self._delete_one, keys)

    def _delete_one(self, key: str) -> None:
        import obstore
        from obstore.exceptions import NotFoundError

        with suppress(NotFoundError, FileNotFoundError):
            _answered(lambda: obstore.delete(self._store, key))

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

    def _tag(self, found: Any) -> str | None:
        """Return what tells an object's content from others: its etag, or for `gs` its generation."""
        tag: str | None = found["version" if self._has_generations else "e_tag"]
        return tag

    def _own(self, name: str, content: bytes) -> str | None:
        """Return the etag of an object if it has this content: a repeated request finds what it wrote."""
        try:
            found, etag = self.read(name)
        except FileNotFoundError:
            return None
        return (etag or "") if found == content else None

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self._prefix, name) if part)

    @contextmanager
    def _request(self, verb: str, name: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

        with self._lock:
            self.requests += 1
        place = name if name == self.url else f"{self.url}/{name}".rstrip("/")
        try:
            yield
        except (NotFoundError, FileNotFoundError):
            if verb != "read":
                raise StoreError(
                    f"There is no {self.url}. Create the bucket, or correct storage.root."
                ) from None
            raise FileNotFoundError(place) from None
        except (PermissionDeniedError, UnauthenticatedError):
            raise StoreError(
                f"The store refuses to {verb} {place}. Check the credentials and their rights."
            ) from None
        except BaseError as error:
            if _METADATA_SERVICE in str(error):
                raise StoreError(
                    f"No credentials for {self.url} were found. Set the cloud's environment variables, or "
                    "storage.options."
                ) from None
            if any(code in str(error) for code in _EXPIRED):
                raise StoreError(
                    f"The store refuses to {verb} {place}. The credentials have expired. Renew them and run "
                    "again."
                ) from None
            raise StoreError(
                f"The store failed to {verb} {place} ({_reason(error)}). Run again when it answers."
            ) from None


def _open(url: str, options: dict[str, str], patience: timedelta) -> Any:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    scheme = urlparse(url).scheme
    bucket = f"{scheme}://{urlparse(url).netloc}"
    client: Any = {"timeout": patience, "connect_timeout": min(patience, timedelta(seconds=10))}
    plain = {name: value for name, value in options.items() if name != _ALLOW_HTTP}
    if endpoint_of(options).startswith("http://") or options.get(_ALLOW_HTTP) == "true":
        client["allow_http"] = True
    retry: Any = {"max_retries": 10, "retry_timeout": 2 * patience}
    try:
        return from_url(bucket, config=plain or None, client_options=client, retry_config=retry)  # type: ignore[arg-type]
    except (BaseError, ValueError, TypeError) as error:
        raise ConfigError(f"storage.options do not fit {bucket} ({_reason(error)}). Correct them.") from None


def endpoint_of(options: Mapping[str, str]) -> str:
    """Return the address of a store that is not the cloud's own, as the client finds it; empty if none."""
    names = ("aws_endpoint", "endpoint", "aws_endpoint_url", "endpoint_url")
    given = [options[name] for name in names if name in options]
    given += [os.environ[name.upper()] for name in names[::2] if name.upper() in os.environ]
    return next(iter(given), "")


def _answered(request: Callable[[], _T]) -> _T:
    """Make a request that the client does not repeat if there is no answer, because it may have been made."""
    from obstore.exceptions import GenericError

    try:
        return request()
    except GenericError as error:
        if _NO_ANSWER not in str(error):
            raise
        return request()


def _reason(error: BaseException) -> str:
    """Return the first line of a client's error, which names the request and no secrets."""
    return str(error).strip().splitlines()[0][:900] if str(error).strip() else type(error).__name__
