"""What the logs of a lake's bronze say: entries with their sizes, files, positions and relation versions."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from tests.support.power.replay import Entry, Logs


def read_logs(root: Path, app_id: str) -> Logs:
    """Read the tables of a lake as they are now; positions are those of an application."""
    changes, relations, prepared = (
        tuple(
            _read_entry(path, app_id) for path in sorted((root / "bronze" / name).glob("_delta_log/*.json"))
        )
        for name in ("changes", "relations", "prepared")
    )
    return Logs(changes, relations, prepared)


def sizes_below(root: Path) -> dict[str, int]:
    """Return the size of every file below a folder, by its path there."""
    return {
        str(path.relative_to(root)): path.stat().st_size
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def _read_entry(path: Path, app_id: str) -> Entry:
    table = path.parent.parent
    actions: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    added = [action["add"] for action in actions if "add" in action]
    files = {str(table / unquote(add["path"])): int(add["size"]) for add in added}
    versions = (action["txn"] for action in actions if "txn" in action)
    lsns = [int(txn["version"]) for txn in versions if txn["appId"] == app_id]
    relations = frozenset(
        version
        for file in files
        for version in pq.read_table(file, columns=["relation_version"]).column(0).unique().to_pylist()
        if version is not None
    )
    return Entry(str(path), path.stat().st_size, files, lsns[0] if lsns else None, relations)
