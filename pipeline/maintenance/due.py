"""Decide which tables a job maintains now. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pipeline.config.jobs import Maintenance
from pipeline.delta.log_retention import DAY
from pipeline.delta.table import LakeTable
from pipeline.metadata.maintenance import Maintained


@dataclass(frozen=True, slots=True)
class DueTable:
    """A table that a job may maintain; `version` returns its newest one, -1 if there is no table.

    `is_own` is false for silver. `event_name` is its schema and table; of a table of the pipeline's own, the
    folder and name.
    """

    name: str
    event_name: tuple[str, str]
    table: LakeTable
    is_own: bool
    version: Callable[[], int]


def due_tables(
    candidates: Iterable[DueTable], recorded: Mapping[str, Maintained], now: datetime, rules: Maintenance
) -> list[DueTable]:
    """Return the tables to maintain now, those with the most commits first.

    A table is due `rules.every` seconds after its last maintenance if it has had `rules.small_files` commits
    since, and a day after it in any case: what was left in its folder may have expired. The versions of other
    tables are not read.
    """
    found: list[tuple[int, str, DueTable]] = []
    for each in candidates:
        last = recorded.get(each.name)
        waited = None if last is None else (now - last.maintained_at).total_seconds()
        if waited is not None and 0 <= waited < rules.every:
            continue
        version = each.version()
        commits = version + 1 if last is None or version < last.version else version - last.version
        if version >= 0 and (commits >= rules.small_files or (waited is not None and waited >= DAY)):
            found.append((-commits, each.name, each))
    return [each for _, _, each in sorted(found, key=lambda entry: entry[:2])]
