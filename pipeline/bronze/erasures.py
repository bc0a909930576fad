"""Records of what `pgdelta forget` erased from bronze, in commits of `changes` and `_pgdelta/erasures`.

The commit that erases rows records how many changes ended at each LSN, and how many rows of each copy it
erased. Delta removes a commit only with all before it, so changes are compared as long as the commit that
counted them is there. Copies are compared for ever: what was erased of them is in the table, too. Neither has
values of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.delta.log_retention import short_log
from pipeline.delta.sql import now
from pipeline.delta.table import Lake

FORGET = "forget"
"""The operation in the user metadata of a commit that erases rows."""

FORGET_ID, ERASED, ERASED_COPIES = "forget_id", "erased", "erased_copies"
ERASURES = (
    "forget_id STRING, schema_name STRING, table_name STRING, places ARRAY<STRUCT<place: STRING, "
    "rows: BIGINT, files_rewritten: BIGINT, files_removed: BIGINT, bytes: BIGINT>>, "
    "copies ARRAY<STRUCT<copy_id: BIGINT, rows: BIGINT>>, as_of_lsn BIGINT, recorded_at TIMESTAMP"
)


@dataclass(slots=True)
class Erasures:
    """How many changes were erased, by the LSN at which they ended, and rows of copies by id."""

    changes: Counter[int] = field(default_factory=Counter)
    copies: Counter[int] = field(default_factory=Counter)
    ids: set[str] = field(default_factory=set)

    def add_commit(self, metadata: Mapping[str, Any]) -> None:
        """Add what a commit of `changes` erased, if it did."""
        if metadata.get("operation") == FORGET:
            self.ids.add(str(metadata[FORGET_ID]))
            self.changes.update({int(lsn): int(count) for lsn, count in metadata[ERASED]})
            self.copies.update({int(copy): int(count) for copy, count in metadata[ERASED_COPIES]})

    def count(self, start: int, end: int) -> int:
        """Return how many erased changes ended in (start, end]."""
        return sum(count for lsn, count in self.changes.items() if start < lsn <= end)


class ErasureLog:
    """Reads and writes `_pgdelta/erasures`."""

    def __init__(self, lake: Lake) -> None:
        self.table = lake.table("_pgdelta", "erasures")

    def record(self, row: Mapping[str, object]) -> None:
        """Append a receipt, without its time."""
        self.table.ensure(ERASURES, short_log())
        self.table.append_rows([{**row, "recorded_at": now()}], ERASURES)

    def is_recorded(self, forget_id: str) -> bool:
        """Return whether there is a receipt with this id."""
        return self.table.exists() and forget_id in self.table.rows(["forget_id"])["forget_id"].to_pylist()

    def add_to(self, found: Erasures) -> Erasures:
        """Add what was erased of copies, unless its commit is counted already."""
        if self.table.exists():
            for row in self.table.rows(["forget_id", "copies"]).to_pylist():
                if row["forget_id"] not in found.ids:
                    found.copies.update({each["copy_id"]: each["rows"] for each in row["copies"] or ()})
        return found


def erasures_in(metadata: Iterable[Mapping[str, Any]]) -> Erasures:
    """Return what the commits with these user metadata erased."""
    found = Erasures()
    for each in metadata:
        found.add_commit(each)
    return found
