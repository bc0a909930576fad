"""Tables that left: dropped at the source, taken out of the publication, or out of the configuration.

What silver has of one stays where it is, or is moved to `{root}/archive` by policy. Either way it is in no
manifest any more, as nobody keeps it up to date.
"""

from collections.abc import Callable, Iterator, Mapping

from pipeline.bronze.copy_states import DROPPED, CopyHistory
from pipeline.bronze.log import BronzeOffset
from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.progress import TableState
from pipeline.table_name import TableName


def why_detached(config: Config, copies: CopyHistory, name: TableName, point: BronzeOffset) -> str | None:
    """Say why a table is not followed any more, None where it is; what came before has to be applied."""
    if config.rule_for(name) is None:
        return "no rule of the configuration matches it any more"
    last = copies.last(name)
    if last is not None and last.state == DROPPED and last.dropped_at <= point.lsn:
        return last.sentence
    return None


def archive_detached(
    config: Config,
    records: Records,
    left: Mapping[TableName, str],
    states: Mapping[TableName, TableState],
    point: BronzeOffset,
    path: Callable[[TableName], str],
) -> Iterator[TableName]:
    """Move what left to the archive, where the configuration says so; give the names of what was moved."""
    registered = records.tables.read()
    for name, reason in left.items():
        rule = config.rule_for(name)
        policy = rule.detached_tables if rule else config.silver.detached_tables
        state = states.get(name, TableState())
        has_all = not (state.failure or state.held)  # else the next pass tries again
        if policy == "archive" and has_all and registered[name].path == path(name):
            _archive(records.lake, records, registered[name], point, reason)
            yield name


def _archive(
    lake: Lake, records: Records, registered: RegisteredTable, point: BronzeOffset, reason: str
) -> None:
    """Move a table's folder to the archive, and record where it is."""
    name = (registered.schema_name, registered.table_name)
    table = lake.table_at(registered.path)
    to = lake.path("archive", *name)
    if lake.table_at(to).exists():
        to = lake.path("archive", name[0], f"{name[1]}.{int(point.lsn)}")
    if table.exists():
        table.move(to)
    records.tables.register(registered.detached(to))
    sentence = f"{reason}: what silver had of it is in {to}"
    records.events.record([Event(*name, point.lsn, "evolved", sentence)])


def detached_tables(
    config: Config, copies: CopyHistory, registered: Mapping[TableName, RegisteredTable], point: BronzeOffset
) -> dict[TableName, str]:
    """Return the tables of silver that left, each with the reason."""
    found = {name: why_detached(config, copies, name, point) for name in registered}
    return {name: reason for name, reason in found.items() if reason}
