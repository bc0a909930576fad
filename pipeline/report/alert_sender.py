"""Send alerts during a job: a thread that finds them once a minute, or once at the end of a short run.

A job never waits for a receiver: the thread has its own readers, a failure is repeated with growing
intervals, and the end of a job waits for it `END_SECONDS` at most. What is recorded and not sent yet, the
next check or the next job sends.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from pipeline.config.config import Config
from pipeline.delta.sql import now
from pipeline.delta.table import Lake
from pipeline.errors import NOTICES, EndpointError, report_error
from pipeline.metadata.alerts import RecordedAlert, alert_table
from pipeline.progress import IngestSummary
from pipeline.report.alert_log import alert_of, is_due, record_found, record_sent, with_job
from pipeline.report.alert_rules import RULES, Alerts, find_alerts
from pipeline.report.alerts import read_facts
from pipeline.report.webhook import message, send
from pipeline.table_name import TableName

CHECK_SECONDS = 60.0
END_SECONDS = 8.0
_LONGEST_PAUSE = 900.0
_AT_ONCE = 50  # alerts in a message
_MOST = 500  # that a check sends
_END_PAUSES = (0.5, 1.0)  # between attempts at the end of a run

CopyFailures = Mapping[TableName | None, str]


class AlertSender:
    """Sends the alerts of one run; `command` is ingest, apply or run."""

    def __init__(
        self,
        config: Config,
        command: str,
        *,
        is_continuous: bool,
        check_seconds: float = CHECK_SECONDS,
        end_seconds: float = END_SECONDS,
    ) -> None:
        self._config = config
        self._command = command
        self._check_seconds = check_seconds
        self._end_seconds = end_seconds
        self._ingest: IngestSummary | None = None
        self._sender = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        application = f"pgdelta alerts {config.pipeline}"
        self._table = alert_table(Lake.for_writing(config.storage, application=application))
        self._pause = 0.0  # until the next attempt, after a failure
        self._retry_at = 0.0
        self._notice: str | None = None
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        if is_continuous:
            self._thread = self._start(self._run)

    def on_ingest(self, summary: IngestSummary) -> None:
        """Keep the summary, which continues to change."""
        self._ingest = summary

    def finish(self, failure: str | None) -> None:
        """Send what the end of the run brings: `failure` is the sentence of the error that ended it."""
        self._is_closing.set()
        deadline = time.monotonic() + self._end_seconds
        if self._thread is not None:
            self._thread.join(self._end_seconds)
            if self._thread.is_alive() or failure is None:
                return
        last = self._start(lambda: self._finish(failure, deadline))
        last.join(max(0.1, deadline - time.monotonic()))

    def check(self, failure: str | None = None) -> None:
        """Find, record and send alerts; raise EndpointError if the receiver does not accept one."""
        known = [alert_of(row).key for row in self._table.read() if row.ended_at is None]
        try:
            facts = read_facts(self._config, copy_failures=self._copy_failures(), known=known)
            alerts = find_alerts(facts)
        except Exception:
            if failure is None:
                raise
            alerts = _UNKNOWN._replace(pipeline=self._config.pipeline)
        if failure is None or "failed" in self._config.alerts.on:
            alerts = with_job(alerts, self._command, failure)
        time_now = now()
        rows = self._table.change(lambda before: record_found(before, alerts, self._sender, time_now, _MOST))
        due = [row for row in rows if is_due(row) and row.sender == self._sender]
        for start in range(0, len(due), _AT_ONCE):
            self._send(due[start : start + _AT_ONCE])

    def _send(self, rows: Sequence[RecordedAlert]) -> None:
        settings = self._config.alerts
        send(settings, message(self._config.pipeline, settings.format, rows))
        self._table.change(lambda before: record_sent(before, rows, now()))

    def _copy_failures(self) -> CopyFailures | None:
        summary = self._ingest
        if summary is None:
            return None
        found: dict[TableName | None, str] = {
            name: name.introduce(copy.failure, f"The copy of {name} failed: ")
            for name, copy in dict(summary.copies).items()
            if copy.failure is not None
        }
        if summary.copy_failure is not None:
            found[None] = f"No table can be copied: {summary.copy_failure}"
        return found

    def _run(self) -> None:
        while not self._is_closing.wait(self._check_seconds):
            if time.monotonic() >= self._retry_at:
                self._attempt(self.check)

    def _finish(self, failure: str | None, deadline: float) -> None:
        for pause in (*_END_PAUSES, None):
            if self._attempt(lambda: self.check(failure)) or pause is None:
                return
            if time.monotonic() + pause >= deadline:
                return
            time.sleep(pause)

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Return whether it worked; else say why once, and let the next attempt wait longer."""
        try:
            work()
        except Exception as error:
            sentence = str(error) if isinstance(error, EndpointError) else report_error(error)
            if sentence != self._notice:
                NOTICES.info("alerts: %s", sentence)
            self._notice = sentence
            self._pause = min(max(self._check_seconds, 2 * self._pause), _LONGEST_PAUSE)
            self._retry_at = time.monotonic() + self._pause
            return False
        self._notice, self._pause = None, 0.0
        return True

    @staticmethod
    def _start(work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name="alerts", daemon=True)
        thread.start()
        return thread


_UNKNOWN = Alerts("", (), {rule.name for rule in RULES})
