"""The rows of a silver table that are compared with the source: without Spark, unless only Spark reads them.

Without Spark DuckDB reads them in this process as they come from the files, and keeps none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pipeline.delta.file_list import Add
from pipeline.delta.rows import READABLE_FEATURES, arrow_schema
from pipeline.delta.schema import TableSchema
from pipeline.delta.store.mirror import mirror_of
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot, data_path
from pipeline.engine import DUCKDB, SPARK
from pipeline.errors import LakeError
from pipeline.metadata.registry import RegisteredTable
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.modes import current_rows
from pipeline.silver.schema.foreign_commits import refuse_missing
from pipeline.silver.write.writer_choice import MAX_COMPARED_BYTES, WriterSetting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipeline.silver.write.overlay import Overlay


class FrameRows:
    """The rows of a frame, which Spark reads; queries name them as `source`."""

    engine = SPARK

    def __init__(self, frame: DataFrame, condition: str | None = None, reason: str = "") -> None:
        """Leave out rows for which a condition, SQL of Spark, is not true; `reason` is why Spark reads."""
        self.reason = reason
        self._frame = frame if condition is None else frame.where(condition)
        self.source = f"compared_{uuid4().hex}"  # others may compare in the same session

    def frame(self, query: str) -> DataFrame:
        """Return the result of a query."""
        session = self._frame.sparkSession
        self._frame.createOrReplaceTempView(self.source)
        try:
            return session.sql(query)
        finally:
            session.catalog.dropTempView(self.source)

    def query(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return [tuple(row) for row in self.frame(query).collect()]


class DatasetRows:
    """The rows of a version and an overlay, which DuckDB reads; queries name them as `source`.

    Rows are left out that the source does not have any more: those for which `condition`, SQL of DuckDB, is
    not true.
    """

    engine = DUCKDB

    def __init__(
        self, path: str, snapshot: Snapshot, registered: RegisteredTable, overlay: Overlay | None = None
    ) -> None:
        from pipeline.silver.read.silver_rows import SilverRows

        self.snapshot = snapshot
        self.registered = registered
        self.overlay = overlay
        self.condition = current_rows(registered, _names(snapshot), DUCKDB) or "true"
        self._path = path
        self._rows = SilverRows(path, snapshot, overlay)
        self.source = f"(SELECT * FROM compared WHERE {self.condition}) AS t"

    def of_files(self, files: Mapping[str, Add], overlay: Overlay | None = None) -> DatasetRows:
        """Return the rows of some files of the version, or of another overlay."""
        return DatasetRows(self._path, self.snapshot.with_files(files), self.registered, overlay)

    def require_file(self, add: Add) -> None:
        """Raise LakeError if a file of a folder is missing, or has another size than was written."""
        path = data_path(self._path, add["path"])
        if mirror_of(path) is None and not (os.path.exists(path) and os.path.getsize(path) == add["size"]):
            repair = self.registered.name.command("rebuild")
            raise LakeError(f"The file {path} of silver is missing or damaged. Run {repair}.")

    def query(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query; raise LakeError if a file is missing or damaged."""
        with closing(DuckSql()) as session:
            session.add("compared", self._rows)
            try:
                return session.rows(query)
            except Exception:
                if self._rows.failures:  # DuckDB raises an error of its own
                    raise self._rows.failures[0] from None
                raise


ComparedRows = FrameRows | DatasetRows


def rows_of(
    table: LakeTable, snapshot: Snapshot, registered: RegisteredTable, writer: WriterSetting
) -> ComparedRows:
    """Return the rows of a version, without those that the source does not have any more."""
    if reason := why_spark(table, snapshot, writer):
        return frame_rows(table.frame(snapshot.version), snapshot, registered, reason)
    return dataset_rows(table, snapshot, registered)


def frame_rows(frame: DataFrame, snapshot: Snapshot, registered: RegisteredTable, reason: str) -> FrameRows:
    """Return rows of a version that Spark reads, without those that the source does not have any more."""
    return FrameRows(frame, current_rows(registered, _names(snapshot), SPARK), reason)


def dataset_rows(
    table: LakeTable, snapshot: Snapshot, registered: RegisteredTable, overlay: Overlay | None = None
) -> DatasetRows:
    """Return rows of a version and an overlay, without those that the source does not have any more."""
    assert table.local_path is not None
    return DatasetRows(table.local_path, snapshot, registered, overlay)


def fields_of(snapshot: Snapshot) -> dict[str, tuple[str, str]]:
    """Return the columns of a version by physical name: (name, DDL); raise LakeError without a table."""
    refuse_missing(snapshot)
    return {f.physical_name: (f.name, f.ddl) for f in TableSchema.of_json(snapshot.schema_string).fields}


def _names(snapshot: Snapshot) -> dict[str, str]:
    return {physical: name for physical, (name, _) in fields_of(snapshot).items()}


def why_spark(table: LakeTable, snapshot: Snapshot, writer: WriterSetting) -> str | None:
    """Return why only Spark reads the rows of a version, None if this process does."""
    if writer == "spark":
        return "silver.writer is spark"
    if table.local_path is None:
        return "only Spark reads storage.root"
    if unknown := snapshot.feature_names() - READABLE_FEATURES:
        return f"the table has the feature {', '.join(sorted(unknown))}"
    try:
        arrow_schema(snapshot)
    except LakeError:
        return "it has columns of types that only Spark reads"
    files = snapshot.files.values()
    has_vectors = any(file.get("deletionVector") for file in files)
    # all its rows are read at once
    is_large = has_vectors and sum(int(file["size"]) for file in files) > MAX_COMPARED_BYTES
    return "it is large and has deletion vectors" if is_large else None
