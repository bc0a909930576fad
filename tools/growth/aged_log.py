"""Age the log of a table by commits that are written to it directly, a commit every 3 seconds.

The files that they name do not exist. Their statistics keep readers away from them.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from pipeline.delta.checkpoint_files import commit_name
from pipeline.delta.checkpoints import write_checkpoint
from pipeline.delta.checksum import checksum_file, read_checksum
from pipeline.delta.log_retention import KEPT_SECONDS
from pipeline.delta.native_commit import Action, read_commit, remove_action
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import TableLog

PACE = 3.0  # seconds between two commits
_MERGED_EVERY = 300  # commits


@dataclass(slots=True)
class _Writer:
    """Writes versions after that of a table; `count` and `size` are those of its live files."""

    table: LakeTable
    commits: int
    version: int
    checksum: dict[str, Any]
    now: float = field(default_factory=time.time)

    @property
    def log(self) -> Path:
        return self.table.folder / "_delta_log"

    def write(self, actions: list[Action]) -> None:
        self.version += 1
        for action in actions:
            sign = 1 if "add" in action else -1 if "remove" in action else 0
            self.checksum["numFiles"] += sign
            self.checksum["tableSizeBytes"] += sign * sum(each.get("size", 0) for each in action.values())
        path, checksum = self.log / commit_name(self.version), Path(checksum_file(self.log, self.version))
        path.write_text("".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions))
        checksum.write_text(json.dumps(self.checksum, separators=(",", ":")))
        self.date(path, checksum)

    def checkpoint(self) -> None:
        write_checkpoint(self.table.folder, self.version)
        self.date(self.log / f"{self.version:020}.checkpoint.parquet")

    def date(self, *paths: Path) -> None:
        then = self.now - PACE * max(0, self.commits - self.version)
        for path in paths:
            os.utime(path, (then, then))

    def skip_to(self, version: int) -> None:
        """Let the log begin with a checkpoint of the present state, as that of a later version."""
        old = self.log / f"{self.version:020}.checkpoint.parquet"
        write_checkpoint(self.table.folder, self.version)
        kept = self.table.folder / ".kept"
        old.rename(kept)
        shutil.rmtree(self.log)
        self.log.mkdir()
        self.version = version
        new = self.log / f"{version:020}.checkpoint.parquet"
        kept.rename(new)
        (self.log / "_last_checkpoint").write_text(json.dumps({"version": version, "size": 1}))
        self.date(new)


def _begin(table: LakeTable, commits: int) -> tuple[_Writer, list[Action], Action]:
    """Return a writer, and the newest commit that added a file: its other actions, and that file's."""
    version = table.version()
    checksum = read_checksum(table.folder / "_delta_log", version) or {}
    for number in range(version, -1, -1):
        actions = read_commit(table.folder / "_delta_log", number) or []
        added = [action["add"] for action in actions if "add" in action]
        if added:
            others = [a for a in actions if "add" not in a and "remove" not in a and "metaData" not in a]
            return _Writer(table, commits, version, checksum), others, _dated_back(added[0])
    raise RuntimeError(f"No commit of {table.path} adds a file.")


def _dated_back(add: Action) -> Action:
    """Return a file whose rows were committed before all LSNs, so that nothing reads it."""
    stats = json.loads(add["stats"])
    for values in (stats["minValues"], stats["maxValues"]):
        values |= {name: 0 for name in ("commit_lsn", "end_lsn") if name in values}
        if "id" in values:
            values["id"] = -1  # of silver: no key is looked up there
    return {**add, "stats": json.dumps(stats)}


def _file(template: Action) -> Action:
    return {"add": {**template, "path": f"part-00000-{uuid4()}-c000.snappy.parquet", "dataChange": True}}


def _removals(template: Action, count: int, now: float) -> Iterator[Action]:
    """Yield removals of files, one every 3 seconds up to now."""
    for number in range(count):
        removed = remove_action(_file(template)["add"], data_change=False)
        removed["remove"]["deletionTimestamp"] = int((now - PACE * number) * 1000)
        yield removed


def age_appends(table: LakeTable, commits: int, *, kept: int | None) -> None:
    """Add commits that append one file each.

    With `kept` as maintenance leaves them: only so many of the newest commits, files merged every 15 minutes,
    the files of a day as removed ones in the checkpoints, and a checkpoint every 50 commits. Without it all
    commits and all files, and one checkpoint.
    """
    writer, others, template = _begin(table, commits)
    if kept is not None and kept < commits:
        writer.write(list(_removals(template, min(commits, 28_800), writer.now)))
        writer.checksum["numFiles"] += min(commits, 28_800)
        writer.checksum["tableSizeBytes"] += min(commits, 28_800) * template["size"]
        writer.skip_to(commits - kept)
    live: list[Action] = []
    while writer.version < commits:
        added = _file(template)
        live.append(added)
        actions = [*others, added]
        if kept is not None and len(live) > _MERGED_EVERY:
            actions = [remove_action(each["add"], data_change=False) for each in live[:-1]] + [
                _file(template)
            ]
            live = live[-1:]
        writer.write(actions)
        if kept is not None and writer.version % 50 == 0:
            writer.checkpoint()
    writer.checkpoint()
    TableLog.forget(table.path)


def age_replacements(table: LakeTable, commits: int, *, is_kept: bool) -> None:
    """Add commits that replace one file each; all stay in the log for 30 days.

    With `is_kept` as maintenance leaves them: checksums of the last hour, and few checkpoints.
    """
    writer, others, template = _begin(table, commits)
    live: Action | None = None
    while writer.version < commits:
        added = _file(template)
        removed = [remove_action(live["add"])] if live is not None else []
        is_last = writer.version + 1 >= commits
        writer.write([*others, *removed, *([] if is_last else [added])])
        live = added
        newer = commits - writer.version
        if is_kept and (writer.version % 1000 == 0 or (newer % 100 == 0 and newer * PACE <= KEPT_SECONDS)):
            writer.checkpoint()
    writer.checkpoint()
    TableLog.forget(table.path)
