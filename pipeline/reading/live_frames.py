"""Silver live as frames of a Spark session.

The changes of a table are folded without a Spark job where that is possible, and by Spark otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from pipeline.bronze.log import between
from pipeline.delta.spark.frames import in_session
from pipeline.errors import LakeError
from pipeline.reading.live_tables import Live, LiveTable, buffered
from pipeline.silver.fold.spark_sql import SparkSql
from pipeline.silver.read.as_of import create_views
from pipeline.silver.read.frame_target import FrameTarget
from pipeline.silver.read.live_rows import pending_writes
from pipeline.silver.read.overlay_frame import can_show, frame_of
from pipeline.silver.write.step_writer import StepWriter
from pipeline.table_name import TableName


class LiveFrames(Live):
    """Silver as of the last commit of bronze: a mapping of (schema, table) to a frame of its rows."""

    def create_views(
        self,
        tables: Collection[TableName] | None = None,
        *,
        name: Callable[[str, str], str] = lambda schema, table: f"{schema}__{table}",
    ) -> dict[str, TableName]:
        """Create temporary views of tables, or of all that are not refused; return their names.

        A view is named `<schema>__<table>`, or as `name` returns. Existing views are replaced, those of
        tables that are refused are dropped. Raises LakeError, and creates no view, if two views would have
        one name or a table cannot be read.
        """
        return create_views(self, tables, self.refused, self._found.lake, name)

    def _rows(self, table: LiveTable) -> Any:
        try:
            return self._frame(table)
        except PySparkException as error:
            raise LakeError(f"Table {table.name} cannot be read. {type(error).__name__}") from error

    def _frame(self, table: LiveTable) -> DataFrame:
        found = self._found
        if table.plan is None:
            return table.table.frame()
        if table.table.local_path is not None and found.writer != "spark":
            overlay = found.overlay(table, may_load=False)
            if overlay is not None and overlay.is_empty:
                return table.table.frame()
            if overlay is not None and can_show(table.table, overlay):
                return frame_of(table.table, overlay)
        with table.lock:
            if table.frame is None:
                table.frame = in_session(self._fold(table), found.lake.spark)
            return table.frame

    def _fold(self, table: LiveTable) -> DataFrame:
        """Return the rows of a table with its changes, folded by Spark."""
        plan, found = table.plan, self._found
        assert plan is not None
        sessions = found.lake.sessions.new()
        spark = sessions.session
        bronze = found.bronze.in_session(sessions)
        bronze.changes = found.changes.in_session(sessions)
        frame = table.table.in_session(sessions).frame()
        for write in pending_writes(table.table, plan):
            session = SparkSql(spark)
            step = write.step
            try:
                changes = bronze.table_changes(table.name, plan.start, plan.end_lsn)
                is_log = write.fold.mode == "append"
                session.add("changes", between(changes, step.start, step.end, is_log=is_log))
                count = plan.changes
                target = FrameTarget(session, frame, count)
                StepWriter(target, buffered(found.records), table.name).write(write)
                frame = target.frame
            finally:
                session.clear()
        return frame
