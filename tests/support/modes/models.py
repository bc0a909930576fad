"""What silver has in each mode after some changes: slow on purpose, and one change at a time.

A row is a dict of column name to PostgreSQL text. A column that joins with a default gets it in every row
that a model has at that time.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from pipeline.bronze.source_relations import SourceRelation
from tests.support.modes.changes import Change, LaterCopy, Row, Text

Key = tuple[Text, ...]


class Model(ABC):
    """The rows of one table; `OWN` are pgdelta's columns and their types at the source."""

    OWN: ClassVar[Mapping[str, str]]

    def __init__(self) -> None:
        self._columns: set[str] = set()

    def feed(self, changes: Iterable[Change | LaterCopy]) -> None:
        """Apply changes and copies in order."""
        for change in changes:
            self._add_columns(change.relation)
            if isinstance(change, LaterCopy):
                self.compare(change)
            else:
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
    def compare(self, copy: LaterCopy) -> None:
        """Get the rows of a copy."""

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
                    self._mark(row, *commit)
            case "D":
                if change.key in self._rows:
                    self._delete(self._rows[change.key], change)
            case _:
                before = self._rows.get(change.old_key) if change.op == "U" else None  # None: it was not sent
                base = before.values if before else {}
                values = {**base, **change.new, **dict(zip(change.relation.key, change.key, strict=True))}
                if before and change.old_key != change.key:
                    self._delete(before, change)
                self._rows[change.key] = SoftRow(values, *commit)

    @staticmethod
    def _delete(row: SoftRow, change: Change) -> None:
        """Mark the row of a delete: the source had it, also if the stream lacks how it came back."""
        row.commit_lsn, row.commit_time = change.commit_lsn, change.commit_time
        row.deleted_at = change.commit_time

    @staticmethod
    def _mark(row: SoftRow, lsn: int, time: datetime) -> None:
        """Mark a row unless it is gone already."""
        if row.deleted_at is None:
            row.commit_lsn, row.commit_time, row.deleted_at = lsn, time, time

    def compare(self, copy: LaterCopy) -> None:
        copied = rows_of_copy(copy)
        if copied is None:
            return
        for key, row in self._rows.items():
            if key not in copied:
                self._mark(row, copy.lsn, copy.time)
        for key, values in copied.items():
            before = self._rows.get(key)
            if before is None or before.deleted_at is not None or _differ(before.values, values):
                kept = before.values if before else {}
                self._rows[key] = SoftRow({**kept, **values}, copy.lsn, copy.time)

    def shown_rows(self) -> dict[Key, Row]:
        """Return the values of the rows that are not gone, by key."""
        return {key: row.values for key, row in self._rows.items() if row.deleted_at is None}

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


def rows_of_copy(copy: LaterCopy) -> dict[Key, Row] | None:
    """Return the rows of the source at the LSN of a copy, by key; None if a value was not sent."""
    mirror = Mirror()
    mirror.feed(copy.changes)
    rows, names = mirror.shown_rows(), {column.name for column in copy.relation.columns}
    return None if any(names - row.keys() for row in rows.values()) else rows


def _differ(before: Row, after: Row) -> bool:
    return any(before.get(name) != value for name, value in after.items())


@dataclass(slots=True)
class Version:
    """A version of a row, the commit that left it and the one that ended it."""

    key: Key
    values: Row
    start: tuple[int, datetime]
    end: tuple[int, datetime] | None = None
    ordinal: int | None = None  # of the change that began it; None if a later copy did


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
        self._remove_intermediate()
        if change.op in "IRU":
            is_known = change.op == "U" and change.old_key in current
            base = current[change.old_key].values if is_known else {}
            values = {**base, **change.new, **dict(zip(change.relation.key, change.key, strict=True))}
            self._versions.append(Version(change.key, values, commit, ordinal=change.ordinal))

    def _remove_intermediate(self) -> None:
        self._versions = [version for version in self._versions if version.start != version.end]

    def compare(self, copy: LaterCopy) -> None:
        commit, copied = (copy.lsn, copy.time), rows_of_copy(copy)
        if copied is None:
            return
        for version in [version for version in self._versions if version.end is None]:
            values = copied.pop(version.key, None)
            if values is None or _differ(version.values, values):
                version.end = commit
            if values is not None and version.end is not None:
                self._versions.append(Version(version.key, {**version.values, **values}, commit))
        self._versions += [Version(key, values, commit) for key, values in copied.items()]

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


class Intermediate(History):
    """`history` with intermediate versions: every version that a change left."""

    OWN: ClassVar[Mapping[str, str]] = {**History.OWN, "_valid_from_ordinal": "int8"}

    def _remove_intermediate(self) -> None:
        """Keep them."""

    def rows(self) -> list[dict[str, Any]]:
        ordinals = [{"_valid_from_ordinal": version.ordinal} for version in self._versions]
        return [row | ordinal for row, ordinal in zip(super().rows(), ordinals, strict=True)]


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
        self._newest: dict[Key, tuple[tuple[int, int], Row]] = {}  # by key, with the place in the order
        self._keys: list[tuple[str, ...]] = []  # that identified rows, () if none did

    def apply(self, change: Change) -> None:
        values: Row = {**change.new}
        if change.op == "D":
            values = {**change.old}
        known = {name: value for name, value in change.old.items() if value is not None}
        values |= {name: known[name] for name in change.unsent if name in known}
        names = [column.name for column in change.relation.columns]
        place, key = (change.commit_lsn, change.ordinal), change.relation.key
        if change.op in "IUDR" and key not in self._keys:
            self._keys.append(key)
        if change.op == "U" and key and all(other and {*other} <= {*key} for other in self._keys):
            before, earlier = self._newest.get(change.old_key, (place, {}))
            if before < place:
                unsent = change.unsent - known.keys() - {*key}
                values |= {name: earlier[name] for name in unsent if earlier.get(name) is not None}
        unchanged = [name for name in names if name in change.unsent and values.get(name) is None]
        if change.op == "D":
            self._newest.pop(change.key, None)
        elif change.op in "IUR" and key and place > self._newest.get(change.key, ((0, -1), {}))[0]:
            own = dict(zip(key, change.key, strict=True))
            self._newest[change.key] = place, {**values, **own}
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

    def compare(self, copy: LaterCopy) -> None:
        for change in copy.changes:
            if change.op == "R":
                self.apply(change)

    def all_rows(self) -> list[Row]:
        return []  # a column that joins later is NULL in earlier rows

    def rows(self) -> list[dict[str, Any]]:
        return self._rows


MODELS: dict[str, type[Model]] = {
    "mirror": Mirror,
    "soft_delete": SoftDelete,
    "append": Append,
    "history": History,
    "intermediate": Intermediate,
}
