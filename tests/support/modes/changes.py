"""The changes of one table as its models are fed with them: one at a time, values as PostgreSQL's texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.log import Bronze
from pipeline.bronze.relations import SourceRelation
from pipeline.table_name import TableName

Text = str | None
Row = dict[str, Text]


@dataclass(frozen=True, slots=True)
class Change:
    """One change; `new` has what was sent, and `unsent` the names of unchanged TOAST."""

    op: str
    relation: SourceRelation
    commit_lsn: int
    ordinal: int
    commit_time: datetime
    old_kind: str | None
    old: Row
    new: Row
    unsent: frozenset[str]

    @property
    def key(self) -> tuple[Text, ...]:
        """The key after the change, of a delete before it; a key in TOAST is in the old tuple."""
        values = self.old if self.op == "D" else self.new
        return tuple(self.old[name] if name in self.unsent else values[name] for name in self.relation.key)

    @property
    def old_key(self) -> tuple[Text, ...]:
        """The key before the change."""
        return tuple(self.old[name] for name in self.relation.key) if self.old else self.key


def read_changes(bronze: Bronze, name: TableName, end_lsn: int | None = None) -> Iterator[Change]:
    """Yield a table's copied rows and the changes that follow them, in the order of commits."""
    relations = bronze.source_relations()
    copy = bronze.copies.read().newest().get(name)
    condition = (pc.field("schema_name") == name.schema) & (pc.field("table_name") == name.table)
    rows = bronze.changes.rows().filter(condition).to_pylist()
    rows = [row for row in rows if row["op"] in "IUDTR" and _is_input(row, copy)]
    rows = [row for row in rows if end_lsn is None or row["op"] == "R" or row["end_lsn"] <= end_lsn]
    for row in sorted(rows, key=lambda row: (row["commit_lsn"], row["ordinal"])):
        yield _change(row, relations[row["relation_version"]])


def _is_input(row: dict[str, Any], copy: CompleteCopy | None) -> bool:
    if copy is None:
        return bool(row["op"] != "R")
    assert copy.is_whole, "the models read rows of one snapshot"
    assert not copy.invisible_commits
    return bool(row["copy_id"] == copy.id if row["op"] == "R" else row["commit_lsn"] > copy.lsn)


def _change(row: dict[str, Any], relation: SourceRelation) -> Change:
    names = [column.name for column in relation.columns]
    unsent = frozenset(names[i] for i in row["unsent"] or ())
    old = dict(zip(names, row["old"], strict=True)) if row["old"] is not None else {}
    new = dict(zip(names, row["new"], strict=True)) if row["new"] is not None else {}
    new = {name: value for name, value in new.items() if name not in unsent}
    return Change(
        row["op"],
        relation,
        row["commit_lsn"],
        row["ordinal"],
        row["commit_time"],
        row["old_kind"],
        old,
        new,
        unsent,
    )
