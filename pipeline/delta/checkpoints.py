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
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4
from zlib import crc32

from pipeline.delta.checkpoint_files import Checkpoint, commit_name, list_log
from pipeline.delta.log_retention import KEPT_SECONDS, LogRetention
from pipeline.delta.native_commit import read_commit
from pipeline.delta.store.mirror import fetch, fetch_all, files_of, remove_files
from pipeline.delta.txn import TxnId

_INTERVAL = "delta.checkpointInterval"
_DEFAULT_INTERVAL = 10
_CLEANS = "delta.enableExpiredLogCleanup"
_VERSIONED = re.compile(r"\.?([0-9]{20})\.")
_LAST = "_last_checkpoint"
_BYTES_A_COMMIT = 64 << 10  # of checkpoints; larger ones are written less often
_LEAST_SECONDS = 30.0  # between two checkpoints; where commits follow faster, they are written less often
_LONG_INTERVAL = 100
_SPARSE = 1000  # versions between two old checkpoints
_CLEANING = 5  # checkpoints between two clean-ups
_SHADOW = ".checkpoint-"
_MIRRORED = 4  # commits on an object store that stay on this machine after a checkpoint
_ABANDONED = 3600.0  # seconds after which no process writes a checkpoint any more


def checkpoint_if_due(
    table: Path, version: int, configuration: Mapping[str, str], offsets: Collection[str] = ()
) -> bool:
    """Write a checkpoint of a version, and clean the log up, if the table's interval says so.

    `offsets` are the ids that the table records.
    """
    base = _base_interval(configuration)
    if version <= 0 or version % base:
        return False
    interval = _interval(table / "_delta_log", configuration)
    count = version
    if interval == _LONG_INTERVAL:  # not for all tables, which are often at the same version, at once
        count += base * crc32(bytes(table))
    if count % interval:
        return False
    write_checkpoint(table, version)
    # which lists the log
    if count % (interval * _CLEANING) == 0 and cleans_up(configuration):
        remove_expired(table, version, LogRetention.of(configuration), time.time(), offsets)
    return True


def _base_interval(configuration: Mapping[str, str]) -> int:
    try:
        return max(int(configuration.get(_INTERVAL, _DEFAULT_INTERVAL)), 1)
    except ValueError:
        return _DEFAULT_INTERVAL


def _interval(log: Path, configuration: Mapping[str, str]) -> int:
    """Return after how many commits a checkpoint is due, unless the table sets it.

    More if the last one is large, or was written just now.
    """
    interval = _base_interval(configuration)
    last = None if _INTERVAL in configuration else _last_checkpoint(log)
    if last is None:
        return interval
    status = os.stat(fetch(last.paths[0]))
    is_rare = status.st_size <= interval * _BYTES_A_COMMIT and time.time() - status.st_mtime >= _LEAST_SECONDS
    return interval if is_rare else _LONG_INTERVAL


def cleans_up(configuration: Mapping[str, str]) -> bool:
    """Return whether expired versions of a table's log may be removed."""
    return configuration.get(_CLEANS, "true").lower() == "true"


def write_checkpoint(table: Path, version: int) -> None:
    """Write a checkpoint of a version of the log; do nothing if it has one."""
    from deltalake import DeltaTable

    log = table / "_delta_log"
    if (log / checkpoint_name(version)).exists():
        return
    files = files_of(table)
    _remove_abandoned(table)
    base = _newest_checkpoint(log, version)
    shadow = table / f"{_SHADOW}{uuid4()}"
    links = shadow / "_delta_log"
    try:
        links.mkdir(parents=True)
        begin = base.version if base else -1
        commits = [str(log / commit_name(each)) for each in range(begin + 1, version + 1)]
        for path in map(Path, fetch_all([*commits, *(base.paths if base else ())])):
            os.link(path, links / path.name)
        if base is not None:
            fetch_all(str(each.path) for each in files.below(log / "_sidecars"))
            if (log / "_sidecars").is_dir():
                (links / "_sidecars").symlink_to(log / "_sidecars")
        DeltaTable(str(shadow), version=version).create_checkpoint()
        [made] = links.glob(f"{version:020}.checkpoint*.parquet")
        os.chmod(made, (log / commit_name(version)).stat().st_mode & 0o777)
        if not files.place(made, log / made.name):
            return  # another writer's
        _replace_pointer(log, version, links / _LAST)
        for unneeded in (*commits[:-_MIRRORED], *(base.paths if base else ())):
            files.drop(unneeded)
    finally:
        shutil.rmtree(shadow, ignore_errors=True)


def checkpoint_name(version: int) -> str:
    """Return the name of a checkpoint that is one file."""
    return f"{version:020}.checkpoint.parquet"


def _newest_checkpoint(log: Path, version: int) -> Checkpoint | None:
    """Return the newest checkpoint before a version, without listing the log if it is the last one."""
    last = _last_checkpoint(log)
    if last is not None and last.version < version:
        return last
    return next((each for each in list_log(str(log)).checkpoints if each.version < version), None)


