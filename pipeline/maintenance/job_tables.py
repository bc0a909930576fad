"""The tables that ingest and apply maintain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from pipeline.delta.table import Lake
from pipeline.maintenance.due import DueTable
from pipeline.metadata.manifests import ManifestEntry

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
