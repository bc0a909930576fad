"""Silver live as a mapping of its tables, whose changes are folded when their rows are first requested."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.bronze.change_rows import ChangeRows
from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.delta.pinned_lake import PinnedLake, PinnedTable
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.errors import DataFileError, LakeError, MissingTable
from pipeline.metadata.registry import Records, verified_through
from pipeline.protocol.lsn import LSN
from pipeline.silver.read.live_rows import fold_onto
from pipeline.silver.read.missing_tables import why_missing
from pipeline.silver.schema.swap import BufferedRecords
from pipeline.silver.write.range_plan import RangePlan
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from pipeline.units import format_count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Self

    from pipeline.silver.read.silver_rows import SilverRows
    from pipeline.silver.write.overlay import Overlay

ONLY_SPARK = "Use pgdelta.live(spark) with a Spark session, or run pgdelta apply and read as of its manifest."


class Reader(Protocol):
    """What reads silver live."""

    def read(self) -> Live:
        """Return silver as of the last commit of bronze; raise LakeError if there is none."""


@dataclass(slots=True)
class LiveTable:
    """A silver table, and the plan of its pending changes, None if there are none."""

    name: TableName
    table: PinnedTable
    plan: RangePlan | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    overlay: Overlay | None = None  # once the changes are folded without Spark
    frame: DataFrame | None = None  # once they are folded by Spark

    @property
    def version(self) -> int:
        """The version of the silver table to which the changes are added."""
        return self.table.version()

    @property
    def path(self) -> str:
        """The path of the silver table."""
        return self.table.path


class Live(Mapping[TableName, Any]):
    """Silver as of the last commit of bronze: a mapping of (schema, table) to its rows, an Arrow dataset.

    `refused` are the tables that cannot be shown at the LSN, each with the reason; iteration leaves them out.
    `silver[schema, table]` raises LakeError for such a table, and MissingTable, a KeyError too, for one that
    silver does not have.
    The changes of a table are folded when its rows are first requested.
    """

    def __init__(self, found: Found) -> None:
        self.lsn = found.end.lsn
        self.commit_time = found.commit_time
        self.refused = found.refused
        self._found = found

    def table(self, schema: str, table: str) -> LiveTable:
        """Return a table with its version and plan; raise LakeError if it is refused or not there."""
        name = TableName(schema, table)
        if name in self.refused:
            raise LakeError(self.refused[name])
        if name not in self._found.tables:
            known = (*self._found.tables, *self.refused)
            raise MissingTable(why_missing(self._found.lake, name, known, None))
        return self._found.tables[name]

    @cached_property
    def verified_through(self) -> Mapping[TableName, LSN]:
        """The newest LSN at which each table was found equal to its source, by prove or reconcile."""
        return verified_through(self._found.lake)

    def refresh(self) -> Self:
        """Return silver as of the commit that is the last one of bronze now."""
        found = self._found.reader.read()
        assert isinstance(found, type(self))
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._found.tables

    def __iter__(self) -> Iterator[TableName]:
        return iter(sorted(self._found.tables))

    def __len__(self) -> int:
        return len(self._found.tables)

    def __repr__(self) -> str:
        return f"<live silver at {self.lsn}: {format_count(len(self), 'table')}, {len(self.refused)} refused>"

    def __getitem__(self, name: TableName) -> Any:
        return self._rows(self.table(*name))

    def _rows(self, table: LiveTable) -> Any:
        return self._found.rows(table)


@dataclass(slots=True)
class Found:
    """What one read found, and what the fold of its tables needs."""

    reader: Reader
    lake: PinnedLake
    bronze: Bronze
    changes: PinnedTable  # of bronze
    writer: WriterSetting
    end: BronzeOffset
    commit_time: datetime | None
    records: Records
    change_rows: ChangeRows
    tables: dict[TableName, LiveTable] = field(default_factory=dict)
    refused: dict[TableName, str] = field(default_factory=dict)

    def rows(self, table: LiveTable) -> SilverRows:
        """Return the rows of a table without Spark; they are folded when they are first read."""
        from pipeline.silver.read.silver_rows import SilverRows

        local_path = table.table.local_path
        assert local_path is not None
        read = None if table.plan is None else lambda: self._folded(table)
        return SilverRows(local_path, table.table.snapshot(), read)

    def _folded(self, table: LiveTable) -> Overlay:
        overlay = self.overlay(table)
        if overlay is None:
            raise LakeError(
                f"The changes of table {table.name} after version {table.version} cannot be added without "
                f"Spark. {ONLY_SPARK}"
            )
        return overlay

    def overlay(self, table: LiveTable, *, may_load: bool = True) -> Overlay | None:
        """Return the folded changes of a table, None if it has none or only Spark can fold them.

        With `may_load` all rows of a small table with features that only Spark writes are read.
        """
        with table.lock:
            if table.plan is not None and table.overlay is None:
                records = buffered(self.records)
                try:
                    table.overlay = fold_onto(
                        table.table, table.plan, self.change_rows, records, table.name, may_load=may_load
                    )
                except DataFileError as error:
                    if not has_file(self.changes.snapshot(), error.path):
                        raise  # a file of silver
                    raise self._unread(table.name, error) from error
            return table.overlay

    def _unread(self, name: TableName, error: DataFileError) -> LakeError:
        """Return the error for a table whose changes are in a file of bronze that cannot be read."""
        if has_file(LakeTable(self.changes.path, self.lake.sessions).snapshot(), error.path):
            return LakeError(str(error))
        return LakeError(
            f"The changes of table {name} up to {self.end.lsn} are in bronze no longer: maintenance has "
            "removed their files since this read began. Call refresh(), or read again."
        )


def has_file(snapshot: Snapshot, path: str) -> bool:
    """Return whether a file is one of a version's."""
    name = PurePath(path).name
    return any(PurePath(each).name == name for each in snapshot.files)


def buffered(records: Records) -> BufferedRecords:
    """Return records that keep what a fold records in memory."""
    return BufferedRecords(records, discards_misfits=True)
