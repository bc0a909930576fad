"""A lake as ingest and apply leave it, made in seconds without Spark or PostgreSQL."""

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.bronze.copies import complete_row, reading_row
from pipeline.bronze.copy_states import READING, Chunk, CopyState, SnapshotChunks
from pipeline.bronze.log import Bronze
from pipeline.bronze.relations import RelationVersion, relation_version
from pipeline.bronze.schema import CHANGES
from pipeline.bronze.staged_files import StagedFileWriter
from pipeline.bronze.writer import BronzeWriter
from pipeline.config.config import Config
from pipeline.config.load import load_config
from pipeline.delta.data_files import DataFile
from pipeline.delta.table import Lake
from pipeline.delta.txn import TableCommit
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.metadata.registry import Records, RegisteredColumn, RegisteredTable
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Column, Relation
from pipeline.silver.read.versions import version_and_id
from pipeline.table_name import TableName

SOURCE = {"slot": "p", "system_identifier": "7", "timeline": 1, "database": "d"}
COPIED_AT = LSN(1000)
START = datetime.now(timezone.utc) - timedelta(hours=2)
_DDL = "id INT, name STRING, _commit_lsn BIGINT, _commit_time TIMESTAMP"


def change(
    name: TableName, version: int, ordinal: int, lsn: int, op: str = "I", **more: Any
) -> dict[str, Any]:
    """Return a row of bronze; transaction `lsn` ends 8 bytes later."""
    return {
        "commit_lsn": lsn,
        "end_lsn": lsn + 8,
        "ordinal": ordinal,
        "xid": lsn,
        "commit_time": START + timedelta(milliseconds=lsn),
        "op": op,
        "relation_id": 1,
        "relation_version": version,
        "schema_name": name.schema,
        "table_name": name.table,
        "old_kind": None,
        "old": None,
        "new": [str(ordinal), "a value"],
        **more,
    }


def write_file(folder: Path, *groups: list[dict[str, Any]]) -> DataFile:
    """Write rows of bronze to a file in a folder, each list a row group."""
    writer = StagedFileWriter(folder)
    for rows in groups:
        writer.write(pa.Table.from_pylist(rows, CHANGES))
    return writer.close().data


def make_config(root: Path | str, folder: Path | None = None, **sections: Any) -> Config:
    """Write the configuration of a lake, next to a local one or to a folder, and read it."""
    import yaml

    name = str(root).rpartition("/")[2]
    path = (folder or Path(root).parent) / f"{name}.yaml"
    content = {
        "pipeline": "p",
        "source": {"conninfo": "host=127.0.0.1 port=1 dbname=d"},
        "storage": {"root": str(root)},
        **sections,
    }
    path.write_text(yaml.safe_dump(content))
    return load_config(path)


class NativeLake:
    """A lake of `count` tables with 20 copied rows each, all applied by one manifest."""

    def __init__(self, root: Path, count: int, *, rows: int = 20, config: Config | None = None) -> None:
        """Make it in a folder, or where a configuration says."""
        self.root = root
        self.config = config or make_config(root)
        self.lake = Lake(self.config.storage)
        self.bronze = Bronze(self.lake, "p")
        self.bronze.ensure()
        self.records = Records(self.lake)
        self.records.ensure()
        self.manifests = Manifests(self.lake)
        self.manifests.ensure()
        self.writer = BronzeWriter(self.bronze, SOURCE)
        self.writer.claim()
        self.names = [TableName("public", f"t{number:04}") for number in range(count)]
        self.offset = COPIED_AT
        self.writer.start(COPIED_AT)
        self.versions = {name: self._relation(number, name) for number, name in enumerate(self.names)}
        self.writer.record_relations(list(self.versions.values()))
        self._copy(rows)
        self._apply()

    def _relation(self, number: int, name: TableName) -> RelationVersion:
        columns = (Column(True, "id", 23, -1), Column(False, "name", 25, -1))
        return relation_version(Relation(number + 1, name.schema, name.table, "d", columns), None, LSN(1))

    def _copy(self, count: int) -> None:
        changes, copies, rows = [], [], []
        for number, (name, version) in enumerate(self.versions.items()):
            state = CopyState(
                number + 1, name, READING, relation_id=number + 1, membership=1, relation_version=version.id
            )
            state.row_count = count
            state.snapshots.append(SnapshotChunks(COPIED_AT, (), 0, (Chunk(number + 1, 1, 0, 1),)))
            copies += [reading_row(state, state.snapshots[0]), complete_row(state, ())]
            common = {"commit_lsn": int(COPIED_AT), "end_lsn": int(COPIED_AT), "copy_id": number + 1}
            rows += [
                change(name, version.id, ordinal, int(COPIED_AT), "R", relation_id=number + 1) | common
                for ordinal in range(count)
            ]
        changes.append(write_file(self.bronze.changes.folder, rows))
        commits = [TableCommit(self.bronze.copy_txn(name), LSN(1)) for name in self.names]
        self.writer.commit(changes, *commits)
        self.writer.record_copies(copies)
        self.writer.bronze.copies.read()

    def _apply(self) -> None:
        end = LSN(COPIED_AT + 8)
        self.land(end, [])
        entries, tables = [], []
        for number, name in enumerate(self.names):
            table = self.lake.table("silver", *name)
            table.ensure(_DDL)
            rows = [{"id": n, "name": "a value", "_commit_lsn": int(COPIED_AT)} for n in range(20)]
            table.append_rows(rows, _DDL, TableCommit(self.bronze.txn, COPIED_AT, {"table": list(name)}))
            version, table_id = version_and_id(table)
            entries.append(ManifestEntry(*name, table.path, version, end, False, table_id, COPIED_AT))
            registered = RegisteredTable(
                *name,
                table.path,
                number + 1,
                (
                    RegisteredColumn("id", "id", 1, "id", 23, -1),
                    RegisteredColumn("name", "name", 2, "name", 25, -1),
                ),
                copy_id=number + 1,
                metadata_columns=("_commit_lsn", "_commit_time"),
            )
            tables.append(registered)
        self.records.tables.register(*tables)
        self.manifests.record(Manifest(end, START, tuple(entries)))

    def land(self, end: LSN, rows: list[dict[str, Any]]) -> None:
        """Commit rows of the stream, and the offset at which they end."""
        self.land_files(end, [write_file(self.bronze.changes.folder, rows)] if rows else [])

    def land_files(self, end: LSN, files: list[DataFile]) -> None:
        """Commit files of the stream, and the offset at which they end."""
        count = sum(file.row_count for file in files)
        self.writer.commit(files, self.writer._offset_commit(self.offset, end, transactions=1, changes=count))
        self.offset = end

    def insert(self, names: list[TableName], lsn: int, count: int = 1) -> None:
        """Land one transaction that inserts rows into tables."""
        rows = [
            change(name, self.versions[name].id, n * count + i, lsn, relation_id=self.names.index(name) + 1)
            for n, name in enumerate(names)
            for i in range(count)
        ]
        self.land(LSN(lsn + 8), rows)
