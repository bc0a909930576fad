"""`_pgdelta/catalog`: what ingest last saw of the source's catalog and no message carries.

One row for the publication, one for each published table and each generated column of it, one for each table
that is published by its root, and one for each partition of these. Ingest replaces all rows when they change,
and compares them at its next start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.sql import EPOCH, now
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

CATALOG = (
    "kind STRING, schema_name STRING, table_name STRING, relation_id BIGINT, row_xmin BIGINT, "
    "root_id BIGINT, parent_id BIGINT, filenode BIGINT, lsn BIGINT, oldest_xid BIGINT, recorded_at TIMESTAMP"
)
_PUBLICATION, _ROOT, _PARTITION = "publication", "root", "partition"
_TABLE, _GENERATED = "table", "generated"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition on any level below a root: `attached_by` is the xmin of its row in pg_inherits.

    `filenode` is 0 for one that is partitioned itself. What is only read from the source, and not recorded:
    `is_born` is whether it was created as a partition, `row_xmin` the xmin of its row in pg_class.
    """

    name: TableName
    parent_id: int
    attached_by: int
    filenode: int
    is_born: bool = field(default=False, compare=False)
    row_xmin: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Root:
    """A partitioned table that is published by its root, with its partitions by OID."""

    name: TableName
    partitions: Mapping[int, Partition]


@dataclass(frozen=True, slots=True)
class TableFile:
    """The file node of a published table, 0 if it is partitioned, and the numbers of its generated columns.

    `row_xmin` is only read from the source, like that of a partition.
    """

    name: TableName
    filenode: int
    generated: frozenset[int] = frozenset()
    row_xmin: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CatalogState:
    """The publication's OID, the xmin of its row, the roots by OID, and the files of all tables by OID.

    All transactions before `oldest_xid`, which has an epoch, had ended; `lsn` is the end of the WAL then.
    `recorded_at` is only of a state that was read here.
    """

    publication_id: int
    publication_xmin: int
    roots: Mapping[int, Root]
    lsn: LSN = field(compare=False)
    oldest_xid: int = field(compare=False)
    tables: Mapping[int, TableFile] = field(default_factory=dict)
    recorded_at: datetime = field(default=EPOCH, compare=False)


class CatalogTable:
    """Reads and writes `_pgdelta/catalog`."""

    def __init__(self, lake: Lake) -> None:
        self._table = lake.table("_pgdelta", "catalog")

    def read(self) -> CatalogState | None:
        """Return what was recorded last, None if nothing was."""
        return _state(self._table.rows().to_pylist()) if self._table.exists() else None

    def replace(self, state: CatalogState, publication: str) -> None:
        """Record a state in place of the last one."""
        rows = _rows(state, publication)
        with crash_step(CrashStep.RECORD_CATALOG):
            retry_conflicts(lambda: self._table.overwrite_rows(rows, CATALOG))  # apply maintains the table


def _rows(state: CatalogState, publication: str) -> list[dict[str, object]]:
    seen = {"lsn": state.lsn, "oldest_xid": state.oldest_xid, "recorded_at": now()}
    rows = [_row(_PUBLICATION, TableName("", publication), state.publication_id, state.publication_xmin)]
    for root_id, root in state.roots.items():
        rows.append(_row(_ROOT, root.name, root_id))
        rows += [
            _row(_PARTITION, each.name, oid, each.attached_by, root_id, each.parent_id, each.filenode)
            for oid, each in root.partitions.items()
        ]
    for oid, table in state.tables.items():
        rows.append(_row(_TABLE, table.name, oid, filenode=table.filenode))
        rows += [_row(_GENERATED, table.name, number, root_id=oid) for number in sorted(table.generated)]
    return [row | seen for row in rows]


def _row(
    kind: str,
    name: TableName,
    relation_id: int,
    row_xmin: int = 0,
    root_id: int = 0,
    parent_id: int = 0,
    filenode: int = 0,
) -> dict[str, object]:
    return {
        "kind": kind,
        "schema_name": name.schema,
        "table_name": name.table,
        "relation_id": relation_id,
        "row_xmin": row_xmin,
        "root_id": root_id,
        "parent_id": parent_id,
        "filenode": filenode,
    }


def _state(rows: list[dict[str, Any]]) -> CatalogState | None:
    partitions: dict[int, dict[int, Partition]] = {}
    for row in rows:
        if row["kind"] == _PARTITION:
            partitions.setdefault(row["root_id"], {})[row["relation_id"]] = Partition(
                _name(row), row["parent_id"], row["row_xmin"], row["filenode"]
            )
    roots = {
        row["relation_id"]: Root(_name(row), partitions.get(row["relation_id"], {}))
        for row in rows
        if row["kind"] == _ROOT
    }
    generated: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        if row["kind"] == _GENERATED:
            generated[row["root_id"]].add(row["relation_id"])
    tables = {
        row["relation_id"]: TableFile(_name(row), row["filenode"], frozenset(generated[row["relation_id"]]))
        for row in rows
        if row["kind"] == _TABLE
    }
    for row in rows:
        if row["kind"] == _PUBLICATION:
            return CatalogState(
                row["relation_id"],
                row["row_xmin"],
                roots,
                LSN(row["lsn"]),
                row["oldest_xid"],
                tables,
                row["recorded_at"],
            )
    return None


def _name(row: Mapping[str, Any]) -> TableName:
    return TableName(row["schema_name"], row["table_name"])
