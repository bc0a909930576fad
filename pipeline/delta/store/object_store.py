"""The requests that a lake makes of an object store.

An object is created or replaced by a conditional request. The client repeats a request that fails or whose
answer is lost; a repeated creation finds the object of the first one, so an object that cannot be created is
read and compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from pipeline.delta.store.aws_profile import credentials_of, profile_of
from pipeline.delta.store.store import PATIENCE, Object, Read, Store, StoreError, first_line, parts_of
from pipeline.errors import ConfigError

_METADATA_SERVICE = "169.254.169.254"  # of machines in a cloud, which has their credentials
_PAUSES = (0.0, 0.2, 1.0, 3.0)  # seconds before an object is looked for that could not be created
_CLOCK = "RequestTimeTooSkewed"
_EXPIRED = ("ExpiredToken", "RequestExpired", "TokenRefreshRequired")
_ALLOW_HTTP = "allow_http"  # an option of the client, which its other options do not imply for each cloud
_NO_ANSWER = "error sending request"
_Tag = Callable[[Any], "str | None"]
_T = TypeVar("_T")


class ObjectStore(Store):
    """The objects below a root on S3, on Google's or Azure's store, or on one with their protocols."""

    def __init__(
        self, url: str, options: Mapping[str, str] | None = None, *, patience: float = PATIENCE
    ) -> None:
        """Connect to a root such as `s3://bucket/lake`.

        The cloud's own environment variables apply where `options` do not say otherwise. A request that gets
        no answer ends after `patience` seconds, and one that fails is repeated for twice as long.
        """
        super().__init__(url)
        scheme, _, path = parts_of(self.url)
        self._prefix = path.strip("/")
        self._options = dict(options or {})
        self._allows_http = endpoint_of(self._options).startswith("http://")
        self._store = _open(self.url, self._options, timedelta(seconds=patience))
        self._has_generations = scheme == "gs"

    @property
    def client_options(self) -> dict[str, str]:
        return {**self._options, **({"allow_http": "true"} if self._allows_http else {})}

    def with_patience(self, seconds: float) -> ObjectStore:
        return ObjectStore(self.url, self._options, patience=seconds)

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[Object]:
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
                    yield Object(found["path"][begin:], found["size"], _etag(found), modified)

    def read(self, name: str) -> tuple[bytes, str | None]:
        return self._read(name, _etag)

    def read_tagged(self, name: str) -> tuple[bytes, str | None]:
        """Return an object's content, and its tag for `replace`."""
        return self._read(name, self._tag)

    def _read(self, name: str, tag: _Tag) -> tuple[bytes, str | None]:
        import obstore

        with self._request("read", name):
            found = obstore.get(self._store, self._key(name))
            return bytes(found.bytes()), tag(found.meta)

    def download(self, name: str, path: Path) -> int:
        import obstore

        with self._request("read", name):
            found = obstore.get(self._store, self._key(name))
            with open(path, "xb") as file:
                for chunk in found.stream(min_chunk_size=1 << 20):
                    file.write(chunk)
            return int(found.meta["last_modified"].timestamp() * 1000)

    def upload(self, path: Path, name: str) -> str | None:
        import obstore

        with self._request("write", name):
            return _etag(obstore.put(self._store, self._key(name), path))

    def write(self, name: str, content: bytes) -> str | None:
        import obstore

        with self._request("write", name):
            return _etag(obstore.put(self._store, self._key(name), content))

    def create(self, name: str, content: bytes) -> str | None:
        return self._create(name, content, _etag) or self._refused(name, content, self.read)

    def create_tagged(self, name: str, content: bytes) -> str | None:
        """Do the same, and return the tag of the object for `replace`."""
        tag = self._create(name, content, self._tag)
        return tag or self._refused(name, content, self.read_tagged)

    def _create(self, name: str, content: bytes, tag: _Tag) -> str | None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._request("create", name):
            try:
                result = _answered(
                    lambda: obstore.put(
                        self._store, self._key(name), content, mode="create", use_multipart=False
                    )
                )
                return tag(result)
            except (AlreadyExistsError, PreconditionError):
                return None

    def _refused(self, name: str, content: bytes, read: Read) -> str | None:
        """Return the tag of an object that could not be created if it has this content, else None.

        Some stores refuse while another request for the object, maybe an earlier one of this process, is
        still under way. Raises StoreError if no object appears: that request may yet succeed.
        """
        for pause in _PAUSES:
            time.sleep(pause)
            with suppress(FileNotFoundError):
                found, tag = read(name)
                return (tag or "") if found == content else None
        raise StoreError(
            f"The store refused to create {self._place(name)} as if it existed, but does not have it. Run"
            " again."
        )

    def entry(self, name: str) -> ObjectEntry:
        return ObjectEntry(self, name)

    def replace(self, name: str, content: bytes, tag: str) -> str | None:
        """Replace an object that has a tag and return the new one; return None if it has another.

        The content has to tell its writer from others.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

        condition: Any = {"version" if self._has_generations else "e_tag": tag}
        with self._request("replace", name):
            try:
                result = obstore.put(
                    self._store, self._key(name), content, mode=condition, use_multipart=False
                )
                return self._tag(result) or ""
            except (AlreadyExistsError, NotFoundError, PreconditionError):
                pass
        return self._own(name, content, self.read_tagged)

    def keeps_versions(self, name: str) -> bool | None:
        import obstore

        if self._has_generations:  # of every object
            return None
        with self._request("read", name):
            return obstore.head(self._store, self._key(name)).get("version") is not None

    def copy(self, source: str, target: str) -> None:
        import obstore

        with self._request("copy", source):
            obstore.copy(self._store, self._key(source), self._key(target))

    def delete(self, names: Iterable[str]) -> None:
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

    def remove_unfinished(self) -> None:
        """Do nothing: what is not complete is no object and cannot be read."""

    def _delete_one(self, key: str) -> None:
        import obstore
        from obstore.exceptions import NotFoundError

        with suppress(NotFoundError, FileNotFoundError):
            _answered(lambda: obstore.delete(self._store, key))

    def _tag(self, found: Any) -> str | None:
        """Return what a condition names: the etag of an object, or for `gs` its generation."""
        tag: str | None = found["version" if self._has_generations else "e_tag"]
        return tag

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self._prefix, name) if part)

    def _translate(self, error: Exception, verb: str, place: str) -> Exception | None:
        from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

        if isinstance(error, (NotFoundError, FileNotFoundError)):
            if verb == "read":
                return FileNotFoundError(place)
            return StoreError(f"There is no {self.url}. Create the bucket, or correct storage.root.")
        if _CLOCK in str(error):
            return StoreError(
                f"The store refuses to {verb} {place}, because this machine's clock is wrong. Correct it."
            )
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
            return StoreError(f"The store refuses to {verb} {place}. Check the credentials and their rights.")
        if not isinstance(error, BaseError):
            return None
        if _METADATA_SERVICE in str(error):
            return StoreError(
                f"No credentials for {self.url} were found. Set the cloud's environment variables, or "
                "storage.options."
            )
        if any(code in str(error) for code in _EXPIRED):
            return StoreError(
                f"The store refuses to {verb} {place}. The credentials have expired. Renew them and run "
                "again."
            )
        return StoreError(
            f"The store failed to {verb} {place} ({first_line(error)}). Run again when it answers."
        )


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """An entry that is an object; its tag is the object's etag, or on `gs` its generation."""

    store: ObjectStore
    name: str

    def read(self) -> tuple[bytes, str]:
        """Return the content and its tag."""
        content, tag = self.store.read_tagged(self.name)
        return content, tag or ""

    def create(self, content: bytes) -> str | None:
        """Create the object."""
        return self.store.create_tagged(self.name, content)

    def replace(self, content: bytes, tag: str) -> str | None:
        """Replace the object that has a tag."""
        return self.store.replace(self.name, content, tag)

    def remove(self) -> None:
        """Delete the object."""
        self.store.delete([self.name])


