"""What is told of a run while it goes on: lines on stderr, metrics by HTTP, a log of JSON lines."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pipeline.errors import PgdeltaError, describe_error, one_line
from pipeline.postgres.replication.wal_end import WalEnd
from pipeline.report.alerts import Alerts
from pipeline.report.metrics import RunMetrics
from pipeline.report.metrics_endpoint import MetricsEndpoint
from pipeline.report.progress import CopyBoard
from pipeline.report.run_log import RunLog

if TYPE_CHECKING:
    from types import TracebackType

    from pipeline.config.config import Config
    from pipeline.progress import ApplySummary, IngestSummary


class Observers:
    """Hands on what a run reports to whoever was asked for: `--metrics`, `--log`, or lines for people.

    Those are of copies, and of tables that a continuous run holds, that fail or go on again: the closing
    lines, which are all that other runs say of them, come too late there.
    """

    def __init__(self, config: Config, options: argparse.Namespace, command: str) -> None:
        self._options = options
        self._captures = command != "apply"
        self._conninfo = config.source.conninfo
        self._metrics = RunMetrics(config.pipeline)
        self._log = RunLog(config.pipeline, command) if options.log == "json" else None
        self._board: CopyBoard | None = None
        self._alerts = Alerts()
        self._open = ExitStack()

    def __enter__(self) -> Observers:
        if self._options.metrics:
            host, port = self._options.metrics
            endpoint = MetricsEndpoint(host, port, self._metrics.families)
            self._open.callback(endpoint.close)
            if self._captures:
                log_end = WalEnd(self._conninfo)
                self._open.callback(log_end.close)
                self._metrics.on_source(lambda: log_end.lsn)
        if self._log is None:
            self._board = self._open.enter_context(CopyBoard(is_quiet=self._options.json))
        else:
            self._log.start(self._options.trigger)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        if self._log is not None and error is not None:
            code = error.exit_code if isinstance(error, PgdeltaError) else 1
            self._log.end(code, describe_error(error))
            if not self._options.debug:
                raise SystemExit(code)  # its sentence is said already, and as JSON

    def on_ingest(self, summary: IngestSummary) -> None:
        """Hand on what ingest reports."""
        self._metrics.on_ingest(summary)
        if self._board is not None:
            self._board.update(summary)
        if self._log is not None:
            self._log.on_ingest(summary)

    def on_apply(self, summary: ApplySummary) -> None:
        """Hand on what apply reports."""
        self._metrics.on_apply(summary)
        if self._board is not None and self._options.trigger == "continuous":
            for trouble in self._alerts.update(summary.tables):
                self._board.print(one_line(trouble.line))
        if self._log is not None:
            self._log.on_apply(summary)

    def end(self, exit_code: int) -> int:
        """Say that the run ended with an exit code, and return it."""
        if self._log is not None:
            self._log.end(exit_code)
        return exit_code
