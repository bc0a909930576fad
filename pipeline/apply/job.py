"""The apply job: batches as bronze grows.

Under `spark-submit`, where a JVM runs already, a Structured Streaming query over bronze triggers them: a
micro-batch only signals that bronze has grown. Elsewhere this process looks at bronze itself, and Spark
starts when a table needs it. The applier reads the input from bronze itself, for each table from the offset
in the table's own log up to the LSN to which bronze is complete. A table that failed, was held or joined
later therefore catches up by itself, a lost checkpoint costs nothing, and batches end on transaction
boundaries whatever a micro-batch contains.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.apply.applier import Applier
from pipeline.apply.catalogs import Catalogs
from pipeline.apply.first_batches import LOOK_SECONDS, FirstBatches
from pipeline.apply.status_writer import StatusWriter, note_comparisons
from pipeline.config.config import Config
from pipeline.delta.filesystem import remove_folder
from pipeline.delta.locks import lock_apply
from pipeline.delta.spark.launcher import is_launched_by_spark
from pipeline.delta.store.store import WITHOUT_SPARK, parts_of
from pipeline.maintenance.background import JobMaintenance
from pipeline.maintenance.job_tables import DueTable, own_candidates, silver_candidates
from pipeline.progress import ApplyProgress, ApplySummary, StreamProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_apply(
    config: Config,
    *,
    trigger: str = "available-now",
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
    progress: ApplyProgress | None = None,
    is_alone: bool = False,
    records_status: bool = True,
    starts_query: bool | None = None,
) -> ApplySummary:
    """Apply all that bronze holds at the start or, with the trigger `continuous`, continue until `stop`.

    `is_alone` means that the caller holds the lock of apply. With `records_status`, the state of the tables
    is written to `_pgdelta/status` once a minute and at the end. Silver and `_pgdelta` are maintained while a
    continuous run goes on, and at the end of another one. `starts_query` says whether batches are triggered
    by Structured Streaming, by default under `spark-submit`; never where Spark has no client for the lake's
    store and writes nothing.
    """
    stop = stop or threading.Event()

    def report(summary: ApplySummary) -> None:
        catalogs.update()
        if progress is not None:
            progress(summary)

    applier = Applier(spark, config, report)
    catalogs = Catalogs(config, applier, compares_at_start=trigger == "continuous")
    applier.bronze.require_tables()
    if trigger == "available-now" and not applier.bronze.changes.exists():
        return applier.summary
    status = StatusWriter(applier, config) if records_status else None
    starts_query = is_launched_by_spark() if starts_query is None else starts_query
    has_query = starts_query and _needs_spark(config)
    run = _ApplyRun(config, applier, catalogs, status, stop, trigger == "continuous")
    with nullcontext() if is_alone else lock_apply(applier.lake, config.pipeline, stop), closing(applier):
        maintenance = _maintenance(applier, config, stop, progress)
        if trigger == "continuous":
            with maintenance.in_background():
                return run.apply(has_query=has_query)
        summary = run.apply(has_query=has_query)
        maintenance.run()
        return summary


def _maintenance(
    applier: Applier, config: Config, stop: threading.Event, progress: ApplyProgress | None
) -> JobMaintenance:
    lake, summary = applier.lake, applier.summary

    def candidates() -> Iterator[DueTable]:
        manifest = applier.manifest
        yield from own_candidates(lake, "_pgdelta")
        yield from silver_candidates(lake, manifest.entries if manifest is not None else ())

    def report() -> None:
        if progress is not None:
            progress(summary)

    return JobMaintenance(
        config, lake, candidates, summary.maintenance, stop=stop, gate=applier.tables.gate, report=report
    )


def _needs_spark(config: Config) -> bool:
    """Return whether the query runs: not where Spark has no client for the store, and writes nothing."""
    return config.silver.writer != "native" or parts_of(config.storage.root)[0] not in WITHOUT_SPARK


@dataclass(frozen=True, slots=True)
class _ApplyRun:
    """What a run of the job that holds the lock works with."""

    config: Config
    applier: Applier
    catalogs: Catalogs
    status: StatusWriter | None
    stop: threading.Event
    is_continuous: bool

    def apply(self, *, has_query: bool) -> ApplySummary:
        """Apply what bronze holds, or until `stop`, triggered by Structured Streaming if it has a query."""
        applier, stop = self.applier, self.stop
        if self.is_continuous:
            applier.run_continuously()
        checkpoint = applier.lake.path("_pgdelta", "checkpoints", "apply")
        failure: Exception | None = None
        with FirstBatches(applier, goes_on=self.is_continuous) as first:
            if self.is_continuous:
                if has_query:
                    has_query = self._wait_for_bronze()
                else:
                    self._keep_up()
                    first.end()
                    if stop.is_set():
                        applier.close()
            else:
                # Without work there is nothing to start Spark for.
                has_query = has_query and first.wait_for_work()
            if has_query:
                failure = self._follow(checkpoint, first)
                if failure is not None and applier.error is None and not stop.is_set():
                    # The checkpoint is damaged, or names a version that Delta removed. Only the trigger
                    # depends on it.
                    remove_folder(applier.lake.sessions, checkpoint)
                    failure = self._follow(checkpoint, first)
        if applier.error is not None:
            raise applier.error
        if failure is not None and not stop.is_set():
            raise failure
        if not self.is_continuous and not stop.is_set():
            applier.apply_rest()
        if self.status is not None:
            self.status.write()
        else:
            note_comparisons(applier.summary, applier.bronze, applier.records, self.config)
        self.catalogs.finish(stop)
        return applier.summary

    def _keep_up(self) -> None:
        """Do what a run without a query does while its first batches go on, until `stop` is set."""
        while self.applier.error is None and not self.stop.wait(1):
            self._do_what_is_due()

    def _do_what_is_due(self) -> None:
        self.applier.retry_when_due()
        self.catalogs.update()
        if self.status is not None:
            self.status.write_when_due()

    def _wait_for_bronze(self) -> bool:
        """Start Spark, and return True when there is a bronze table, False after a stop."""
        _ = self.applier.lake.spark
        while not self.applier.bronze.changes.exists():
            if self.stop.wait(LOOK_SECONDS):
                return False
        return True

    def _follow(self, checkpoint: str, first: FirstBatches) -> Exception | None:
        """Apply as bronze grows, until the query ends or `stop`; return the error that ended the query."""
        from pyspark.errors import StreamingQueryException

        applier, stop, changes = self.applier, self.stop, self.applier.bronze.changes
        stream = applier.lake.spark.readStream.format("delta").option("skipChangeCommits", "true")
        # a batch is only a trigger: a new query needs no list of the files that bronze has by now
        stream = stream.option("startingVersion", changes.version())
        signal = stream.load(changes.path).where("false")  # apply reads bronze itself
        writer = signal.writeStream.foreachBatch(applier.apply_batch)
        if self.is_continuous:
            writer = writer.trigger(processingTime="1 second")
        else:
            writer = writer.trigger(availableNow=True)
        try:
            query = writer.option("checkpointLocation", checkpoint).start()
        except Exception as error:  # the checkpoint's metadata is read here already
            return error
        while query.isActive and not stop.is_set() and applier.error is None:
            with suppress(StreamingQueryException):  # query.exception() returns it below
                query.awaitTermination(1)
            if (progress := query.lastProgress) is not None:
                applier.summary.stream = StreamProgress.of(progress)
                first.end()
            if self.is_continuous:
                self._do_what_is_due()
        first.end()
        if stop.is_set():
            applier.close()
        query.stop()
        return query.exception()
