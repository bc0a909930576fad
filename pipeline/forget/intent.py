"""The keys that an unfinished `pgdelta forget` erases: files in `_pgdelta/forget`.

Once a key change is erased from bronze, nothing else connects its two keys. So the keys are stored from
before the first row is erased until after the last file is removed, and a run after a crash reads them. In a
folder the files are for their owner only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from pipeline.delta.store.mirror import files_of
from pipeline.errors import LakeError
from pipeline.table_name import TableName

_SUFFIX = ".json"


@dataclass(slots=True)
class Intent:
    """What is being erased from one table; `commit_lsns` are those of the changes that bronze had."""

    name: TableName
    id: str = field(default_factory=lambda: uuid4().hex)
    keys: set[str] = field(default_factory=set)
    commit_lsns: set[int] = field(default_factory=set)


class Intents:
    """Reads and writes the intents of a lake; `root` is its working root."""

    def __init__(self, root: str) -> None:
        self._folder = Path(root, "_pgdelta", "forget")
        self._files = files_of(self._folder)

    def has_any(self) -> bool:
        """Return whether a run has not ended."""
        return bool(self._files.names_in(str(self._folder)))

    def read(self, name: TableName) -> Intent:
        """Return the unfinished intent of a table, or a new one; raise LakeError for another table's."""
        found = Intent(name)
        for path in (self._folder / each for each in sorted(self._files.names_in(str(self._folder)))):
            if path.suffix != _SUFFIX:
                continue
            row = json.loads(self._files.read(path))
            other = TableName(row["schema"], row["table"])
            if other != name:
                raise LakeError(
                    f"A run of {other.command('forget')} has not ended. Run it again with its keys first."
                )
            found.id = row["id"]
            found.keys |= set(row["keys"])
            found.commit_lsns |= set(row["commit_lsns"])
        return found

    def write(self, intent: Intent) -> None:
        """Record an intent; it is stored once this returns."""
        path = self._folder / f"{intent.id}{_SUFFIX}"
        row = {
            "id": intent.id,
            **intent.name._asdict(),
            "keys": sorted(intent.keys),
            "commit_lsns": sorted(intent.commit_lsns),
        }
        self._files.write(path, json.dumps(row).encode())

    def keeps_versions(self, intent: Intent) -> bool | None:
        """Return whether a store keeps what is deleted, by an intent that was written; None if not known."""
        return self._files.keeps_versions(self._folder / f"{intent.id}{_SUFFIX}")

    def remove(self) -> None:
        """Remove all intents."""
        self._files.remove(str(self._folder / name) for name in self._files.names_in(str(self._folder)))
        if self._files.is_local and self._folder.is_dir():
            self._files.sync_folder(self._folder)
            self._folder.rmdir()
