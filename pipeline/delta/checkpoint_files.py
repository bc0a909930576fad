"""Find and read the checkpoints of a Delta log on a file system of this machine.

A checkpoint is one Parquet file, several (multi-part), or a file of Parquet or JSON that names sidecars (V2).
Its columns are the actions of the protocol, so each row has one of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from pipeline.delta.store.mirror import fetch, files_of
from pipeline.delta.store.store import Object

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(
    r"(?P<version>[0-9]{20})\."
    r"(?:json|checkpoint(?:\.(?P<part>[0-9]{10})\.(?P<parts>[0-9]{10})|\.(?P<unique>[0-9a-fA-F-]{36}))?"
    r"\.(?:parquet|json))"
)
_STATE = ("txn", "metaData", "protocol")
_BATCH = 8192  # rows that are turned into Python objects at a time


def commit_name(version: int) -> str:
    """Return the name of the file of a commit."""
    return f"{version:020d}.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint: the paths of its files, all parts of it."""

    version: int
    paths: tuple[str, ...]

    def state_actions(self) -> Iterator[dict[str, Any]]:
        """Yield its `txn`, `metaData` and `protocol` actions."""
        for path in self.paths:
            yield from _actions(path, _STATE)

    def file_actions(self, kind: Literal["add", "remove"]) -> Iterator[dict[str, Any]]:
        """Yield its actions of one kind about files, those of sidecars too."""
        for path in self.paths:
            for action in _actions(path, (kind, "sidecar")):
                sidecar = action.get("sidecar")
                if sidecar is None:
                    yield action
                else:
                    yield from _actions(_sidecar_path(path, sidecar["path"]), (kind,))


@dataclass(frozen=True, slots=True)
class LogFiles:
    """What a log has: the versions of its commits, ascending, and its complete checkpoints, newest first.

    `objects` are the files of a log on an object store by path, those of sidecars included.
    """

    commits: Sequence[int]
    checkpoints: Sequence[Checkpoint]
    objects: Mapping[str, Object] = field(default_factory=dict)


def list_log(folder: str, after: str | None = None) -> LogFiles:
    """List the log in a folder; it is empty if the folder does not exist.

    On an object store the list may begin after a path.
    """
    commits: list[int] = []
    whole: dict[int, list[Checkpoint]] = {}
    parts: dict[tuple[int, int], dict[int, str]] = {}
    listed = files_of(folder).listed(folder, after)
    objects = {os.path.join(folder, name): each for name, each in listed.items() if each is not None}
    for name in listed:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        version, path = int(match["version"]), os.path.join(folder, name)
        if "checkpoint" not in name:
            commits.append(version)
        elif match["part"] is not None:
            parts.setdefault((version, int(match["parts"])), {})[int(match["part"])] = path
        else:
            whole.setdefault(version, []).append(Checkpoint(version, (path,)))
    for (version, count), found in parts.items():
        if len(found) == count:
            whole.setdefault(version, []).append(Checkpoint(version, tuple(found[n] for n in sorted(found))))
    checkpoints = [each for version in sorted(whole, reverse=True) for each in whole[version]]
    return LogFiles(sorted(commits), checkpoints, objects)


def _sidecar_path(checkpoint: str, text: str) -> str:
    path = unquote(text)
    if path.startswith("file:"):
        return path.removeprefix("file://").removeprefix("file:")
    return os.path.join(os.path.dirname(checkpoint), "_sidecars", path)


def _actions(path: str, kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the actions of some kinds in one file, as they would be in the JSON of a commit."""
    fetch(path)
    if path.endswith(".json"):
        with open(path, encoding="utf-8") as file:
            for line in file:
                action = json.loads(line) if line.strip() else {}
                if any(kind in action for kind in kinds):
                    yield action
        return
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as parquet:
        present = [kind for kind in kinds if kind in parquet.schema_arrow.names]
        if not present:
            return
        fields = {kind: parquet.schema_arrow.field(kind).type for kind in present}
        # not the parsed statistics and partition values that a checkpoint may have besides the texts
        columns = [
            f"{kind}.{child.name}"
            for kind, struct in fields.items()
            for child in struct
            if not child.name.endswith("_parsed")
        ]
        for batch in parquet.iter_batches(batch_size=_BATCH, columns=columns):
            for kind in present:
                column = batch.column(kind)
                for value in column.drop_null().to_pylist():
                    yield {kind: _as_in_json(value, column.type)}


def _as_in_json(value: Any, kind: pa.DataType) -> Any:
    """Return a value of Arrow's as the JSON of a commit has it: no NULL in a struct, a map as an object."""
    import pyarrow as pa

    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        return {name: _as_in_json(each, kind.item_type) for name, each in value}
    if pa.types.is_struct(kind):
        return {
            field.name: _as_in_json(value[field.name], field.type)
            for field in kind
            if value[field.name] is not None
        }
    return [_as_in_json(each, kind.value_type) for each in value]
