"""Read all silver tables as of the last commit of bronze, all at one LSN, without a write.

Each table is read at its newest version, without the rows that later changes of bronze replaced, and with
the rows that they leave. The decision, the plan and the fold of a table are those of the next apply. What
apply would not do now is refused by name.

The versions of silver are pinned before the end of bronze is read. So no table is ahead of that end, and each
has the changes that follow its own offset.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

from pipeline.apply.planner import Planner, TablePlan
from pipeline.bronze.change_rows import ChangeRows
from pipeline.bronze.log import Bronze
from pipeline.bronze.table_input import InputStart
from pipeline.config.config import Config
from pipeline.config.load import load_config
from pipeline.delta.pinned_lake import PinnedLake, PinnedTable
from pipeline.delta.spark.provider import NoSpark
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError, LakeError, report_error
from pipeline.metadata.manifests import Manifest, Manifests
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.protocol.lsn import INVALID
from pipeline.reading.live_tables import ONLY_SPARK, Found, Live, LiveTable, buffered
from pipeline.silver.decision import Step
from pipeline.silver.lake_facts import why_detached
from pipeline.silver.read.live_rows import pending_writes, refuse_plan
from pipeline.silver.schema.foreign_commits import refuse_foreign_commits, refuse_removed_columns
from pipeline.silver.write.batch_writer import BatchWriter
from pipeline.silver.write.native_session import NativeWriting
from pipeline.silver.write.range_plan import RangePlan, WriteResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS = 20  # while apply registers tables or columns


class LiveReader:
    """Reads silver live, again and again; what it knows of bronze is kept between two reads."""

    def __init__(
        self, config: Config, spark: SparkSession | None = None, show: Callable[[Found], Live] = Live
    ) -> None:
        """Read with a session, or without Spark; `show` makes a result of what was found."""
        self._config = config
        no_spark = NoSpark(f"Only Spark can read this. {ONLY_SPARK}")
        self._lake = Lake(config.storage, spark or no_spark)
        if spark is None and self._lake.working_root is None:
            raise LakeError(
                f"The lake {self._lake.root} is on storage that only Spark can read. Use pgdelta.live(spark)."
            )
        self._bronze = Bronze(self._lake, config.pipeline)
        self._show = show
        self._lock = threading.Lock()

    def read(self) -> Live:
        """Return silver as of the last commit of bronze; raise LakeError if there is none."""
        registry = self._lake.table("_pgdelta", "tables")
        with self._lock:
            for _ in range(_ATTEMPTS):
                version = registry.version()
                found = self._find()
                # which column is which follows from the registry as it was when versions were pinned
                if registry.version() == version:
                    return self._show(found)
        raise LakeError("apply changes the columns of silver tables again and again. Read again.")

    def _find(self) -> Found:
        config, bronze = self._config, self._bronze
        lake = PinnedLake(config.storage, self._lake.sessions)
        bronze.lake = lake
        records = Records(lake)
        manifest = Manifests(lake).last() or Manifest(INVALID)
        planner = Planner(config, bronze, records)
        registered = records.tables.read()
        for name in registered:
            if config.rule_for(name) is not None:
                lake.table_at(planner.path(name)).snapshot()
        changes = bronze.changes = PinnedTable(bronze.changes.path, lake.sessions)
        end = bronze.require_offset()
        plan = planner.plan(end, manifest, None, is_whole=True, has_news=True)
        if plan is None:
            raise LakeError(f"Bronze ends at {end.lsn}, before the newest manifest. Run pgdelta audit.")
        bronze = copy(bronze)  # the next read pins other versions
        rows = ChangeRows(bronze)
        rows.begin_batch(manifest.lsn)
        writer = config.silver.writer
        found = Found(self, lake, bronze, changes, writer, end, plan.commit_time, records, rows)
        for name, table in plan.tables.items():
            try:
                entry = manifest.by_name.get(name)
                since = entry.version if entry else -1
                shown = self._plan(found, table, planner, registered.get(name), since)
                shown.table.name_files()
                found.tables[name] = shown
            except Exception as error:  # one table stops no other
                found.refused[name] = report_error(error)
        return found

    def _plan(
        self,
        found: Found,
        planned: TablePlan,
        planner: Planner,
        registered: RegisteredTable | None,
        since: int,
    ) -> LiveTable:
        """Return a table with the plan of its changes; raise LakeError if it is refused."""
        name, facts = planned.facts.name, planned.facts
        if reason := why_detached(self._config, found.bronze.copies.read(), name, found.end):
            raise LakeError(f"Table {name} is detached: its rows are old. {reason}")
        if planned.decision.sentence is not None:
            raise LakeError(planned.decision.sentence)
        table = found.lake.table_at(planner.path(name))
        if planned.step not in (Step.SKIP, Step.APPLY):
            raise LakeError(
                f"Table {name} cannot be read at {found.end.lsn}: the next step is to {planned.step.value}. "
                "Run pgdelta apply, then read again."
            )
        if registered is None or facts.offset == INVALID or not table.exists():
            raise LakeError(f"Table {name} has no silver table yet. Run pgdelta apply.")
        if since >= 0:
            refuse_foreign_commits(table, name, since)
        refuse_removed_columns(table, name, registered)
        if planned.step is Step.SKIP:
            return LiveTable(name, table)
        rule = self._config.rule_for(name)
        assert rule is not None
        writer = BatchWriter(
            table,
            found.bronze,
            buffered(found.records),
            name,
            rule,
            _no_rebuild,
            metadata_columns=self._config.silver.metadata_columns,
            native=NativeWriting("auto", found.change_rows),
        )
        surveys = [each.survey for each in planned.surveys]
        start = InputStart(facts.offset)
        plan = writer.plan(surveys, planner.relations, registered, start, found.end.lsn)
        refuse_plan(name, plan)
        return LiveTable(name, table, plan if pending_writes(table, plan) else None)


def _no_rebuild(plan: RangePlan) -> WriteResult:
    raise AssertionError(f"a live read rebuilds nothing up to {plan.end_lsn}")


def live(spark: SparkSession | None = None, config: str | None = None) -> Live:
    """Return silver as of the last commit of bronze: frames of a session, without one Arrow datasets.

    `config` is the path of the pipeline's YAML file, by default that in PGDELTA_CONFIG. Raises LakeError if
    bronze is empty, ConfigError if the file is not valid.
    """
    path = config or os.environ.get("PGDELTA_CONFIG")
    if not path:
        raise ConfigError("No configuration is given. Pass config, or set PGDELTA_CONFIG to the YAML file.")
    return open_live(load_config(path), spark).read()


def open_live(config: Config, spark: SparkSession | None = None) -> LiveReader:
    """Return what reads silver live with a session, or without Spark."""
    if spark is None:
        return LiveReader(config)
    if not hasattr(spark, "_jsparkSession"):
        raise LakeError(
            "live reads Delta's log in the JVM of the session, and a Spark Connect session has none. Read "
            "without a session, or start one with a JVM."
        )
    from pipeline.reading.live_frames import LiveFrames

    return LiveReader(config, spark, LiveFrames)
