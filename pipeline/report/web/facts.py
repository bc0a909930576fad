"""Facts that a page shows: status of a pipeline, details of tables, their events and schema history.

The history of a table's schema comes from `bronze/relations`: each version says what differs from the one
before. Nothing here does I/O or holds a row's values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipeline.metadata.events import Event
from pipeline.protocol.lsn import LSN
from pipeline.report.status_page import Status, TableStatus
from pipeline.report.table_details import TableDetails
from pipeline.silver.types.types import numeric_digits
from pipeline.table_name import TableName

_IDENTITIES = {"d": "default", "n": "nothing", "f": "full", "i": "index"}
_NUMERIC = 1700
_TEXTS = (1042, 1043)  # bpchar, varchar
_BY_MODIFIER = (1083, 1266, 1114, 1184, 1560, 1562)  # times, timestamps and bit strings: it is what they have


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A relation version of a table: the LSN at which bronze recorded it, and what changed with it."""

    lsn: LSN
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PageFacts:
    """The facts of one page. `events` begin with the newest, `schemas` with the oldest version.

    `details` has the tables that are shown with their columns.
    """

    status: Status
    read_at: datetime
    details: Mapping[TableName, TableDetails] = field(default_factory=dict)
    events: Sequence[Event] = ()
    schemas: Mapping[TableName, Sequence[SchemaVersion]] = field(default_factory=dict)

    @property
    def tables(self) -> list[TableStatus]:
        """The tables in the order in which they need attention."""
        return sorted(self.status.tables, key=lambda table: table.attention)

    def events_of(self, name: TableName, most: int) -> list[Event]:
        """Return the newest events of a table."""
        return [event for event in self.events if event.name == name][:most]


def list_schema_versions(rows: Sequence[Mapping[str, Any]]) -> tuple[SchemaVersion, ...]:
    """Return the history of one table from its rows of `bronze/relations`, in any order.

    Versions with the same columns and the same replica identity as the one before are left out.
    """
    versions: list[SchemaVersion] = []
    before: Mapping[str, Any] | None = None
    for row in sorted(rows, key=lambda row: row["lsn"]):
        changes = tuple(_first(row) if before is None else _changes(before, row))
        if changes:
            versions.append(SchemaVersion(LSN(row["lsn"]), changes))
        before = row
    return tuple(versions)


def type_name(column: Mapping[str, Any]) -> str:
    """Return the name of a column's type at the source, its oid if bronze does not have the name."""
    name: str | None = column["type_name"]
    if name is None:
        return f"oid {column['type_oid']}"
    return f"{name[1:]}[]" if name.startswith("_") and column["element_oid"] else name


def _first(row: Mapping[str, Any]) -> Iterator[str]:
    columns = (f"{column['name']} {_type_text(column)}" for column in row["columns"])
    yield f"First version: {', '.join(columns) or 'no columns'}."


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    if before["relation_id"] != after["relation_id"]:
        oids = before["relation_id"], after["relation_id"]
        yield f"Another relation has the name: oid {oids[0]} before, {oids[1]} now."
        pairs = [(column, _named(before, column["name"])) for column in after["columns"]]
    else:
        pairs = [(column, _same(before, column)) for column in after["columns"]]
    kept = {former["name"] for _, former in pairs if former is not None}
    for column in before["columns"]:
        if column["name"] not in kept:
            yield f"Column {column['name']} was dropped."
    for column, former in pairs:
        name = column["name"]
        if former is None:
            yield f"Column {name} {_type_text(column)} was added."
            continue
        if former["name"] != name:
            yield f"Column {former['name']} was renamed to {name}."
        if _type(former) != _type(column):
            yield f"Column {name} changed from {_type_text(former)} to {_type_text(column)}."
        if former["is_key"] != column["is_key"]:
            yield f"Column {name} {'joined' if column['is_key'] else 'left'} the replica identity."
    identities = [_IDENTITIES.get(row["replica_identity"], "unknown") for row in (before, after)]
    if identities[0] != identities[1]:
        yield f"The replica identity changed from {identities[0]} to {identities[1]}."


def _named(row: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((column for column in row["columns"] if column["name"] == name), None)


def _same(row: Mapping[str, Any], column: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the column of an earlier version with the same attribute number, or name if it is unknown."""
    number = column["attribute_number"]
    if number is None or any(former["attribute_number"] is None for former in row["columns"]):
        return _named(row, column["name"])
    return next((former for former in row["columns"] if former["attribute_number"] == number), None)


def _type(column: Mapping[str, Any]) -> tuple[int, int]:
    return column["type_oid"], column["type_modifier"]


def _type_text(column: Mapping[str, Any]) -> str:
    """Return a type with its length or digits."""
    name, oid, modifier = type_name(column), column["type_oid"], column["type_modifier"]
    if modifier == -1:
        return name
    if oid == _NUMERIC:
        precision, scale = numeric_digits(modifier)
        return f"{name}({precision},{scale})"
    if oid in _TEXTS:
        return f"{name}({modifier - 4})"
    return f"{name}({modifier})" if oid in _BY_MODIFIER else f"{name} with modifier {modifier}"
