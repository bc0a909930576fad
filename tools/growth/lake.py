"""A lake with one copied table of any size, filled without PostgreSQL and Spark, and changes for it.

The files are as a copy by the native writer leaves them. Keys grow, or are random UUIDs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import duckdb
import pyarrow as pa

from pipeline.bronze.relations import RelationVersion, relation_version
from pipeline.config.config import Config
from pipeline.delta.data_files import DataFiles, arrow_columns
from pipeline.delta.native_commit import Operation
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.metadata.registry import RegisteredColumn, RegisteredTable
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Column, Relation
from pipeline.silver.read.versions import version_and_id
from pipeline.silver.write.data_layout import ADDED_FILE_IN_MEMORY, file_size
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from tests.support.native_lakes import COPIED_AT, START, NativeLake, change

_PART = 1_000_000  # rows that are made at a time
_INT4, _TEXT, _UUID = 23, 25, 2950
_FILL = "SELECT {key} AS id, 'name ' || hash(i) % 1000000 AS name, CAST(i % 1000 AS INTEGER) AS n, {more}"
_MORE = "CAST({lsn} AS BIGINT) AS _commit_lsn, CAST('{time}' AS TIMESTAMPTZ) AS _commit_time"


class GrowingLake(NativeLake):
    """A lake with one table (id, name, n) of `size` copied rows."""

    def __init__(self, root: Path, size: int, *, has_uuids: bool) -> None:
        self.size = size
        self.has_uuids = has_uuids
        self._random = random.Random(size)
        self._uuids: list[str] = []  # of some rows
        self._lsn = 10_000
        super().__init__(root, 1)

    @property
    def name(self) -> TableName:
        """The table."""
        return self.names[0]

    @property
    def table(self) -> LakeTable:
        """The silver table."""
        return self.lake.table("silver", *self.name)

    def _relation(self, number: int, name: TableName) -> RelationVersion:
        columns = (
            Column(True, "id", _UUID if self.has_uuids else _INT4, -1),
            Column(False, "name", _TEXT, -1),
            Column(False, "n", _INT4, -1),
        )
        return relation_version(Relation(number + 1, name.schema, name.table, "d", columns), None, LSN(1))

    def _apply(self) -> None:
        self.land(LSN(COPIED_AT + 8), [])
        name, table, key = self.name, self.table, "STRING" if self.has_uuids else "INT"
        ddl = f"id {key}, name STRING, n INT, _commit_lsn BIGINT, _commit_time TIMESTAMP"
        table.ensure(ddl)
        snapshot = table.snapshot()
        schema = arrow_columns(TableSchema.of_json(snapshot.schema_string))
        files = DataFiles(table.folder, schema, file_size, ADDED_FILE_IN_MEMORY)
        for rows in self._parts():
            files.write(rows.cast(schema))
        commit = TableCommit(self.bronze.txn, COPIED_AT, {"table": list(name)})
        operation = Operation(
            "WRITE", {"mode": "Append"}, {}, user_metadata=commit.user_metadata, is_blind_append=True
        )
        actions = [file.action() for file in files.close()]
        table.commit(snapshot, actions, {str(commit.txn): int(commit.lsn)}, operation)
        version, table_id = version_and_id(table)
        entry = ManifestEntry(*name, table.path, version, LSN(COPIED_AT + 8), False, table_id, COPIED_AT)
        oids = (_UUID if self.has_uuids else _INT4, _TEXT, _INT4)
        columns = tuple(
            RegisteredColumn(column, column, number, column, oid, -1)
            for number, (column, oid) in enumerate(zip(("id", "name", "n"), oids, strict=True), 1)
        )
        self.records.tables.register(
            RegisteredTable(
                *name,
                table.path,
                1,
                columns,
                copy_id=1,
                metadata_columns=("_commit_lsn", "_commit_time"),
            )
        )
        self.manifests.record(Manifest(LSN(COPIED_AT + 8), START, (entry,)))

    def _parts(self) -> Iterator[pa.Table]:
        """Yield the rows of the table in the order of their making."""
        key = "CAST(uuid() AS VARCHAR)" if self.has_uuids else "CAST(i AS INTEGER)"
        more = _MORE.format(lsn=int(COPIED_AT), time=START.isoformat())
        with closing(duckdb.connect()) as connection:
            for start in range(0, self.size, _PART):
                count = min(_PART, self.size - start)
                query = f"{_FILL.format(key=key, more=more)} FROM range({start}, {start + count}) AS r(i)"
                rows = connection.sql(query).to_arrow_table()
                if self.has_uuids:
                    self._uuids += rows.column("id").to_pylist()[:: max(1, count // 20)]
                yield rows

    def land_batch(self, keys: str) -> None:
        """Land 20 changes, one transaction each: ten updates, two deletes and eight inserts.

        `keys` says which rows are updated and deleted: `newest`, or `random`.
        """
        version, lsn = self.versions[self.name].id, self._lsn
        changed = self._keys(keys)
        inserted = [self._new_key() for _ in range(8)]
        rows = []
        for number, key in enumerate(changed):
            texts = [key, f"changed {lsn}", "1"]
            op = {"new": texts, "op": "U"} if number < 10 else {"old": [key, None, None], "old_kind": "K"}
            more = op if number < 10 else op | {"new": None, "op": "D"}
            rows.append(change(self.name, version, number, lsn, **more))
        rows += [
            change(self.name, version, 12 + number, lsn, new=[key, "added", "2"])
            for number, key in enumerate(inserted)
        ]
        self.land(LSN(lsn + 8), rows)
        self._lsn += 100

    def _keys(self, keys: str) -> list[str]:
        if self.has_uuids:
            return self._random.sample(self._uuids, 12)
        first = max(0, self.size - 1000) if keys == "newest" else 0
        return [str(key) for key in self._random.sample(range(first, self.size), 12)]

    def _new_key(self) -> str:
        if self.has_uuids:
            return str(UUID(int=self._random.getrandbits(128), version=4))
        self.size += 1
        return str(self.size - 1)


def config_of(lake: GrowingLake, writer: WriterSetting) -> Config:
    """Return the configuration of a lake with a writer of silver."""
    return replace(lake.config, silver=replace(lake.config.silver, writer=writer))
