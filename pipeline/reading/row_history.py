"""The lives of rows: which of a table's changes wrote the row that had a key, in order. Pure.

A life begins with an insert, or with the first change or copied row that bronze has of a key, and follows the
row through key changes. It ends with a delete or a TRUNCATE; a row that is inserted later with the same key
is another life. Changes hold texts as bronze has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.protocol.lsn import LSN
from pipeline.silver.schema.column_mapping import align_versions

OPERATIONS = {"I": "insert", "U": "update", "D": "delete", "T": "truncate", "R": "copied"}


@dataclass(frozen=True, slots=True)
class RowChange:
    """One change of a table: a row of bronze with the keys that it has; a TRUNCATE has none."""

    lsn: LSN  # of the commit
    ordinal: int
    op: str
    relation: SourceRelation
    time: datetime | None = None
    xid: int | None = None
    old_key: str | None = None
    new_key: str | None = None
    new: Sequence[str | None] = ()
    unsent: frozenset[int] = frozenset()

    @property
    def place(self) -> tuple[int, bool, int]:
        """Its place in the order of changes; copied rows follow what their snapshot sees."""
        return int(self.lsn), self.op == "R", self.ordinal


@dataclass(frozen=True, slots=True)
class ChangedColumn:
    """A column that a change set: its text, and the one before if bronze has that."""

    column: SourceColumn
    text: str | None
    before: str | None = None
    has_before: bool = False


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One change of a row's life, and the columns whose values it changed."""

    change: RowChange
    columns: tuple[ChangedColumn, ...] = ()


@dataclass(slots=True)
class _Life:
    is_wanted: bool
    entries: list[HistoryEntry] = field(default_factory=list)
    texts: dict[str, str | None] = field(default_factory=dict)  # by the newest name of the column

    def add(self, change: RowChange, names: Sequence[str]) -> None:
        """Add a change, with the columns that have another text than before."""
        changed = []
        for index, column in enumerate(change.relation.columns):
            if change.op in "DT" or index in change.unsent or index >= len(change.new):
                continue
            name, text = names[index], change.new[index]
            if name not in self.texts or self.texts[name] != text:
                changed.append(ChangedColumn(column, text, self.texts.get(name), name in self.texts))
            self.texts[name] = text
        self.entries.append(HistoryEntry(change, tuple(changed)))


def find_lives(changes: Iterable[RowChange], key: str) -> list[list[HistoryEntry]]:
    """Return the lives of all rows that had a key at some time, each with its changes in order.

    The changes are those of all keys that key changes connect with it, and all TRUNCATEs.
    """
    lives: list[_Life] = []
    alive: dict[str, _Life] = {}

    def life_of(at: str, *, begins: bool = False) -> _Life:
        if begins or at not in alive:
            alive[at] = _Life(at == key)
            lives.append(alive[at])
        alive[at].is_wanted |= at == key
        return alive[at]

    ordered = sorted(changes, key=lambda change: change.place)
    names = _names_by_version(ordered)
    for change in ordered:
        old, new = change.old_key, change.new_key
        if change.op == "T":
            for life in alive.values():
                life.add(change, ())
            alive.clear()
        elif change.op == "D":
            if old is not None:
                life_of(old).add(change, ())
                del alive[old]
        elif new is not None:
            if change.op == "U" and old is not None and old != new:
                alive[new] = life_of(old)
                del alive[old]
            life_of(new, begins=change.op == "I").add(change, names[change.relation.version])
    return [life.entries for life in lives if life.is_wanted]


def _names_by_version(changes: Iterable[RowChange]) -> dict[int, tuple[str, ...]]:
    """Return the newest names of the columns of each relation version, which tell renamed columns."""
    tables: dict[int, dict[int, SourceRelation]] = {}
    for change in changes:
        tables.setdefault(change.relation.oid, {}).setdefault(change.relation.version, change.relation)
    return {
        relation.version: tuple(column.name for column in relation.columns)
        for versions in tables.values()
        for relation in align_versions(None, list(versions.values())).relations
    }


def as_json(entry: HistoryEntry) -> Mapping[str, Any]:
    """Return an entry as data, with complete values."""
    change = entry.change
    return {
        "lsn": str(change.lsn),
        "ordinal": change.ordinal,
        "commit_time": change.time and change.time.isoformat(),
        "xid": change.xid,
        "op": change.op,
        "columns": [
            {"name": each.column.name, "value": each.text}
            | ({"before": each.before} if each.has_before else {})
            for each in entry.columns
        ],
    }
