"""The data files of a table's versions: one dictionary that the versions share.

Applying a commit costs by its own size, not by the number of a table's files. Pure.
"""

from __future__ import annotations

import threading
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any
from urllib.parse import unquote

Add = dict[str, Any]


def file_key(action: Mapping[str, Any]) -> str:
    """Return what tells a file of a version from others: its path and its deletion vector."""
    vector = action.get("deletionVector")
    path: str = action["path"]
    if not vector:
        return path
    return f"{path}#{vector.get('storageType')}{vector.get('pathOrInlineDv')}@{vector.get('offset', '')}"


class Files(Mapping[str, Add]):
    """The files of one version, unchanged when the log goes on, except for their order.

    The newest version's files are in one dictionary that all versions share. Each older version that is
    still referenced has what to undo for it.
    """

    def __init__(self, store: FileStore | None = None, node: _Version | None = None, size: int = 0) -> None:
        self._store = store
        self._node = node
        self._size = size

    def __getitem__(self, key: str) -> Add:
        if self._store is None or self._node is None:
            raise KeyError(key)
        found = self._store.get(self._node, key)
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return self._size

    def keys(self) -> KeysView[str]:
        """Return the keys as of this version."""
        return self.as_dict().keys()

    def values(self) -> ValuesView[Add]:
        """Return the `add` actions as of this version."""
        return self.as_dict().values()

    def items(self) -> ItemsView[str, Add]:
        """Return keys and `add` actions as of this version."""
        return self.as_dict().items()

    def as_dict(self) -> dict[str, Add]:
        """Return a copy as a dictionary."""
        return self._store.copy(self._node) if self._store and self._node else {}


class _Version:
    """A version of the files: what to undo from the next version's to get these, if there is a next one."""

    __slots__ = ("next", "undo")

    def __init__(self) -> None:
        self.undo: dict[str, Add | None] = {}
        self.next: _Version | None = None


class FileStore:
    """The files of the newest version, and a way back to older ones for those who hold them."""

    def __init__(self, actions: Iterable[Mapping[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, Add] = {}
        self._newest = _Version()
        self.idle_commits = 0
        self._change(actions)

    def view(self) -> Files:
        """Return the files as they are now."""
        with self._lock:
            return Files(self, self._newest, len(self._files))

    def apply(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Apply the `add` and `remove` actions of the next commit."""
        with self._lock:
            undo = self._change(actions)
            node = _Version()
            self._newest.undo, self._newest.next = undo, node
            self._newest = node
            self.idle_commits += 1

    def get(self, node: _Version, key: str) -> Add | None:
        with self._lock:
            self.idle_commits = 0
            while node.next is not None:
                if key in node.undo:
                    return node.undo[key]
                node = node.next
            return self._files.get(key)

    def copy(self, node: _Version) -> dict[str, Add]:
        with self._lock:
            self.idle_commits = 0
            files = dict(self._files)
            undo: dict[str, Add | None] = {}
            while node.next is not None:
                for key, action in node.undo.items():
                    undo.setdefault(key, action)
                node = node.next
        for key, action in undo.items():
            if action is None:
                files.pop(key, None)
            else:
                files[key] = action
        return files

    def _change(self, actions: Iterable[Mapping[str, Any]]) -> dict[str, Add | None]:
        undo: dict[str, Add | None] = {}
        for action in actions:
            if (removed := action.get("remove")) is not None:
                key = self._known_key(file_key(removed))
                undo.setdefault(key, self._files.pop(key, None))
            elif (added := action.get("add")) is not None:
                key = file_key(added)
                undo.setdefault(key, self._files.get(key))
                self._files[key] = added
        return undo

    def _known_key(self, key: str) -> str:
        """Return the key of a file that another writer may have escaped in another way."""
        if key in self._files or ("%" not in key and key.isascii() and " " not in key):
            return key
        name = unquote(key)
        return next((known for known in self._files if unquote(known) == name), key)