def _last_checkpoint(log: Path) -> Checkpoint | None:
    """Return the checkpoint that `_last_checkpoint` names, None if there is none in one file."""
    try:
        last = int(json.loads(read_pointer(log))["version"])
        path = log / checkpoint_name(last)
        fetch(str(path))
        return Checkpoint(last, (str(path),)) if path.exists() else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _remove_abandoned(table: Path) -> None:
    """Remove the folders of checkpoints whose writers died."""
    for shadow in table.glob(f"{_SHADOW}*"):
        with suppress(FileNotFoundError):
            if shadow.stat().st_mtime < time.time() - _ABANDONED:
                shutil.rmtree(shadow, ignore_errors=True)


def read_pointer(log: Path) -> bytes:
    """Return the content of `_last_checkpoint`, the only file of a log that is overwritten."""
    return files_of(log).read(log / _LAST)


def _replace_pointer(log: Path, version: int, pointer: Path) -> None:
    """Name the checkpoint in `_last_checkpoint`, unless that names a newer one."""
    try:
        if int(json.loads(read_pointer(log))["version"]) >= version:
            return
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    files_of(log).replace(pointer, log / _LAST)


def remove_expired(
    table: Path, version: int, retention: LogRetention, now: float, offsets: Collection[str] = ()
) -> None:
    """Remove the files of the log that only expired versions need; see `expired_files`."""
    remove_files(expired_files(table, version, retention, now, offsets))


def expired_files(
    table: Path,
    version: int,
    retention: LogRetention,
    now: float,
    offsets: Collection[str] = (),
    *,
    thins: bool = False,
) -> list[Path]:
    """Return the files of the log that only expired versions need, up to the newest version.

    Everything from the newest expired checkpoint that can be read on is kept, so that each newer version can
    be read. `now` is in seconds since 1970. The newest commit that records an offset is kept too, if
    `offsets`, the ids that the table records, has that of one: its metadata say where the next run goes on.
    With `thins`, or where versions expire by number, the checksum files and the checkpoints that no kept
    version needs are returned too.
    """
    log = table / "_delta_log"
    times = files_of(log).names_in(str(log))
    found_log = list_log(str(log))
    expired = [
        each
        for each in found_log.checkpoints
        if each.version <= version
        and all(
            retention.is_expired(now - times.get(os.path.basename(path), now), version - each.version)
            for path in each.paths
        )
    ]
    if expired and any(_advances(app_id) for app_id in offsets):
        newest = _newest_offset(log, version)
        expired = [each for each in expired if newest is None or each.version <= newest]
    oldest = min((*found_log.commits, *(each.version for each in found_log.checkpoints)), default=0)
    first = next((each.version for each in expired if each.version > oldest and _is_readable(each)), oldest)
    found = [
        log / name
        for name in times
        if (match := _VERSIONED.match(name)) and int(match[1]) < first and not name.endswith(".tmp")
    ]
    if thins or retention.commits:
        found += superseded_checksums(table, now - KEPT_SECONDS, first)
        found += superseded_checkpoints(table, now - KEPT_SECONDS, first)
    return found


def _is_readable(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint says what its table is; a computer that stops may leave an empty file."""
    try:
        kinds = {kind for action in checkpoint.state_actions() for kind in action}
    except (OSError, ValueError):
        return False
    return {"protocol", "metaData"} <= kinds


def superseded_checksums(table: Path, before: float, first: int = 0) -> list[Path]:
    """Return the checksum files written before a time that no reader needs: a newer checkpoint is there.

    Only those of versions from `first` on; `before` is in seconds since 1970. They are half of a log's files.
    """
    log = table / "_delta_log"
    newest = max((each.version for each in list_log(str(log)).checkpoints), default=0)
    return [
        log / name
        for name, time_of in files_of(log).names_in(str(log)).items()
        if name.endswith(".crc")
        and (match := _VERSIONED.match(name))
        and first <= int(match[1]) < newest
        and time_of < before
    ]


def superseded_checkpoints(table: Path, before: float, first: int = 0) -> list[Path]:
    """Return the checkpoints written before a time that no version needs.

    Of versions from `first` on, which are those that are kept, the first checkpoint in each thousand is kept,
    and the newest: each version can be read from an earlier checkpoint and the commits since. So a checkpoint
    is kept too if one of these commits is missing. `before` is in seconds since 1970.
    """
    log = table / "_delta_log"
    found = []
    times = files_of(log).names_in(str(log))
    listed = list_log(str(log))
    commits = set(listed.commits)
    base: Checkpoint | None = None  # the newest one that is kept
    base_is_readable: bool | None = None
    last = -1  # the version of the checkpoint before
    for each in [each for each in reversed(listed.checkpoints) if each.version >= first][:-1]:
        paths = [Path(path) for path in each.paths]
        can_go = base is not None and base.version // _SPARSE == each.version // _SPARSE
        can_go = can_go and commits.issuperset(range(last + 1, each.version + 1))
        can_go = can_go and all(times.get(path.name, before) < before for path in paths)
        if can_go and base is not None and base_is_readable is None:
            base_is_readable = _is_readable(base)
        if can_go and base_is_readable:
            found += paths
        else:
            base, base_is_readable = each, None
        last = each.version
    return found


def _newest_offset(log: Path, version: int) -> int | None:
    """Return the newest version whose commit records an offset, None if the log does not have it."""
    while (actions := read_commit(log, version)) is not None:
        if any(_advances(action["txn"]["appId"]) for action in actions if "txn" in action):
            return version
        version -= 1
    return None


def _advances(app_id: str) -> bool:
    txn = TxnId.parse(app_id)
    return txn is not None and txn.advances