def _etag(found: Any) -> str | None:
    """Return an object's etag; listings and answers do not agree about its quotes everywhere."""
    etag: str | None = found["e_tag"]
    return None if etag is None else etag.strip('"')


def _open(url: str, options: dict[str, str], patience: timedelta) -> Any:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    scheme, name, _ = parts_of(url)
    bucket = f"{scheme}://{name}"
    client: Any = {"timeout": patience, "connect_timeout": min(patience, timedelta(seconds=10))}
    plain = {name: value for name, value in options.items() if name != _ALLOW_HTTP}
    if endpoint_of(options).startswith("http://") or options.get(_ALLOW_HTTP) == "true":
        client["allow_http"] = True
    more: dict[str, Any] = {"retry_config": {"max_retries": 10, "retry_timeout": 2 * patience}}
    if (profile := profile_of(url, options)) is not None:
        more["credential_provider"] = credentials_of(profile)
    try:
        return from_url(bucket, config=plain or None, client_options=client, **more)  # type: ignore[arg-type]
    except (BaseError, ValueError, TypeError) as error:
        raise ConfigError(
            f"storage.options do not fit {bucket} ({first_line(error)}). Correct them."
        ) from None


def endpoint_of(options: Mapping[str, str]) -> str:
    """Return the address of a store that is not the cloud's own, as the client finds it; empty if none."""
    names = ("aws_endpoint", "endpoint", "aws_endpoint_url", "endpoint_url")
    plain = {name.lower(): value for name, value in options.items()}
    given = [plain[name] for name in names if name in plain]
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
