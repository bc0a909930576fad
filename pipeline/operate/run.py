"""Run ingest and apply in one process: one after the other, or in parallel until a stop."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.apply import job as applying
from pipeline.config.config import Config
from pipeline.delta.locks import lock_apply
from pipeline.delta.table import Lake
from pipeline.ingest import job as ingesting
from pipeline.progress import ApplyProgress, ApplySummary, IngestProgress, IngestSummary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The summaries of both jobs."""

    ingest: IngestSummary
    apply: ApplySummary

    def lines(self) -> list[str]:
        return [*self.ingest.lines(), *self.apply.lines()]

    def as_json(self) -> dict[str, Any]:
        return {"ingest": self.ingest.as_json(), "apply": self.apply.as_json()}

    def exit_code(self, strict: bool) -> int:
        """Return the higher exit code of the two jobs."""
        return max(self.ingest.exit_code(strict), self.apply.exit_code(strict))


def run_both(
    config: Config,
    *,
    trigger: str = "available-now",
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
    ingest_progress: IngestProgress | None = None,
    apply_progress: ApplyProgress | None = None,
) -> RunSummary:
    """Capture and apply everything committed, or continue until `stop`; the first failure ends both jobs."""
    stop = stop or threading.Event()
    lake = Lake(config.storage, spark, application=f"pgdelta {config.pipeline}")

    def ingest() -> IngestSummary:
        try:
            return ingesting.run_ingest(
                config, trigger=trigger, stop=stop, spark=spark, progress=ingest_progress
            )
        except BaseException:
            stop.set()
            raise

    def apply() -> ApplySummary:
        try:
            return applying.run_apply(
                config, trigger=trigger, stop=stop, spark=spark, progress=apply_progress, is_alone=True
            )
        except BaseException:
            stop.set()
            raise

    with lock_apply(lake, config.pipeline, stop):
        if trigger == "available-now":
            captured = ingest()
            return RunSummary(captured, apply())
        with ThreadPoolExecutor(1, thread_name_prefix="ingest") as pool:
            capturing = pool.submit(ingest)
            applied = apply()
            return RunSummary(capturing.result(), applied)
