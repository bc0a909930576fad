"""All tables of a lake by name, for commands that keep them in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.delta.table import Lake, LakeTable
from pipeline.maintenance.job_tables import OWN_TABLES
from pipeline.metadata.registry import Records
from pipeline.silver.read.versions import resolve_path
from pipeline.table_name import match_tables


def own_tables(lake: Lake) -> Iterator[tuple[str, LakeTable]]:
    """Yield the tables of bronze and under `_pgdelta` by name, whether they exist or not."""
    for segments in OWN_TABLES:
        yield "/".join(segments), lake.table(*segments)


def silver_tables(lake: Lake, globs: Sequence[str] | None = None) -> Iterator[tuple[str, LakeTable]]:
    """Yield the registered silver tables by name, or those that globs name."""
    matches = match_tables(globs)
    for name, registered in sorted(Records(lake).tables.read().items()):
        if matches(name):
            yield str(name), lake.table_at(resolve_path(registered.path, name, lake.root))


def tables_of(lake: Lake, globs: Sequence[str] | None) -> Iterator[tuple[str, LakeTable]]:
    """Yield the tables by name: the lake's own, unless globs choose some of silver, then those of silver."""
    if not globs:
        yield from own_tables(lake)
    yield from silver_tables(lake, globs)
