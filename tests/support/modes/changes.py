"""What the models of a table are fed with: its changes one at a time, and copies; values as texts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow.compute as pc

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.log import Bronze
from pipeline.bronze.source_relations import SourceRelation
from pipeline.delta.sql import EPOCH
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


@dataclass(frozen=True, slots=True)
class LaterCopy:
    """A copy of a table that has rows: its rows, and the changes that its snapshots did not see, in order."""

    relation: SourceRelation
    lsn: int
    time: datetime
    changes: tuple[Change, ...]


def read_changes(bronze: Bronze, name: TableName, end_lsn: int | None = None) -> Iterator[Change | LaterCopy]:
    """Yield a table's changes and copies in the order of commits.

    A copy without a request, or of an adoption, is the first.
    """
    relations = bronze.source_relations()
    history = bronze.copies.read()
    states = [state for state in history.states.get(name, ()) if not state.key_ranges and state.copy]
    adoptions = {request.id for request in history.requests if request.adoption is not None}
    is_copied = bool(states) and adoptions.issuperset(states[0].requests)
    copies = sorted((state.copy for state in states if state.copy), key=lambda copy: copy.end_lsn)
    copies = [copy for copy in copies if end_lsn is None or copy.end_lsn <= end_lsn]
    condition = (pc.field("schema_name") == name.schema) & (pc.field("table_name") == name.table)
    rows = bronze.changes.rows(where=condition).to_pylist()
    rows = [row for row in rows if row["op"] in "IUDTR"]
    rows = [row for row in rows if end_lsn is None or row["op"] == "R" or row["end_lsn"] <= end_lsn]
    changes = [row for row in rows if row["op"] != "R"]
    if is_copied and copies:
        first = copies.pop(0)
        changes = [row for row in rows if _is_input(row, first)]
        for row in changes:
            row["commit_lsn"] = _lsn_of(row, first)
    changes.sort(key=lambda row: (row["commit_lsn"], row["ordinal"]))
    for copy in copies:
        for row in changes:
            if row["op"] == "R" or row["end_lsn"] <= copy.end_lsn:
                yield _change(row, relations[row["relation_version"]])
        changes = [row for row in changes if row["op"] != "R" and row["end_lsn"] > copy.end_lsn]
        of_copy = [row for row in rows if _is_input(row, copy) and row["end_lsn"] <= copy.end_lsn]
        found = [
            replace(_change(row, relations[row["relation_version"]]), commit_lsn=_lsn_of(row, copy))
            for row in of_copy
        ]
        found.sort(key=lambda change: (change.commit_lsn, change.ordinal))
        time = EPOCH + timedelta(microseconds=copy.micros)
        yield LaterCopy(relations[copy.version], copy.end_lsn, time, tuple(found))
    for row in changes:
        yield _change(row, relations[row["relation_version"]])


def _is_input(row: dict[str, Any], copy: CompleteCopy) -> bool:
    if row["op"] == "R":
        return bool(row["copy_id"] == copy.id)
    return row["commit_lsn"] > copy.lsns[0] or row["commit_lsn"] in copy.invisible_commits


def _lsn_of(row: dict[str, Any], copy: CompleteCopy) -> int:
    """Return the LSN by which a row of a copy, or a change, is in order."""
    is_early = row["op"] == "R" and copy.invisible_commits
    return min(copy.lsns[0], *(lsn - 1 for lsn in copy.invisible_commits)) if is_early else row["commit_lsn"]


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
