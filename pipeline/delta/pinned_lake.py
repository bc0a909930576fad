"""A lake whose silver tables stay at the version at which they were first read, while jobs commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.store.store import Location
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.table_log import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PinnedTable(LakeTable):
    """A table whose newest version is the one that was read first."""

    _pinned: Snapshot | None = None

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return a version, default the pinned one."""
        if version is not None:
            return super().snapshot(version)
        if self._pinned is None:
            self._pinned = super().snapshot()
        return self._pinned

    def name_files(self) -> None:
        """Read which files the pinned version has, which later commits may replace, on this machine."""
        if self.local_path is not None:
            len(self.snapshot().files)

    def in_session(self, spark: SparkProvider) -> PinnedTable:
        """Return the same version in another session."""
        found = PinnedTable(self.path, spark)
        found._pinned = self.snapshot()
        return found

    def frame(self, version: int | None = None) -> DataFrame:
        """Return the rows of a version, default the pinned one."""
        return super().frame(self.snapshot().version if version is None else version)


class PinnedLake(Lake):
    """A lake whose tables are pinned as far as they are found by path; the pipeline's own are not."""

    def __init__(self, location: Location, spark: SparkProvider) -> None:
        super().__init__(location, spark)
        self._tables: dict[str, PinnedTable] = {}

    def table_at(self, path: str) -> PinnedTable:
        """Return the pinned table at a path."""
        found = self._tables.get(path)
        if found is None:
            found = self._tables[path] = PinnedTable(path, self.sessions)
        return found
