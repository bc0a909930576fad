"""`_pgdelta/pauses`: the tables to which apply writes nothing until an operator lets it continue.

One row a table. `pgdelta pause` and `pgdelta resume` write here, and apply reads it before each batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from pipeline.delta.log_retention import short_log
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

PAUSES = (
    "schema_name STRING, table_name STRING, relation_id BIGINT, lsn BIGINT, reason STRING, "
    "paused_at TIMESTAMP"
)


@dataclass(frozen=True, slots=True)
class Pause:
    """A table that is paused, and up to where bronze was then.

    `relation_id` is its OID, by which it stays paused when it is renamed.
    """

    schema_name: str
    table_name: str
    relation_id: int | None
    lsn: LSN
    reason: str | None
    paused_at: datetime

    @property
    def name(self) -> TableName:
        return TableName(self.schema_name, self.table_name)

    def sentence(self, name: TableName) -> str:
        """Return what is said of the table, under its present name."""
        since = f"{self.paused_at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        reason = f" ({self.reason})" if self.reason else ""
        return (
            f"Table {name} is paused since {since}{reason}. Run {name.command('resume')} to let apply write"
            " it again."
        )


class PauseTable:
    """Reads and writes `_pgdelta/pauses`."""

    def __init__(self, lake: Lake) -> None:
        self._table = lake.table("_pgdelta", "pauses")
        self._read: tuple[int, tuple[Pause, ...]] = (-1, ())

    def read(self) -> Sequence[Pause]:
        """Return the paused tables; rows are read only if the table has a new version."""
        version = self._table.version()
        if version >= 0 and version != self._read[0]:
            self._read = version, tuple(map(_pause, self._table.rows().to_pylist()))
        return self._read[1] if version >= 0 else ()

    def pause(self, pauses: Collection[Pause]) -> list[Pause]:
        """Add tables in one commit; return those that were not paused before."""
        self._table.ensure(PAUSES, short_log())
        added: list[Pause] = []

        def write() -> None:
            nonlocal added
            before = self.read()
            names = {each.name for each in before}
            added = [each for each in pauses if each.name not in names]
            if added:
                self._table.overwrite_rows([asdict(each) for each in (*before, *added)], PAUSES)

        retry_conflicts(write)
        return added

    def resume(self, names: Collection[TableName]) -> list[Pause]:
        """Remove tables in one commit; return those that were paused."""
        removed: list[Pause] = []

        def write() -> None:
            nonlocal removed
            before = self.read()
            removed = [each for each in before if each.name in names]
            if removed:
                kept = [asdict(each) for each in before if each.name not in names]
                self._table.overwrite_rows(kept, PAUSES)

        retry_conflicts(write)
        return removed


def _pause(row: Mapping[str, Any]) -> Pause:
    return Pause(**{**row, "lsn": LSN(row["lsn"])})


def paused_names(
    pauses: Sequence[Pause], names_by_oid: Mapping[int, Collection[TableName]]
) -> dict[TableName, Pause]:
    """Return the pause of each name that a paused table has, or had in a relation version."""
    found = {name: each for each in pauses for name in names_by_oid.get(each.relation_id or -1, ())}
    return {**found, **{each.name: each for each in pauses}}
