"""`_pgdelta/pauses`: the tables to which apply writes nothing until an operator lets it continue.

One row a table. `pgdelta pause` and `pgdelta resume` write here, and apply reads it before each batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipeline.delta.record_table import RecordTable, TableRecord
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from pipeline.units import format_time


@dataclass(frozen=True, slots=True)
class Pause(TableRecord):
    """A table that is paused, and up to where bronze was then.

    `relation_id` is its OID, by which it stays paused when it is renamed.
    """

    relation_id: int | None
    lsn: LSN
    reason: str | None
    paused_at: datetime

    def sentence(self, name: TableName) -> str:
        """Return what is said of the table, under its present name."""
        reason = f" ({self.reason})" if self.reason else ""
        return (
            f"Table {name} is paused since {format_time(self.paused_at)}{reason}."
            f" Run {name.command('resume')} to let apply write it again."
        )


class PauseTable:
    """Reads and writes `_pgdelta/pauses`."""

    def __init__(self, lake: Lake) -> None:
        self._pauses = RecordTable(lake, "pauses", Pause)

    def read(self) -> Sequence[Pause]:
        """Return the paused tables; rows are read only if the table has a new version."""
        return self._pauses.read()

    def pause(self, pauses: Collection[Pause]) -> list[Pause]:
        """Add tables in one commit; return those that were not paused before."""
        added: list[Pause] = []

        def add(before: Sequence[Pause]) -> list[Pause]:
            names = {each.name for each in before}
            added[:] = [each for each in pauses if each.name not in names]
            return [*before, *added]

        self._pauses.change(add)
        return added

    def resume(self, names: Collection[TableName]) -> list[Pause]:
        """Remove tables in one commit; return those that were paused."""
        removed: list[Pause] = []

        def remove(before: Sequence[Pause]) -> list[Pause]:
            removed[:] = [each for each in before if each.name in names]
            return [each for each in before if each.name not in names]

        self._pauses.change(remove)
        return removed


def paused_names(
    pauses: Sequence[Pause], names_by_oid: Mapping[int, Collection[TableName]]
) -> dict[TableName, Pause]:
    """Return the pause of each name that a paused table has, or had in a relation version."""
    found = {name: each for each in pauses for name in names_by_oid.get(each.relation_id or -1, ())}
    return {**found, **{each.name: each for each in pauses}}
