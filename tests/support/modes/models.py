"""What silver has in each mode after some changes: slow on purpose, and one change at a time.

A row is a dict of column name to PostgreSQL text. A column that joins with a default gets it in every row
that a model has at that time.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from pipeline.bronze.relations import SourceRelation
from tests.support.modes.changes import Change, Row, Text

Key = tuple[Text, ...]


class Model(ABC):
    """The rows of one table; `OWN` are pgdelta's columns and their types at the source."""

    OWN: ClassVar[Mapping[str, str]]

    def __init__(self) -> None:
        self._columns: set[str] = set()

    def feed(self, changes: Iterable[Change]) -> None:
        """Apply changes in order."""
        for change in changes:
            self._add_columns(change.relation)
            self.apply(change)

    def _add_columns(self, relation: SourceRelation) -> None:
        for column in relation.columns:
            if self._columns and column.name not in self._columns and column.missing_value is not None:
                for row in self.all_rows():
                    row.setdefault(column.name, column.missing_value)
        self._columns |= {column.name for column in relation.columns}

    @abstractmethod
    def apply(self, change: Change) -> None:
        """Apply one change."""

    @abstractmethod
    def all_rows(self) -> list[Row]:
        """Return the values of the source's columns in every row."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return every row, with pgdelta's columns."""


@dataclass(slots=True)
class SoftRow:
    """A row, the commit that wrote it last, and when it was deleted."""

    values: Row
    commit_lsn: int
    commit_time: datetime
    deleted_at: datetime | None = None


class SoftDelete(Model):
    """`soft_delete`: rows stay under their key when they are gone."""

    OWN: ClassVar[Mapping[str, str]] = {
        "_commit_lsn": "int8",
        "_commit_time": "timestamptz",
        "_deleted": "bool",
        "_deleted_at": "timestamptz",
    }

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[Key, SoftRow] = {}

    def apply(self, change: Change) -> None:
        commit = change.commit_lsn, change.commit_time
        match change.op:
            case "T":
                for row in self._rows.values():
                    self._delete(row, change)
            case "D":
                if change.key in self._rows:
                    self._delete(self._rows[change.key], change)
            case _:
                base = self._rows[change.old_key].values if change.op == "U" else {}
                values = {**base, **change.new, **dict(zip(change.relation.key, change.key, strict=True))}
                if change.op == "U" and change.old_key != change.key:
                    self._delete(self._rows[change.old_key], change)
                self._rows[change.key] = SoftRow(values, *commit)

    @staticmethod
    def _delete(row: SoftRow, change: Change) -> None:
        if row.deleted_at is None:
            row.commit_lsn, row.commit_time = change.commit_lsn, change.commit_time
            row.deleted_at = change.commit_time

    def all_rows(self) -> list[Row]:
        return [row.values for row in self._rows.values()]

    def rows(self) -> list[dict[str, Any]]:
        return [
            row.values
            | {
                "_commit_lsn": row.commit_lsn,
                "_commit_time": row.commit_time,
                "_deleted": row.deleted_at is not None,
                "_deleted_at": row.deleted_at,
            }
            for row in self._rows.values()
        ]


class Mirror(SoftDelete):
    """`mirror` of a table with a key: the rows that are not gone, without pgdelta's columns."""

    OWN: ClassVar[Mapping[str, str]] = {}

    def rows(self) -> list[dict[str, Any]]:
        return [{**row.values} for row in self._rows.values() if row.deleted_at is None]


@dataclass(slots=True)
class Version:
    """A version of a row, the commit that left it and the one that ended it."""

    key: Key
    values: Row
    start: tuple[int, datetime]
    end: tuple[int, datetime] | None = None


class History(Model):
    """`history`: every version that a commit left."""

    OWN: ClassVar[Mapping[str, str]] = {
        "_valid_from_lsn": "int8",
        "_valid_from_time": "timestamptz",
        "_valid_to_lsn": "int8",
        "_valid_to_time": "timestamptz",
        "_is_current": "bool",
    }

    def __init__(self) -> None:
        super().__init__()
        self._versions: list[Version] = []

    def apply(self, change: Change) -> None:
        commit = change.commit_lsn, change.commit_time
        current = {version.key: version for version in self._versions if version.end is None}
        gone: Iterable[Key]
        match change.op:
            case "T":
                gone = current
            case "D":
                gone = [change.key]
            case "U":
                gone = {change.old_key, change.key}
            case _:
                gone = [change.key]
        for key in gone:
            if key in current:
                current[key].end = commit
        self._versions = [version for version in self._versions if version.start != version.end]
        if change.op in "IRU":
            base = current[change.old_key].values if change.op == "U" else {}
            values = {**base, **change.new, **dict(zip(change.relation.key, change.key, strict=True))}
            self._versions.append(Version(change.key, values, commit))

    def all_rows(self) -> list[Row]:
        return [version.values for version in self._versions]

    def rows(self) -> list[dict[str, Any]]:
        return [
            version.values
            | {
                "_valid_from_lsn": version.start[0],
                "_valid_from_time": version.start[1],
                "_valid_to_lsn": version.end[0] if version.end else None,
                "_valid_to_time": version.end[1] if version.end else None,
                "_is_current": version.end is None,
            }
            for version in self._versions
        ]


class Append(Model):
    """`append`: each change is a row, and stays as it is."""

    OWN: ClassVar[Mapping[str, str]] = {
        "_commit_lsn": "int8",
        "_commit_time": "timestamptz",
        "_op": "text",
        "_ordinal": "int8",
        "_old": "text",
        "_unchanged": "text[]",
    }

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[dict[str, Any]] = []

    def apply(self, change: Change) -> None:
        values: Row = {**change.new}
        if change.op == "D":
            values = {**change.old}
        known = {name: value for name, value in change.old.items() if value is not None}
        values |= {name: known[name] for name in change.unsent if name in known}
        names = [column.name for column in change.relation.columns]
        unchanged = [name for name in names if name in change.unsent and name not in known]
        self._rows.append(
            values
            | {
                "_commit_lsn": change.commit_lsn,
                "_commit_time": change.commit_time,
                "_op": change.op,
                "_ordinal": change.ordinal,
                "_old": json.dumps(known, ensure_ascii=False, separators=(",", ":")) if change.old else None,
                "_unchanged": unchanged or None,
            }
        )

    def all_rows(self) -> list[Row]:
        return []  # a column that joins later is NULL in earlier rows

    def rows(self) -> list[dict[str, Any]]:
        return self._rows


MODELS: dict[str, type[Model]] = {
    "mirror": Mirror,
    "soft_delete": SoftDelete,
    "append": Append,
    "history": History,
}
