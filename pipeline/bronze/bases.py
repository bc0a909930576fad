"""`bronze/bases`: from which LSN on bronze has all changes of a table, once older ones were compacted.

Up to that LSN, the base, bronze has at most one change or copied row of each row of the table, and
all changes after it. So a rebuild is exact at or after the base, and at no LSN before it. A base is recorded
before the rows of `changes` are compacted: a run that ends between the two loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipeline.bronze.copy_states import CopyState
from pipeline.delta.sql import now
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

RETENTION = "retention"
"""The operation in the user metadata of a commit that compacts `changes`."""

BASES = (
    "schema_name STRING, table_name STRING, lsn BIGINT, copy_id BIGINT, copied_rows BIGINT, "
    "removed_rows BIGINT, recorded_at TIMESTAMP"
)


@dataclass(frozen=True, slots=True)
class Base:
    """The base of one table; `copied_rows` are what is left of the newest copy before it, if there is one.

    `removed_rows` were removed from `changes` to make it.
    """

    name: TableName
    lsn: LSN
    copy_id: int | None = None
    copied_rows: int = 0
    removed_rows: int = 0


@dataclass(frozen=True, slots=True)
class BaseHistory:
    """The newest base of each table, and when a run recorded bases last.

    Up to `messages_lsn` logical messages were removed.
    """

    tables: Mapping[TableName, Base]
    recorded_at: datetime | None = None
    messages_lsn: LSN = INVALID

    @property
    def lsn(self) -> LSN:
        """The LSN after which bronze has every change and message, INVALID if it never was compacted."""
        return LSN(max(self.messages_lsn, *(base.lsn for base in self.tables.values()), INVALID))

    def lsn_of(self, name: TableName) -> LSN:
        """Return the LSN of a table's base, INVALID if it has none."""
        base = self.tables.get(name)
        return base.lsn if base else INVALID

    def may_lack_rows(self, state: CopyState) -> bool:
        """Return whether rows of a complete copy may have been removed by a base."""
        base = self.tables.get(state.name)
        if base is None:
            return False
        is_older = base.copy_id is None or state.id <= base.copy_id
        return is_older or (bool(state.key_ranges) and state.snapshots[-1].lsn < base.lsn)


class Bases:
    """Reads and writes `bronze/bases`."""

    def __init__(self, lake: Lake) -> None:
        self.table = lake.table("bronze", "bases")
        self._version = -1
        self._history = BaseHistory({})

    def read(self) -> BaseHistory:
        """Return what is recorded now; rows are read only if the table has another version than before."""
        version = self.table.version()
        if version != self._version:
            rows = self.table.rows().to_pylist() if version >= 0 else []
            rows.sort(key=lambda row: (row["lsn"], row["recorded_at"]))
            found, messages_lsn = {}, INVALID
            for row in rows:
                if row["table_name"] is None:
                    messages_lsn = max(messages_lsn, LSN(row["lsn"] if row["removed_rows"] else INVALID))
                    continue
                name = TableName(row["schema_name"], row["table_name"])
                counts = row["copied_rows"], row["removed_rows"]
                found[name] = Base(name, LSN(row["lsn"]), row["copy_id"], *counts)
            times = [row["recorded_at"] for row in rows]
            history = BaseHistory(found, max(times, default=None), messages_lsn)
            self._history, self._version = history, version
        return self._history

    def record(self, lsn: LSN, bases: Sequence[Base], messages: int = 0) -> None:
        """Append the bases of a run in one commit, and how many messages it removes up to an LSN.

        A run that removes no change or message is recorded too.
        """
        self.table.ensure(BASES)
        recorded_at = now()
        has_no_table = bool(messages) or not bases
        rows = [
            {
                "schema_name": base.name.schema if base else None,
                "table_name": base.name.table if base else None,
                "lsn": int(base.lsn if base else lsn),
                "copy_id": base.copy_id if base else None,
                "copied_rows": base.copied_rows if base else None,
                "removed_rows": base.removed_rows if base else messages,
                "recorded_at": recorded_at,
            }
            for base in (*bases, *([None] if has_no_table else []))
        ]
        self.table.append_rows(rows, BASES)
