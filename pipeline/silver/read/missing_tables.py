"""Explain why silver does not have a table that a person names, or does not show it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError, SourceError
from pipeline.metadata.registry import Records
from pipeline.table_name import TableName, exact_name
from pipeline.units import format_names

_STOPPED = ("held", "refused")  # kinds of events


def why_missing(lake: Lake, name: TableName, known: Collection[TableName], config: Config | None) -> str:
    """Return why a table is not among those that are `known`, and what to do.

    With a configuration its rules are read, and the source if the lake has no reason.
    """
    missing = f"Silver has no table {name}"
    folded = _folded(name)
    if near := sorted(each for each in known if each != name and _folded(each) == folded):
        return f"{missing}, but {format_names(near)}. Names that differ in case are of different tables."
    if (recorded := _recorded(lake, name)) is not None:
        return recorded if str(name) in recorded else f"{missing}. {recorded}"
    if config is None:
        return f"{missing}. Run pgdelta status {name} to find out why."
    return f"{missing}{_at_source(config, name, known)}"


def no_match(
    lake: Lake, config: Config, globs: Sequence[str] | None, *, is_offline: bool = False
) -> ConfigError:
    """Return the error for globs that match no table of the lake which the configuration follows."""
    names = [exact_name(glob) for glob in globs or ()]
    if len(names) == 1 and names[0] is not None:
        return ConfigError(
            why_missing(lake, names[0], Records(lake).tables.read(), None if is_offline else config)
        )
    asked = " or ".join(globs) if globs else "the configuration"
    return ConfigError(
        f"No table of the lake {lake.root} matches {asked}. Run pgdelta status to list its tables, and check "
        "storage.root."
    )


def _folded(name: TableName) -> tuple[str, str]:
    return name.schema.casefold(), name.table.casefold()


def _recorded(lake: Lake, name: TableName) -> str | None:
    """Return the sentence that the lake has about a table which silver does not show."""
    newest = Records(lake).events.newest()
    if name in newest.unpublished:
        return newest.unpublished[name]
    event = newest.tables.get(name)
    return event.sentence if event is not None and event.kind in _STOPPED else None


def _at_source(config: Config, name: TableName, known: Collection[TableName]) -> str:
    """Return the rest of the sentence about a table that the lake has no reason for."""
    from pipeline.postgres.relation_place import find_relation

    is_followed = config.rule_for(name) is not None
    no_rule = f". No rule of tables in {config.path} matches it: add one to follow it."
    try:
        found = find_relation(config, name)
    except SourceError as error:
        return f". {error}" if is_followed else no_rule
    if not found.exists:
        if not found.near:
            return ", and neither has the source. Run pgdelta status to list the tables."
        near = format_names(found.near)
        return f", but the source has {near}. Names that differ in case are of different tables."
    if found.kind is not None:
        return f". {found.kind}"
    if roots := [root for root in found.roots if root in known]:
        return f". It is a partition of {format_names(roots)}, whose silver table has its rows."
    if partitions := [each for each in found.partitions if each in known]:
        return f". It is partitioned, and its partitions are silver tables: {format_names(partitions)}."
    return ". Run pgdelta ingest and pgdelta apply to copy it." if is_followed else no_rule
