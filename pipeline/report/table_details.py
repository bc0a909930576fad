"""The details of tables for `pgdelta status TABLE`: offsets, versions, last event, and misfits by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.metadata.catalog_entries import DONE_STATES, CatalogEntry
from pipeline.metadata.maintenance import Maintained
from pipeline.protocol.lsn import LSN
from pipeline.report.status_page import OPERATIONS, Status, TableStatus, maintained_json
from pipeline.units import format_count, format_duration, format_nonzero, format_size, format_time

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class SourceColumnType:
    """The type of a column at the source, and whether the column belongs to the replica identity."""

    type: str
    is_key: bool


@dataclass(frozen=True, slots=True)
class ColumnStatus:
    """One column: its name and type in silver, its type at the source, and values that did not fit.

    `silver_type` is None for a column that silver does not have, `source_type` for one that the source does
    not have (any more).
    """

    name: str
    silver_type: str | None
    source_type: str | None
    is_key: bool = False
    misfits: int = 0


@dataclass(frozen=True, slots=True)
class TableDetails:
    """A table's status, its columns, its path, who wrote it last, and the relation that bronze has for it.

    `writer` is `native` or `spark`, None if the log has no such commit any more.
    """

    table: TableStatus
    columns: tuple[ColumnStatus, ...] = ()
    path: str | None = None
    relation_id: int | None = None
    relation_lsn: LSN | None = None
    writer: str | None = None
    maintained: Maintained | None = None

    def as_json(self) -> dict[str, Any]:
        event = self.table.event
        return {
            **self.table.as_json(),
            "path": self.path,
            "writer": self.writer,
            "maintained": self.maintained and maintained_json(self.maintained),
            "relation": self.relation_id
            and {"oid": self.relation_id, "recorded_at_lsn": str(self.relation_lsn)},
            "last_event": event and {"lsn": str(event.lsn), "kind": event.kind, "sentence": event.sentence},
            "columns": [
                {
                    "name": column.name,
                    "silver_type": column.silver_type,
                    "source_type": column.source_type,
                    "key": column.is_key,
                    "misfits": column.misfits,
                }
                for column in self.columns
            ],
        }


@dataclass(frozen=True, slots=True)
class StatusDetails:
    """The status of some tables with their details, in the order in which they need attention."""

    status: Status
    tables: tuple[TableDetails, ...]

    @property
    def is_held(self) -> bool:
        """Whether one of the tables is held, refused or failed."""
        return self.status.is_held

    def as_json(self) -> dict[str, Any]:
        """Return the status as data, its tables with details."""
        return {**self.status.as_json(), "tables": [details.as_json() for details in self.tables]}

    def print(self, console: Console) -> None:
        """Print the tables one below the other."""
        behind = "the source" if self.status.source else "bronze"
        for number, details in enumerate(sorted(self.tables, key=lambda details: details.table.attention)):
            if number:
                console.print()
            render_table_details(console, details, behind=behind)


def render_table_details(console: Console, details: TableDetails, *, behind: str = "the source") -> None:
    """Print one table: facts in two columns, then its columns; `behind` names what its lag is relative to."""
    from rich.text import Text

    from pipeline.terminal import plain, print_list, print_pairs, print_paragraph

    table = details.table
    print_paragraph(console, Text.assemble(plain(str(table.name), "bold"), ": ", (table.state, table.style)))
    print_pairs(console, list_facts(details, behind), indent=2)
    if not details.columns:
        return
    console.print()
    rows = [
        (
            f"  {column.name}",
            column.silver_type or "not in silver",
            column.source_type or "not in source",
            "key" if column.is_key else "",
            format_nonzero(column.misfits),
        )
        for column in details.columns
    ]
    print_list(console, ("  column", "silver type", "source type", "key", "misfits"), rows, right=["misfits"])


def list_facts(details: TableDetails, behind: str) -> Iterator[tuple[str, str]]:
    """Give the facts about a table as labels and texts; `behind` names what its lag is relative to."""
    table, event = details.table, details.table.event
    if table.sentence and (event is None or table.sentence != event.sentence):
        is_copy = table.awaits_copy or table.copy_share is not None
        yield "copy" if is_copy else "why", table.sentence
    if table.applied:
        moment = f", committed {format_time(table.commit_time)}" if table.commit_time else ""
        yield "applied", f"{table.applied}{moment}"
    if table.lag_bytes is not None:
        yield "lag", _lag_text(table, behind)
    if any(table.operations.values()):
        counts = [
            (count, OPERATIONS[op].removesuffix("s")) for op, count in table.operations.items() if count
        ]
        yield "last day", ", ".join(format_count(count, noun) for count, noun in counts)
    if details.path is not None:
        yield "silver", f"version {table.version}, {details.path}" if table.version >= 0 else details.path
    for entry in table.catalog:
        yield f"catalog {entry.target}" if entry.target else "catalog", _catalog_text(entry)
    if details.writer is not None:
        yield "written", "natively" if details.writer == "native" else "by Spark"
    if details.maintained is not None:
        yield "maintained", _maintained_text(details.maintained)
    if details.relation_id is not None:
        yield "relation", f"oid {details.relation_id}, recorded at {details.relation_lsn}"
    if equal := table.verified:
        at = format_time(equal.at)
        yield "verified", f"equal to the source at {equal.lsn}, by {equal.method}, {at}"
    else:
        yield "verified", "not yet"
    if table.misfits:
        yield "misfits", f"{format_count(sum(table.misfits.values()), 'value')}, in _pgdelta/misfits"
    if event is not None:
        yield "last event", f"{event.kind} at {event.lsn}: {event.sentence}"


def _catalog_text(entry: CatalogEntry) -> str:
    if entry.state in DONE_STATES:
        return str(entry.catalog_name)
    return f"not registered as {entry.catalog_name}: {entry.sentence or 'the next apply registers it'}"


def _maintained_text(done: Maintained) -> str:
    moment = format_time(done.maintained_at)
    if done.sentence is not None:
        return f"{moment}: {done.sentence}"
    removed = format_count(done.removed_files + done.removed_log_files, "file")
    return (
        f"{moment}: {done.files_before:,} to {format_count(done.files_after, 'data file')} "
        f"({format_size(done.bytes)}), {removed} removed"
    )


def _lag_text(table: TableStatus, behind: str) -> str:
    if not table.lag_bytes:
        return f"none behind {behind}"
    seconds = "" if table.lag_seconds is None else f"{format_duration(table.lag_seconds)}, "
    return f"{seconds}{format_size(table.lag_bytes)} of WAL behind {behind}"


def list_columns(
    silver_types: Mapping[str, str],
    source_names: Mapping[str, str],
    source: Mapping[str, SourceColumnType],
    misfits: Mapping[str, int],
) -> tuple[ColumnStatus, ...]:
    """Return silver's columns in their order, then those that only the source or the misfits know.

    `source_names` maps a name in silver to the one at the source, `misfits` counts by either of the two.
    """
    columns, seen = [], set()
    for silver_name, silver_type in silver_types.items():
        names = {silver_name, source_names.get(silver_name, silver_name)}
        seen |= names
        found = source.get(source_names[silver_name]) if silver_name in source_names else None
        columns.append(_column(silver_name, silver_type, found, sum(misfits.get(name, 0) for name in names)))
    for name in [*source, *sorted(misfits.keys() - source.keys())]:
        if name not in seen:
            columns.append(_column(name, None, source.get(name), misfits.get(name, 0)))
    return tuple(columns)


def _column(name: str, silver_type: str | None, found: SourceColumnType | None, misfits: int) -> ColumnStatus:
    source_type, is_key = (found.type, found.is_key) if found else (None, False)
    return ColumnStatus(name, silver_type, source_type, is_key, misfits)
