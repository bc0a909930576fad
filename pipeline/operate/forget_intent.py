"""The keys that an unfinished `pgdelta forget` erases: files in `_pgdelta/forget`, for their owner only.

Once a key change is erased from bronze, nothing else connects its two keys. So the keys are on disk from
before the first row is erased until after the last file is removed, and a run after a crash reads them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from pipeline.delta.sync import sync_folder
from pipeline.errors import LakeError
from pipeline.private_files import make_private_folder, open_private
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
    """Reads and writes the intents of a lake on this machine."""

    def __init__(self, root: str) -> None:
        self._folder = Path(root, "_pgdelta", "forget")

    def read(self, name: TableName) -> Intent:
        """Return the unfinished intent of a table, or a new one; raise LakeError for another table's."""
        found = Intent(name)
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            row = json.loads(path.read_text(encoding="utf-8"))
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
        """Record an intent; it is on disk once this returns."""
        make_private_folder(self._folder, exist_ok=True)
        path = self._folder / f"{intent.id}{_SUFFIX}"
        temporary = path.with_suffix(".tmp")
        row = {
            "id": intent.id,
            "schema": intent.name.schema,
            "table": intent.name.table,
            "keys": sorted(intent.keys),
            "commit_lsns": sorted(intent.commit_lsns),
        }
        temporary.unlink(missing_ok=True)
        with open_private(temporary) as file:
            json.dump(row, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_folder(self._folder)

    def remove(self) -> None:
        """Remove all intents."""
        for path in self._folder.glob("*"):
            path.unlink()
        if self._folder.is_dir():
            sync_folder(self._folder)
            self._folder.rmdir()
