"""Observers of a run: lines and bars on stderr, metrics for Prometheus, a log of JSON lines, alerts,
lineage.

The jobs call `on_ingest` and `on_apply` with summaries that continue to change. An observer reads them and
never changes a run; what only some runs need, such as prometheus_client, is imported by those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import NOTICES, TRACES, PgdeltaError, describe_error, one_line
from pipeline.report.progress import CopyBoard
from pipeline.report.run_log import RunLog, StateChanges

if TYPE_CHECKING:
    from types import TracebackType

    from pipeline.config.config import Config
    from pipeline.progress import ApplySummary, IngestSummary
    from pipeline.report.alert_sender import AlertSender
    from pipeline.report.lineage_sender import LineageSender
    from pipeline.report.metrics import RunMetrics


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How the command line wants a run to be watched; `metrics` and `http` are each a host and a port."""

    trigger: str = "available-now"
    metrics: tuple[str, int] | None = None
    log: str = "text"
    json: bool = False
    http: tuple[str, int] | None = None


@contextmanager
def _notices_in(log: RunLog) -> Iterator[None]:
    """Log notices as JSON, and not as lines for people."""

    class Notices(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.on_notice(record.getMessage())

    before, handler = list(NOTICES.handlers), Notices()
    for each in before:
        NOTICES.removeHandler(each)
    NOTICES.addHandler(handler)
    try:
        yield
    finally:
        NOTICES.removeHandler(handler)
        for each in before:
            NOTICES.addHandler(each)


class Observers:
    """Forwards the summaries of a run to the observers that the command line requests.

    Without `--log json` these are people: they see the copies and, in a continuous run, alerts. Other runs
    report held and failed tables in their closing lines.
    """

    def __init__(self, config: Config, options: WatchOptions, command: str) -> None:
        self._config = config
        self._options = options
        self._command = command
        self._metrics: RunMetrics | None = None
        self._log = RunLog(config.pipeline, command) if options.log == "json" else None
        self._board: CopyBoard | None = None
        self._states = StateChanges()
        self._alerts: AlertSender | None = None
        self._lineage: LineageSender | None = None
        self._open = ExitStack()

    def __enter__(self) -> Observers:
        try:
            self._serve()
        except BaseException:
            self._open.close()
            raise
        if self._log is None:
            self._board = self._open.enter_context(CopyBoard(is_quiet=self._options.json))
        else:
            self._log.start(self._options.trigger)
            self._open.enter_context(_notices_in(self._log))
        is_continuous = self._options.trigger == "continuous"
        if self._config.alerts.webhook is not None:
            from pipeline.report.alert_sender import AlertSender

            self._alerts = AlertSender(self._config, self._command, is_continuous=is_continuous)
        if self._config.lineage.is_on:
            from pipeline.report.lineage_sender import LineageSender

            self._lineage = LineageSender(self._config, self._command, is_continuous=is_continuous)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._alerts is not None and (error is None or isinstance(error, Exception)):
            self._alerts.finish(None if error is None else describe_error(error))
        if self._lineage is not None:
            self._lineage.finish(error)
        self._open.close()
        if self._log is not None and error is not None:
            code = error.exit_code if isinstance(error, PgdeltaError) else 1
            self._log.end(code, describe_error(error))
            if not TRACES.isEnabledFor(logging.DEBUG):
                raise SystemExit(code)  # the log has the sentence already

    def on_ingest(self, summary: IngestSummary) -> None:
        """Forward what ingest reports."""
        if self._board is not None:
            self._board.update(summary)
        for each in (self._metrics, self._alerts, self._lineage, self._log):
            if each is not None:
                each.on_ingest(summary)

    def on_apply(self, summary: ApplySummary) -> None:
        """Forward what apply reports."""
        for each in (self._metrics, self._lineage, self._log):
            if each is not None:
                each.on_apply(summary)
        if self._board is not None and self._options.trigger == "continuous":
            for alert in self._states.update(summary.tables):
                self._board.print(one_line(alert.line))

    def end(self, exit_code: int) -> int:
        """Log the end of the run, and return its exit code."""
        if self._log is not None:
            self._log.end(exit_code)
        return exit_code

    def _serve(self) -> None:
        """Serve metrics and pages if the command line requests them."""
        if self._options.metrics is None and self._options.http is None:
            return
        from pipeline.postgres.replication.slot_status import WalEnd
        from pipeline.report.metrics import MetricsEndpoint, RunMetrics

        self._metrics = RunMetrics(self._config.pipeline)
        if self._options.metrics is not None:
            endpoint = MetricsEndpoint(*self._options.metrics, self._metrics.registry)
            self._open.callback(endpoint.close)
        if self._options.http is not None:
            from pipeline.report.web.serve import serve_pages

            self._open.enter_context(
                serve_pages(self._config, self._command, self._metrics, *self._options.http)
            )
        if self._command != "apply":
            source, alerts = self._config.source, self._config.alerts
            log_end = WalEnd(source.conninfo, source.slot, held_limit=alerts.held_wal_limit)
            self._open.callback(log_end.close)
            self._metrics.on_source(lambda: log_end.wal)
