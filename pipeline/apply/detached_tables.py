"""Detached tables: dropped at the source, no longer published, or no longer matched by the configuration.

The silver table stays in place or, with `silver.detached_tables: archive`, is moved to `{root}/archive`. In
both cases no manifest contains it any more, because apply does not update it. Rows are never deleted.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from pipeline.bronze.copy_states import CopyHistory
from pipeline.bronze.log import BronzeOffset
from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.progress import TableState
from pipeline.silver.lake_facts import why_detached
from pipeline.table_name import TableName


def archive_detached(
    config: Config,
    records: Records,
    detached: Mapping[TableName, str],
    states: Mapping[TableName, TableState],
    point: BronzeOffset,
    path: Callable[[TableName], str],
    unfinished: Collection[TableName],
) -> Iterator[TableName]:
    """Move detached tables to the archive if so configured, and yield their names.

    A table that is `unfinished` lacks changes from before it was detached, or is being written.
    """
    registered = records.tables.read()
    for name, reason in detached.items():
        rule = config.rule_for(name)
        policy = rule.detached_tables if rule else config.silver.detached_tables
        state = states.get(name, TableState())
        # Otherwise a later batch tries again.
        has_all = not (state.failure or state.is_behind or name in unfinished)
        if policy == "archive" and has_all and registered[name].path == path(name):
            _archive(records.lake, records, registered[name], point, reason)
            yield name


def _archive(
    lake: Lake, records: Records, registered: RegisteredTable, point: BronzeOffset, reason: str
) -> None:
    """Move a table's folder to the archive and record its path."""
    name = (registered.schema_name, registered.table_name)
    table = lake.table_at(registered.path)
    to = lake.path("archive", *name)
    if lake.table_at(to).exists():
        to = lake.path("archive", name[0], f"{name[1]}.{int(point.lsn)}")
    if table.exists():
        table.move(to)
    records.tables.register(registered.detached(to))
    sentence = f"{reason} Its silver table was moved to {to}."
    records.events.record([Event(*name, point.lsn, "evolved", sentence)])


def detached_tables(
    config: Config, copies: CopyHistory, registered: Mapping[TableName, RegisteredTable], point: BronzeOffset
) -> dict[TableName, str]:
    """Return the detached tables of silver, each with the reason."""
    found = {name: why_detached(config, copies, name, point) for name in registered}
    return {name: reason for name, reason in found.items() if reason}
