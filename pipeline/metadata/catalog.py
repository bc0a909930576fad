"""`_pgdelta/catalog`: what ingest last saw of the source's catalog and no message carries.

One row for the publication, one for each published table and each generated column of it, one for each table
that is published by its root, one for each partition of these, and one for each type whose change gives
stored values another text, and each part of it. Ingest replaces all rows when they change, and compares them
at its next start.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.record_table import RecordTable
from pipeline.delta.sql import EPOCH, now
from pipeline.delta.table import Lake
from pipeline.key_ranges import ColumnRange, KeyRange
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

_PUBLICATION, _ROOT, _PARTITION = "publication", "root", "partition"
_TABLE, _GENERATED = "table", "generated"
_TYPE, _PART = "type", "part"
_TOP = (_PUBLICATION, _ROOT, _TABLE, _TYPE)  # kinds of rows that are not below another one


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """A partition on any level below a root: `attached_by` is the xmin of its row in pg_inherits.

    `filenode` is 0 for one that is partitioned itself, and `ranges` have its rows among those of its parent,
    None if its bounds do not give them. What is only read from the source, and not recorded: `is_born` is
    whether it was created as a partition, `row_xmin` the xmin of its row in pg_class, and `is_alone` whether
    no transaction could write to it while the one that attached it went on.
    """

    name: TableName
    parent_id: int
    attached_by: int
    filenode: int
    is_born: bool = field(default=False, compare=False)
    row_xmin: int = field(default=0, compare=False)
    is_alone: bool = field(default=False, compare=False)
    ranges: tuple[KeyRange, ...] | None = None


@dataclass(frozen=True, slots=True)
class Root:
    """A partitioned table that is published by its root, with its partitions by OID."""

    name: TableName
    partitions: Mapping[int, SourcePartition]


@dataclass(frozen=True, slots=True)
class TableFile:
    """The file node of a published table, 0 if it is partitioned, and the numbers of its generated columns.

    Transactions before `writers_xid` may still bring texts from before a type was altered; 0 if none may.
    `row_xmin` is only read from the source, like that of a partition.
    """

    name: TableName
    filenode: int
    generated: frozenset[int] = frozenset()
    writers_xid: int = 0
    row_xmin: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class SourceType:
    """A type whose change gives stored values another text: its parts by number, each with a mark.

    What is only read from the source: `tables` are the OIDs of the tables that have such values; an enum may
    get more parts; a transaction with the 64-bit id `altered_by` changed the type after it was created.
    """

    name: TableName
    parts: Mapping[int, int]
    tables: frozenset[int] = field(default=frozenset(), compare=False)
    is_enum: bool = field(default=False, compare=False)
    altered_by: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CatalogState:
    """The publication's OID, the xmin of its row, and by OID the roots, the files of all tables, and types.

    All transactions before `oldest_xid`, which has an epoch, had ended, and `next_xid` was the next to begin,
    0 if it is not known; `lsn` is the end of the WAL then. `recorded_at` is only of a state that was read
    here.
    """

    publication_id: int
    publication_xmin: int
    roots: Mapping[int, Root]
    lsn: LSN = field(compare=False)
    oldest_xid: int = field(compare=False)
    tables: Mapping[int, TableFile] = field(default_factory=dict)
    recorded_at: datetime = field(default=EPOCH, compare=False)
    types: Mapping[int, SourceType] = field(default_factory=dict)
    next_xid: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """A row of the table; what a column is of each kind of row, `_rows` has."""

    kind: str
    schema_name: str
    table_name: str
    relation_id: int
    row_xmin: int = 0
    root_id: int = 0
    parent_id: int = 0
    filenode: int = 0
    lsn: LSN = INVALID
    oldest_xid: int = 0
    recorded_at: datetime = EPOCH
    bounds: str | None = None

    @property
    def name(self) -> TableName:
        return TableName(self.schema_name, self.table_name)


class CatalogTable:
    """Reads and writes `_pgdelta/catalog`."""

    def __init__(self, lake: Lake) -> None:
        self._rows = RecordTable(lake, "catalog", CatalogRow)

    def read(self) -> CatalogState | None:
        """Return what was recorded last, None if nothing was."""
        return _state(self._rows.read())

    def replace(self, state: CatalogState, publication: str) -> None:
        """Record a state in place of the last one."""
        time = now()
        with crash_step(CrashStep.RECORD_CATALOG):
            self._rows.replace(
                replace(row, lsn=state.lsn, oldest_xid=state.oldest_xid, recorded_at=time)
                for row in _rows(state, publication)
            )


def _rows(state: CatalogState, publication: str) -> Iterator[CatalogRow]:
    yield CatalogRow(_PUBLICATION, "", publication, state.publication_id, state.publication_xmin)
    for root_id, root in state.roots.items():
        yield CatalogRow(_ROOT, *root.name, root_id)
        for oid, each in root.partitions.items():
            numbers = oid, each.attached_by, root_id, each.parent_id, each.filenode
            yield CatalogRow(_PARTITION, *each.name, *numbers, bounds=_bounds(each.ranges))
    for oid, table in state.tables.items():
        yield CatalogRow(_TABLE, *table.name, oid, table.writers_xid, filenode=table.filenode)
        for number in sorted(table.generated):
            yield CatalogRow(_GENERATED, *table.name, number, root_id=oid)
    for oid, kind in state.types.items():
        yield CatalogRow(_TYPE, *kind.name, oid)
        for number, mark in sorted(kind.parts.items()):
            yield CatalogRow(_PART, *kind.name, number, mark, oid)


def _bounds(ranges: tuple[KeyRange, ...] | None) -> str | None:
    """Return ranges of columns as JSON."""
    return None if ranges is None else json.dumps([[asdict(c) for c in each.columns] for each in ranges])


def _ranges(bounds: str | None) -> tuple[KeyRange, ...] | None:
    if bounds is None:
        return None
    columns = [tuple(ColumnRange(**column) for column in each) for each in json.loads(bounds)]
    return tuple(KeyRange((), (), each) for each in columns)


def _state(rows: Sequence[CatalogRow]) -> CatalogState | None:
    partitions: dict[int, dict[int, SourcePartition]] = defaultdict(dict)
    below: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for row in rows:
        if row.kind == _PARTITION:
            numbers = row.parent_id, row.row_xmin, row.filenode
            found = SourcePartition(row.name, *numbers, ranges=_ranges(row.bounds))
            partitions[row.root_id][row.relation_id] = found
        elif row.kind in (_GENERATED, _PART):
            below[row.kind, row.root_id][row.relation_id] = row.row_xmin
    of_kind = {kind: {row.relation_id: row for row in rows if row.kind == kind} for kind in _TOP}
    roots = {oid: Root(row.name, partitions[oid]) for oid, row in of_kind[_ROOT].items()}
    tables = {
        oid: TableFile(row.name, row.filenode, frozenset(below[_GENERATED, oid]), row.row_xmin)
        for oid, row in of_kind[_TABLE].items()
    }
    types = {oid: SourceType(row.name, below[_PART, oid]) for oid, row in of_kind[_TYPE].items()}
    for oid, row in of_kind[_PUBLICATION].items():
        state = CatalogState(oid, row.row_xmin, roots, row.lsn, row.oldest_xid)
        return replace(state, tables=tables, recorded_at=row.recorded_at, types=types)
    return None
