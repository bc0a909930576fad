"""A run's log as JSON, one object a line: what began, was committed, applied, held, failed, and how it ended.

No row's values and nothing of the connection: positions, counts, names and sentences only.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pipeline import __version__
from pipeline.delta.timestamps import utc_text
from pipeline.report.alerts import Alerts
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pipeline.progress import ApplySummary, IngestSummary


class RunLog:
    """Writes a line for each event of one run, in whatever thread it happens."""

    def __init__(self, pipeline: str, command: str, write: Callable[[str], object] | None = None) -> None:
        self._pipeline = pipeline
        self._command = command
        self._write = write or _write_stderr
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._commits = self._transactions = self._changes = self._passes = 0
        self._applied: dict[TableName, int] = {}
        self._copies: dict[TableName, str | None] = {}
        self._all_copies: str | None = None  # why none goes on
        self._alerts = Alerts()

    def start(self, trigger: str) -> None:
        """Log that the run begins."""
        with self._lock:
            self._log("start", trigger=trigger, version=__version__)

    def on_ingest(self, summary: IngestSummary) -> None:
        """Log what is in bronze since the last time: one commit, and copies that ended."""
        with self._lock:
            self._log_copies(summary)
            if summary.commits == self._commits:
                return
            self._log(
                "commit",
                position=str(summary.captured_offset),
                transactions=summary.transactions - self._transactions,
                changes=summary.changes - self._changes,
                commit_time=utc_text(summary.commit_time),
            )
            self._commits, self._transactions = summary.commits, summary.transactions
            self._changes = summary.changes

    def on_apply(self, summary: ApplySummary) -> None:
        """Log a pass, and tables that are held, failed or go on again."""
        with self._lock:
            if summary.batches == self._passes:
                return
            self._passes = summary.batches
            counts = {name: state.changes for name, state in summary.tables.items()}
            changed = {name: count - self._applied.get(name, 0) for name, count in counts.items()}
            self._applied = counts
            self._log(
                "pass",
                position=str(summary.applied_offset),
                changes=sum(changed.values()),
                tables=sum(count > 0 for count in changed.values()),
                seconds=round(summary.batch_seconds, 3),
                commit_time=utc_text(summary.commit_time),
            )
            for kind, name, applied, sentence in self._alerts.update(summary.tables):
                self._log(kind, schema=name[0], table=name[1], applied=str(applied), sentence=sentence)

    def end(self, exit_code: int, sentence: str | None = None) -> None:
        """Log how the run ended; a failed one says why."""
        with self._lock:
            seconds = round(time.monotonic() - self._began, 3)
            self._log("end", exit_code=exit_code, seconds=seconds, sentence=sentence)

    def _log_copies(self, summary: IngestSummary) -> None:
        if summary.copy_failure not in (None, self._all_copies):
            self._log("copies failed", sentence=summary.copy_failure)
            self._all_copies = summary.copy_failure
        for name, copy in sorted(summary.copies.items()):
            state = copy.failure or ("" if copy.is_complete else None)
            if state is not None and self._copies.get(name) != state:
                event = "copy failed" if state else "copied"
                facts = {"rows": copy.rows_landed, "seconds": round(copy.seconds, 3)}
                self._log(event, schema=name[0], table=name[1], **facts, sentence=copy.failure)
                self._all_copies = None
            self._copies[name] = state

    def _log(self, event: str, **facts: object) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        known = {name: fact for name, fact in facts.items() if fact is not None}
        line = {"time": now, "event": event, "pipeline": self._pipeline, "command": self._command, **known}
        # stderr may be a pipe that nobody reads any more
        with contextlib.suppress(OSError, ValueError):
            self._write(json.dumps(line))


def _write_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
