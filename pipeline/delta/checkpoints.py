"""Checkpoints of a log on a file system of this machine, and the clean-up of versions that are out of date.

The Delta project's own Rust library writes the checkpoint, in a folder of links to the log: it does not sync
what it writes. The checkpoint is then synced, linked into the log, and named in `_last_checkpoint`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from pipeline.delta.checkpoint_files import Checkpoint, commit_name, list_log
from pipeline.delta.sync import sync_file, sync_folder

_INTERVAL = "delta.checkpointInterval"
_DEFAULT_INTERVAL = 10
_RETENTION = "delta.logRetentionDuration"
_CLEANS = "delta.enableExpiredLogCleanup"
_DEFAULT_RETENTION = 30 * 86_400.0
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0, "week": 604_800.0}
_DURATION = re.compile(r"([0-9]+)\s+([a-z]+?)s?(?=\s|$)")
_VERSIONED = re.compile(r"\.?([0-9]{20})\.")
_LAST = "_last_checkpoint"
_CLEANING = 5  # checkpoints between two clean-ups
_SHADOW = ".checkpoint-"
_ABANDONED = 3600.0  # seconds after which no process writes a checkpoint any more


def checkpoint_if_due(table: Path, version: int, configuration: Mapping[str, str]) -> bool:
    """Write a checkpoint of a version, and clean the log up, if the table's interval says so."""
    try:
        interval = max(int(configuration.get(_INTERVAL, _DEFAULT_INTERVAL)), 1)
    except ValueError:
        interval = _DEFAULT_INTERVAL
    if version <= 0 or version % interval:
        return False
    write_checkpoint(table, version)
    # which lists the log
    if version % (interval * _CLEANING) == 0 and configuration.get(_CLEANS, "true").lower() == "true":
        remove_expired(table, version, time.time() - _seconds(configuration.get(_RETENTION)))
    return True


def write_checkpoint(table: Path, version: int) -> None:
    """Write a checkpoint of a version of the log; do nothing if it has one."""
    from deltalake import DeltaTable

    log = table / "_delta_log"
    if (log / _name(version)).exists():
        return
    _remove_abandoned(table)
    base = _newest_checkpoint(log, version)
    shadow = table / f"{_SHADOW}{uuid4()}"
    links = shadow / "_delta_log"
    try:
        links.mkdir(parents=True)
        begin = base.version if base else -1
        for each in range(begin + 1, version + 1):
            os.link(log / commit_name(each), links / commit_name(each))
        if base is not None:
            for path in map(Path, base.paths):
                os.link(path, links / path.name)
            if (log / "_sidecars").is_dir():
                (links / "_sidecars").symlink_to(log / "_sidecars")
        DeltaTable(str(shadow), version=version).create_checkpoint()
        [made] = links.glob(f"{version:020}.checkpoint*.parquet")
        pointer = links / _LAST
        sync_file(made)
        os.chmod(made, (log / commit_name(version)).stat().st_mode & 0o777)
        try:
            os.link(made, log / made.name)
        except FileExistsError:
            return  # another writer's
        sync_folder(log)
        _replace_pointer(log, version, pointer)
    finally:
        shutil.rmtree(shadow, ignore_errors=True)


def _name(version: int) -> str:
    return f"{version:020}.checkpoint.parquet"


def _newest_checkpoint(log: Path, version: int) -> Checkpoint | None:
    """Return the newest checkpoint before a version, without listing the log if it is the last one."""
    try:
        last = json.loads((log / _LAST).read_bytes())
        if int(last["version"]) < version and (log / _name(last["version"])).exists():
            return Checkpoint(last["version"], (str(log / _name(last["version"])),))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    return next((each for each in list_log(str(log)).checkpoints if each.version < version), None)


def _remove_abandoned(table: Path) -> None:
    """Remove the folders of checkpoints whose writers died."""
    for shadow in table.glob(f"{_SHADOW}*"):
        with suppress(FileNotFoundError):
            if shadow.stat().st_mtime < time.time() - _ABANDONED:
                shutil.rmtree(shadow, ignore_errors=True)


def _replace_pointer(log: Path, version: int, pointer: Path) -> None:
    """Name the checkpoint in `_last_checkpoint`, unless that names a newer one."""
    try:
        if int(json.loads((log / _LAST).read_bytes())["version"]) >= version:
            return
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    sync_file(pointer)
    (log / f".{_LAST}.crc").unlink(missing_ok=True)
    pointer.rename(log / _LAST)
    sync_folder(log)


def remove_expired(table: Path, version: int, oldest: float) -> None:
    """Remove the files of the log that only expired versions need.

    Everything from the newest checkpoint on that was written before the time `oldest`, in seconds since 1970,
    is kept: each newer version can be read.
    """
    log = table / "_delta_log"
    expired = [
        each.version
        for each in list_log(str(log)).checkpoints
        if each.version <= version and all(os.stat(path).st_mtime < oldest for path in each.paths)
    ]
    if not expired:
        return
    for path in list(log.iterdir()):
        match = _VERSIONED.match(path.name)
        if match and int(match[1]) < max(expired) and not path.name.endswith(".tmp"):
            path.unlink(missing_ok=True)


def _seconds(text: str | None) -> float:
    found = _DURATION.findall((text or "").lower().replace("interval", " "))
    if not found or any(unit not in _SECONDS for _, unit in found):
        return _DEFAULT_RETENTION
    return sum(int(number) * _SECONDS[unit] for number, unit in found)
