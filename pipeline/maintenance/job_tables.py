"""All tables of a lake, for the jobs and the commands that keep them in order, and which are due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from pipeline.config.config import Config
from pipeline.config.jobs import Maintenance
from pipeline.delta.log_retention import DAY
from pipeline.delta.table import Lake, LakeTable
from pipeline.metadata.maintenance import Maintained
from pipeline.metadata.manifests import ManifestEntry
from pipeline.metadata.registry import Records
from pipeline.silver.read.missing_tables import no_match
from pipeline.table_name import match_tables

OWN_TABLES = (
    ("bronze", "changes"),
    ("bronze", "relations"),
    ("bronze", "copies"),
    ("bronze", "bases"),
    ("bronze", "prepared"),
    ("_pgdelta", "tables"),
    ("_pgdelta", "manifests"),
    ("_pgdelta", "events"),
    ("_pgdelta", "misfits"),
    ("_pgdelta", "requests"),
    ("_pgdelta", "status"),
    ("_pgdelta", "differences"),
    ("_pgdelta", "reconciliations"),
    ("_pgdelta", "fingerprints"),
    ("_pgdelta", "maintenance"),
    ("_pgdelta", "catalog"),
    ("_pgdelta", "erasures"),
    ("_pgdelta", "catalog_entries"),
    ("_pgdelta", "comments"),
    ("_pgdelta", "pauses"),
    ("_pgdelta", "alerts"),
    ("_pgdelta", "format"),
)
"""Paths, below the root, of the tables that are not silver."""


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


def own_candidates(lake: Lake, folder: str) -> Iterator[DueTable]:
    """Yield the tables of `bronze`, or of `_pgdelta`."""
    for names in OWN_TABLES:
        if names[0] == folder:
            table = lake.table(*names)
            yield DueTable("/".join(names), names, table, True, table.version)


def silver_candidates(lake: Lake, entries: Iterable[ManifestEntry]) -> Iterator[DueTable]:
    """Yield the silver tables of a manifest, which has their versions: no log is read."""
    for entry in entries:
        table = lake.table_at(entry.path)
        yield DueTable(str(entry.name), entry.name, table, False, partial(int, entry.version))


def tables_of(lake: Lake, config: Config, globs: Sequence[str] | None) -> list[tuple[str, LakeTable, bool]]:
    """Return tables by name: the lake's own, unless globs choose some of silver, then those of silver.

    The last value says whether it is one of the lake's own, which need not exist. Raise ConfigError if globs
    name no table.
    """
    found = [] if globs else [("/".join(names), lake.table(*names), True) for names in OWN_TABLES]
    matches = match_tables(globs)
    for name, registered in sorted(Records(lake).tables.read().items()):
        if matches(name):
            found.append((str(name), lake.table_at(registered.path), False))
    if not found:
        raise no_match(lake, config, globs)
    return found
