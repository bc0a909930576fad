"""The log of a run as JSON, one object a line, with a line for each table that is held, fails or resumes.

A separate `logging.Logger`, which no configuration of the process changes, writes to stderr through
`JsonFormatter`. `StateChanges` reports each change of a table's state once, from the summary of apply. Lines
contain LSNs, counts, names and sentences, never a row's values or the connection.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Literal, NamedTuple, TextIO

from pipeline import __version__
from pipeline.delta.sql import utc_text
from pipeline.progress import ApplySummary, IngestSummary, MaintenanceProgress, TableState
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: `time`, `event` (the message), common fields and its own."""

    def __init__(self, **common: str) -> None:
        super().__init__()
        self._common = common

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; a field that is None is left out."""
        moment = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        fields: dict[str, object] = getattr(record, "fields", {})
        known = {name: value for name, value in fields.items() if value is not None}
        time = moment.replace("+00:00", "Z")
        return json.dumps({"time": time, "event": record.getMessage(), **self._common, **known})


class _LineHandler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Drop a line that cannot be written: the reader of the pipe may be gone, and the run continues."""


class RunLog:
    """Logs the events of one run; safe to use from any thread."""

    def __init__(self, pipeline: str, command: str, stream: TextIO | None = None) -> None:
        handler = _LineHandler(sys.stderr if stream is None else stream)
        handler.setFormatter(JsonFormatter(pipeline=pipeline, command=command))
        self._logger = logging.Logger("pgdelta.run", logging.INFO)
        self._logger.addHandler(handler)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._commits = self._transactions = self._changes = self._batches = 0
        self._applied: dict[TableName, int] = {}
        self._copies: dict[TableName, str | None] = {}
        self._copy_failure: str | None = None  # of all tables
        self._published = 0
        self._unpublished: Mapping[TableName, str] = {}
        self._partial: Mapping[TableName, str] = {}
        self._states = StateChanges()
        self._maintained_by: dict[int, MaintenanceProgress] = {}  # by the id of what a job counts
        self._maintenance_failures: dict[str, set[str]] = {}

    def start(self, trigger: str) -> None:
        """Log the start of the run."""
        with self._lock:
            self._log("start", trigger=trigger, version=__version__)

    def on_notice(self, sentence: str) -> None:
        """Log what the run waits for."""
        with self._lock:
            self._log("waiting", sentence=sentence)

    def on_ingest(self, summary: IngestSummary) -> None:
        """Log what bronze gained since the last call: a commit, and copies that ended."""
        with self._lock:
            self._log_publication(summary)
            self._log_copies(summary)
            self._log_maintenance(summary.maintenance)
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
        """Log a batch, and tables that are held, failed or resumed."""
        with self._lock:
            self._log_maintenance(summary.maintenance)
            if summary.batches == self._batches:
                return
            self._batches = summary.batches
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
            for kind, name, applied, sentence in self._states.update(summary.tables):
                level = logging.INFO if kind == "resumed" else logging.WARNING
                self._log(
                    kind,
                    level,
                    **name._asdict(),
                    applied=str(applied),
                    sentence=sentence,
                )

    def end(self, exit_code: int, sentence: str | None = None) -> None:
        """Log the end of the run, and why it failed."""
        with self._lock:
            seconds = round(time.monotonic() - self._began, 3)
            level = logging.ERROR if exit_code else logging.INFO
            self._log("end", level, exit_code=exit_code, seconds=seconds, sentence=sentence)

    def _log_publication(self, summary: IngestSummary) -> None:
        """Log tables that were published since the last call, and that are not published, once a reason."""
        published = summary.published[self._published :]
        unpublished = {**(summary.unpublished or {}), **summary.unfollowed}
        for name in published:
            self._log("published", **name._asdict())
        for name, sentence in sorted(unpublished.items()):
            if self._unpublished.get(name) != sentence:
                self._log("unpublished", logging.WARNING, **name._asdict(), sentence=sentence)
        for name, sentence in sorted(summary.partial.items()):
            if self._partial.get(name) != sentence:
                self._log("partial", **name._asdict(), sentence=sentence)
        self._partial = summary.partial
        self._published += len(published)
        self._unpublished = unpublished

    def _log_copies(self, summary: IngestSummary) -> None:
        if summary.copy_failure not in (None, self._copy_failure):
            self._log("copies failed", logging.WARNING, sentence=summary.copy_failure)
            self._copy_failure = summary.copy_failure
        for name, copy in sorted(summary.copies.items()):
            state = copy.failure or ("" if copy.is_complete else None)
            if state is not None and self._copies.get(name) != state:
                self._log(
                    "copy failed" if state else "copied",
                    logging.WARNING if state else logging.INFO,
                    **name._asdict(),
                    rows=copy.rows_landed,
                    seconds=round(copy.seconds, 3),
                    sentence=copy.failure,
                )
                self._copy_failure = None
            self._copies[name] = state

    def _log_maintenance(self, progress: MaintenanceProgress) -> None:
        """Log what was maintained since the last call, and a failure once for each reason."""
        for name, sentence in sorted(dict(progress.failures).items()):
            known = self._maintenance_failures.setdefault(name, set())
            if sentence not in known:
                known.add(sentence)
                self._log("maintenance failed", logging.WARNING, path=name, sentence=sentence)
        done = self._maintained_by.get(id(progress), MaintenanceProgress())
        if progress.tables == done.tables:
            return
        self._log(
            "maintained",
            tables=progress.tables - done.tables,
            merged_files=progress.merged - done.merged,
            removed_files=progress.removed_files - done.removed_files,
            removed_log_files=progress.removed_log_files - done.removed_log_files,
        )
        self._maintained_by[id(progress)] = replace(progress)

    def _log(self, event: str, level: int = logging.INFO, **fields: object) -> None:
        self._logger.log(level, event, extra={"fields": fields})


Kind = Literal["held", "failed", "resumed"]


class StateChange(NamedTuple):
    """A table's change of state, the LSN that it is applied up to, and why it is held or failed."""

    kind: Kind
    name: TableName
    applied: LSN
    sentence: str | None = None

    @property
    def line(self) -> str:
        """The change for people; the sentence of a held table names it."""
        match self.kind:
            case "held":
                return f"held: {self.sentence}"
            case "failed":
                return f"failed: {self.name.introduce(self.sentence or '', f'{self.name}: ')}"
        return f"resumed: {self.name}"


class StateChanges:
    """Remembers the last change of each table."""

    def __init__(self) -> None:
        self._last: dict[TableName, tuple[Kind, str]] = {}

    def update(self, tables: Mapping[TableName, TableState]) -> list[StateChange]:
        """Return the changes that are new since the last call, by table."""
        alerts = []
        for name, state in sorted(tables.items()):
            kind: Kind = "failed" if state.failure else "held"
            sentence = state.failure or state.held
            if sentence and (kind, sentence) != self._last.get(name):
                self._last[name] = kind, sentence
                alerts.append(StateChange(kind, name, state.applied, sentence))
            elif not sentence and self._last.pop(name, None) is not None:
                alerts.append(StateChange("resumed", name, state.applied))
        return alerts
