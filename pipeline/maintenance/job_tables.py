"""All tables of a lake, for the jobs and the commands that keep them in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from pipeline.delta.table import Lake, LakeTable
from pipeline.maintenance.due import DueTable
from pipeline.metadata.manifests import ManifestEntry
from pipeline.metadata.registry import Records
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


def own_candidates(lake: Lake, folder: str) -> Iterator[DueTable]:
    """Yield the tables of `bronze`, or of `_pgdelta`."""
    for names in OWN_TABLES:
        if names[0] == folder:
            table = lake.table(*names)
            yield DueTable("/".join(names), names, table, True, table.version)


def silver_candidates(lake: Lake, entries: Iterable[ManifestEntry]) -> Iterator[DueTable]:
    """Yield the silver tables of a manifest, which has their versions: no log is read."""
    from pipeline.silver.read.versions import resolve_path

    for entry in entries:
        table = lake.table_at(resolve_path(entry.path, entry.name, lake.root))
        yield DueTable(str(entry.name), entry.name, table, False, partial(int, entry.version))


def own_tables(lake: Lake) -> Iterator[tuple[str, LakeTable]]:
    """Yield the tables of bronze and under `_pgdelta` by name, whether they exist or not."""
    for segments in OWN_TABLES:
        yield "/".join(segments), lake.table(*segments)


def silver_tables(lake: Lake, globs: Sequence[str] | None = None) -> Iterator[tuple[str, LakeTable]]:
    """Yield the registered silver tables by name, or those that globs name."""
    from pipeline.silver.read.versions import resolve_path

    matches = match_tables(globs)
    for name, registered in sorted(Records(lake).tables.read().items()):
        if matches(name):
            yield str(name), lake.table_at(resolve_path(registered.path, name, lake.root))


def tables_of(lake: Lake, globs: Sequence[str] | None) -> Iterator[tuple[str, LakeTable]]:
    """Yield the tables by name: the lake's own, unless globs choose some of silver, then those of silver."""
    if not globs:
        yield from own_tables(lake)
    yield from silver_tables(lake, globs)
