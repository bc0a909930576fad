"""The client of HDFS, with an end to each request: hdfs-native waits for as long as a server hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, count
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0  # seconds between two attempts of the client to connect
_ATTEMPTS = "dfs.client.failover.max.attempts"
_NO_HOSTS = "No NameNode hosts found"
_PORT = 8020  # where a URL names none
CHUNK = 4 << 20
"""Bytes that one request reads or writes."""

_T = TypeVar("_T")


class HdfsClient:
    """The requests to one file system; paths are absolute. Every method can be used by several threads."""

    def __init__(self, url: str, settings: Mapping[str, str], patience: float) -> None:
        """Use a URL such as `hdfs://server:8020`, with settings of Hadoop before those of HADOOP_CONF_DIR.

        A server that cannot be reached, or does not answer, is waited for twice as long as `patience`, in
        seconds. Then a request raises OSError. Raises RuntimeError if the settings do not lead to a server.
        """
        from hdfs_native import Client

        pauses = accumulate(min(_FIRST_PAUSE * 2**i, _LONGEST_PAUSE) for i in count())
        number = next(number for number, waited in enumerate(pauses) if waited > 2 * patience)
        config = {_ATTEMPTS: str(max(number - 1, 0)), **settings}  # it makes one more
        self._longest = 2 * patience + _FIRST_PAUSE
        try:
            self._client = Client(url, config)
        except RuntimeError as error:
            if _NO_HOSTS not in str(error):
                raise
            self._client = Client(f"{url}:{_PORT}", config)  # a server, and no name service

    def status(self, path: str) -> Any:
        """Return the status of a file or a folder; raise FileNotFoundError if there is none."""
        return self._wait(lambda: self._client.get_file_info(path))

    def list(self, path: str, *, recursive: bool) -> Any:
        """Return the status of everything in a folder; of a file its own."""
        return self._wait(lambda: [*self._client.list_status(path, recursive)])

    def read(self, path: str) -> Iterator[bytes]:
        """Yield the content of a file."""
        reader = self._wait(lambda: self._client.read(path))
        while chunk := self._wait(lambda: reader.read(CHUNK)):
            yield chunk

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a new file, and force it to the disks of all servers that have a part of it."""
        file = self._wait(lambda: self._client.create(path))
        for chunk in chunks:
            self._wait(lambda: file.write(chunk))  # noqa: B023 - it ends before the next one
        try:
            self._wait(file.hsync)
        except (OSError, RuntimeError) as error:
            if "erasure-coded" not in str(error):  # where closing the file is all that can be done
                raise
        self._wait(file.close)

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it."""
        self._wait(lambda: self._client.mkdirs(path, create_parent=True))

    def rename(self, path: str, to: str, *, overwrites: bool) -> None:
        """Rename a file; raise FileExistsError if the other one exists and is not to be overwritten."""
        self._wait(lambda: self._client.rename(path, to, overwrite=overwrites))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, or with `recursive` a folder, if it exists."""
        self._wait(lambda: self._client.delete(path, recursive=recursive))

    def _wait(self, call: Callable[[], _T]) -> _T:
        """Return what a call returns; leave it behind in its thread if it takes too long."""
        answers: SimpleQueue[tuple[_T | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                answers.put((call(), None))
            except BaseException as error:
                answers.put((None, error))

        threading.Thread(target=run, name="hdfs", daemon=True).start()
        try:
            found, error = answers.get(timeout=self._longest)
        except Empty:
            raise OSError(f"no answer for {self._longest:g} seconds") from None
        if error is not None:
            raise error
        return found  # type: ignore[return-value]
