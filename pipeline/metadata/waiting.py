"""Group commit: the next writer commits the items of all waiting threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Waiting(Generic[Key, Value]):
    """Items by key; the newest of a key counts. Several threads may use it."""

    def __init__(self) -> None:
        self._items: dict[Key, Value] = {}
        self._lock = threading.Lock()

    def put(self, items: Mapping[Key, Value]) -> None:
        """Add items."""
        with self._lock:
            self._items |= items

    @contextmanager
    def taken(self) -> Iterator[dict[Key, Value]]:
        """Give the items to a block that writes them; none if another thread has written this thread's.

        They are put back if the block fails: the threads that wait must not believe that theirs are written.
        """
        with self._lock:
            items, self._items = self._items, {}
        try:
            yield items
        except BaseException:
            with self._lock:
                self._items = items | self._items
            raise
