"""`_pgdelta/comments`: the comments on the source's tables and columns, as ingest read them last.

One row for each comment, and for each one that was removed since it was recorded. Ingest replaces all rows
when they change.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pipeline.delta.record_table import RecordTable, TableRecord
from pipeline.delta.sql import EPOCH, now
from pipeline.delta.table import Lake
from pipeline.protocol.pg_types import Int4
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class SourceComment(TableRecord):
    """The comment on a table, if `attribute_number` is 0, or on a column; None is a removed one.

    The number is None for a column of a table that was created again without the comment.
    """

    relation_id: int
    attribute_number: Int4 | None
    column_name: str | None
    comment: str | None
    recorded_at: datetime = field(default=EPOCH, compare=False)


Comments = Mapping[TableName, Sequence[SourceComment]]


class CommentTable:
    """Reads and writes `_pgdelta/comments`; threads may share it."""

    def __init__(self, lake: Lake) -> None:
        self._comments = RecordTable(lake, "comments", SourceComment)
        self._lock = threading.Lock()
        self._found: Comments | None = None
        self._version = -1

    @property
    def has_changed(self) -> bool:
        """Whether the table has another version than was read."""
        return self._comments.table.version() != self._version

    def read(self) -> Comments:
        """Return the comments by table as they were read last; the first call reads them."""
        with self._lock:
            if self._found is None:
                self._read()
            return self._found or {}

    def refresh(self) -> None:
        """Read the comments again if the table has another version."""
        with self._lock:
            if self._found is None or self.has_changed:
                self._read()

    def _read(self) -> None:
        snapshot = self._comments.table.snapshot()
        found: dict[TableName, list[SourceComment]] = {}
        for comment in self._comments.read(snapshot):
            found.setdefault(comment.name, []).append(comment)
        self._found, self._version = found, snapshot.version

    def replace(self, comments: Iterable[SourceComment]) -> None:
        """Record these comments in place of all others."""
        recorded_at = now()
        self._comments.replace(replace(each, recorded_at=recorded_at) for each in comments)
        self.refresh()


def comments_after(
    before: Comments, found: Iterable[SourceComment], polled: Mapping[TableName, int]
) -> list[SourceComment]:
    """Return what is recorded after a poll of tables, given with their OIDs, that found comments.

    A comment that is gone stays as a removed one, and the comments of tables that were not polled stay.
    """
    comments = sorted(found, key=lambda each: (each.name, each.attribute_number or 0))
    numbers = {(each.relation_id, each.attribute_number) for each in comments}
    columns = {(each.name, each.column_name) for each in comments}
    names = {relation_id: name for name, relation_id in polled.items()}
    kept = []
    for each in (each for rows in before.values() for each in rows):
        name = names.get(each.relation_id)
        if name is not None:  # the same table, maybe renamed
            if each.attribute_number is None:
                is_gone = (name, each.column_name) not in columns
            else:
                is_gone = (each.relation_id, each.attribute_number) not in numbers
            if is_gone:
                kept.append(replace(each, schema_name=name[0], table_name=name[1], comment=None))
        elif each.name not in polled:
            kept.append(each)
        elif (each.name, each.column_name) not in columns:  # another table has the name
            number = 0 if each.column_name is None else None
            relation_id = polled[each.name]
            kept.append(replace(each, relation_id=relation_id, attribute_number=number, comment=None))
    return comments + kept


def changed_tables(before: Comments, now: Comments) -> Collection[TableName]:
    """Return the tables whose comments differ."""
    return [name for name, comments in now.items() if comments != before.get(name)]
