"""`_pgdelta/catalog_entries`: the names of silver tables in catalogs, a row for each table and catalog.

Only apply writes here. A row is recorded as `pending` before the entry is created in the catalog, so a run
that ends in between finds out that the entry is pgdelta's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from pipeline.delta.record_table import RecordTable, TableRecord
from pipeline.delta.sql import quoted
from pipeline.delta.table import Lake
from pipeline.table_name import TableName

PENDING, REGISTERED, FOUND, REFUSED, FAILED = "pending", "registered", "found", "refused", "failed"
OWN_STATES = (PENDING, REGISTERED)
"""The states of entries that pgdelta created, or may have."""
DONE_STATES = (REGISTERED, FOUND)
"""The states of entries by which the table can be queried."""


_PLAIN = re.compile("[a-z][a-z0-9_]*")


class CatalogName(NamedTuple):
    """The name of a table in a catalog, as the catalog holds it."""

    schema: str
    table: str

    def __str__(self) -> str:
        return ".".join(part if _PLAIN.fullmatch(part) else quoted(part) for part in self)


@dataclass(frozen=True, slots=True)
class CatalogEntry(TableRecord):
    """The entry of a silver table: its name in the catalog, and the path that it points to.

    `state` is registered, found (another session had created the same entry), refused (the name has another
    table or view), pending (it was about to be created) or failed (the catalog could not be read). The
    sentence says why a table is not registered. `target` is the type of the catalog, None for Spark's;
    `columns` a digest of the registered columns, of an entry that holds columns.
    """

    catalog_schema: str
    catalog_table: str
    path: str
    state: str
    sentence: str | None
    recorded_at: datetime
    target: str | None = None
    columns: str | None = None

    @property
    def catalog_name(self) -> CatalogName:
        """The name in the catalog."""
        return CatalogName(self.catalog_schema, self.catalog_table)

    def is_same(self, other: CatalogEntry, oldest: datetime) -> bool:
        """Return whether a later entry says the same, and this one was recorded lately."""
        return self.recorded_at > oldest and self == replace(other, recorded_at=self.recorded_at)

    def as_json(self) -> dict[str, Any]:
        return {
            "type": self.target or "spark",
            "name": str(self.catalog_name),
            "state": self.state,
            "sentence": self.sentence,
        }


class CatalogEntries:
    """Reads and writes the rows of `_pgdelta/catalog_entries` for the catalog of a type, None for Spark's."""

    def __init__(self, lake: Lake, target: str | None = None) -> None:
        self._entries = RecordTable(lake, "catalog_entries", CatalogEntry)
        self._target = target

    def read(self) -> dict[TableName, CatalogEntry]:
        """Return the recorded entries by source table."""
        return {entry.name: entry for entry in self._entries.read() if entry.target == self._target}

    def read_all(self) -> dict[TableName, list[CatalogEntry]]:
        """Return the recorded entries of all catalogs by source table, Spark's first."""
        found: dict[TableName, list[CatalogEntry]] = {}
        for entry in sorted(self._entries.read(), key=_order):
            found.setdefault(entry.name, []).append(entry)
        return found

    def replace(self, entries: Iterable[CatalogEntry]) -> None:
        """Record entries in place of all others of this catalog, in one commit."""
        own = list(entries)
        self._entries.change(
            lambda before: sorted([*(e for e in before if e.target != self._target), *own], key=_order)
        )


def _order(entry: CatalogEntry) -> tuple[TableName, str]:
    return entry.name, entry.target or ""
