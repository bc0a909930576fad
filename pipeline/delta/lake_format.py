"""`_pgdelta/format`: the format version of the lake, and the release that recorded it.

A lake without this table has version 1. Ingest records the version once, before it creates bronze. `Lake`
reads it before anything else in the lake, once a process, and refuses a version that this release does not
know. Every later release has to keep this table readable by this one: it may only add columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import __version__
from pipeline.delta.filesystem import file_instead_of
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.sql import EPOCH, now
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.delta.record_table import RecordTable
    from pipeline.delta.table import Lake

FORMAT_VERSION = 1
"""The newest format version that this release reads and writes."""

_known: set[str] = set()  # roots of lakes whose format this process has read


@dataclass(frozen=True, slots=True)
class LakeFormat:
    """A format version, and the release that recorded it."""

    version: int
    release: str
    recorded_at: datetime = EPOCH


def verify_format(lake: Lake) -> None:
    """Require a known format now, or when a session is first used if only Spark reads the lake.

    Raises ConfigError also if the root is a file.
    """
    if lake.local_root is not None and (file := file_instead_of(Path(lake.local_root))) is not None:
        raise ConfigError(f"{file} is a file. Set storage.root to a folder.")
    if lake.working_root is not None:
        require_known_format(lake)
    else:
        lake.sessions.verify = lambda session: require_known_format(lake.in_session(SparkProvider(session)))


def require_known_format(lake: Lake) -> None:
    """Raise ConfigError if the lake has a newer format than this release knows."""
    if lake.root in _known:
        return
    found = max(format_table(lake).read(), key=lambda row: row.version, default=None)
    if found is not None and found.version > FORMAT_VERSION:
        raise ConfigError(
            f"The lake at {lake.root} has format version {found.version}, of pgdelta {found.release}, and"
            f" this is pgdelta {__version__}, which reads versions up to {FORMAT_VERSION}. Nothing was"
            f" changed. Install pgdelta {found.release} or later."
        )
    _known.add(lake.root)


def record_format(lake: Lake) -> None:
    """Record the version of a lake that is about to be made, unless it has one."""
    made = LakeFormat(FORMAT_VERSION, __version__, now())
    format_table(lake).change(lambda before: before or (made,))


def format_table(lake: Lake) -> RecordTable[LakeFormat]:
    """Return the table, which need not exist."""
    from pipeline.delta.record_table import RecordTable  # which needs `Lake`

    return RecordTable(lake, "format", LakeFormat)
