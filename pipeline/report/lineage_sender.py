"""Send the OpenLineage events of a run: when it starts and ends, and now and then while it goes on.

A thread of its own reads the lake and sends, so a job never waits for a receiver; the end of a run waits
`END_SECONDS` at most. An event that was not accepted is lost, and one line says so.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from datetime import datetime, timezone
from typing import Any

from pipeline.config.config import Config
from pipeline.delta.spark.provider import NoSpark
from pipeline.delta.table import Lake
from pipeline.errors import NOTICES, EndpointError, describe_error, report_error
from pipeline.metadata.registry import TableRegistry
from pipeline.progress import ApplySummary, IngestSummary
from pipeline.report.lineage import LineageJob, SourceServer, lake_dataset, position, written
from pipeline.report.web.facts import type_name
from pipeline.report.webhook import post
from pipeline.table_name import TableName

END_SECONDS = 8.0


class LineageSender:
    """Sends the events of one run; `command` is ingest, apply or run, which is both jobs."""

    def __init__(self, config: Config, command: str, *, is_continuous: bool) -> None:
        self._config = config
        self._is_continuous = is_continuous
        namespace, names = config.lineage.namespace, ("ingest", "apply") if command == "run" else (command,)
        self._jobs = {
            name: LineageJob(namespace, f"{config.pipeline}.{name}", str(uuid.uuid4())) for name in names
        }
        self._source = SourceServer.of(config.source.conninfo, os.environ)
        self._lake = Lake(config.storage, NoSpark("Lineage is read without Spark."))
        self._ingest: IngestSummary | None = None
        self._apply: ApplySummary | None = None
        self._sent: dict[str, str] = {}  # the position of the newest event of each job
        self._notice: str | None = None
        self._error: BaseException | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgdelta-lineage", daemon=True)
        self._thread.start()

    def on_ingest(self, summary: IngestSummary) -> None:
        """Keep the summary, which continues to change."""
        self._ingest = summary

    def on_apply(self, summary: ApplySummary) -> None:
        """Keep the summary, which continues to change."""
        self._apply = summary

    def finish(self, error: BaseException | None) -> None:
        """Send the end of the run, which an error may have brought, and wait for it for some seconds."""
        self._error = error
        self._is_closing.set()
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        for name in self._jobs:
            self._attempt(name, "START")
        while not self._is_closing.wait(self._config.lineage.interval if self._is_continuous else None):
            for name in self._jobs:
                self._attempt(name, "RUNNING")
        for name in self._jobs:
            self._attempt(name, "END")

    def _attempt(self, name: str, kind: str) -> None:
        """Send an event of a job; say once why that is not possible."""
        try:
            event = self._event(name, kind)
            if event is not None:
                self._send(event)
                self._notice = None
        except Exception as error:
            sentence = str(error) if isinstance(error, EndpointError) else report_error(error)
            if sentence != self._notice:
                NOTICES.info("lineage: %s", sentence)
            self._notice = sentence

    def _event(self, name: str, kind: str) -> dict[str, Any] | None:
        """Return the next event of a job, None if it has nothing to say while it goes on."""
        job, now = self._jobs[name], datetime.now(timezone.utc)
        if kind == "START":
            return job.event(kind, now, is_continuous=self._is_continuous)
        found = self._ingested() if name == "ingest" else self._applied()
        at = (found.get("position") or {}).get("lsn", "")
        if kind == "RUNNING" and at == self._sent.get(name, ""):
            return None
        self._sent[name] = at
        failure = None
        if kind == "END":
            failure = self._failure(name)
            kind = "COMPLETE" if failure is None else "FAIL"
            if self._error is not None and not isinstance(self._error, Exception):
                kind, failure = "ABORT", None
        return job.event(kind, now, **found, failure=failure, is_continuous=self._is_continuous)

    def _failure(self, name: str) -> str | None:
        """Return why a job failed, without values of rows."""
        if self._error is not None:
            return describe_error(self._error)
        summary = self._ingest if name == "ingest" else self._apply
        return "; ".join(summary.lines()) if summary is not None and summary.exit_code(False) else None

    def _ingested(self) -> dict[str, Any]:
        summary = self._ingest
        if summary is None:
            return {}
        relations, changes = self._lake.table("bronze", "relations"), self._lake.table("bronze", "changes")
        if not (changes.exists() and relations.exists()):
            return {}
        rows = relations.rows().to_pylist()
        at = position(summary.captured_offset, summary.commit_time)
        copied = sum(copy.rows_landed for copy in dict(summary.copies).values())
        outputs = [written(changes.path, changes.schema(), summary.changes + copied, at)]
        inputs = self._sources({TableName(row["schema_name"], row["table_name"]) for row in rows}, rows)
        return {"position": at, "inputs": inputs, "outputs": outputs}

    def _applied(self) -> dict[str, Any]:
        summary = self._apply
        if summary is None:
            return {}
        registered = TableRegistry(self._lake).read()
        at = position(summary.applied_offset, summary.commit_time)
        outputs, names = [], set[TableName]()
        for name, state in sorted(dict(summary.tables).items()):
            if not state.changes or name not in registered:
                continue
            table, names = registered[name], names | {name}
            columns = self._source.column_lineage(table)
            reached = position(state.applied) or at
            schema = self._lake.table_at(table.path).schema()
            outputs.append(written(table.path, schema, state.changes, reached, columns))
        relations = self._lake.table("bronze", "relations")
        rows = relations.rows().to_pylist() if names and relations.exists() else []
        bronze = lake_dataset(self._lake.path("bronze", "changes"))
        inputs = [bronze, *self._sources(names, rows)] if names else []
        return {"position": at, "inputs": inputs, "outputs": outputs}

    def _sources(self, names: set[TableName], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return source tables with the columns of their newest relation version, of those in `rows`."""
        newest = {
            TableName(row["schema_name"], row["table_name"]): [
                (c["name"], type_name(c)) for c in row["columns"]
            ]
            for row in sorted(rows, key=lambda row: row["lsn"])
        }
        return [self._source.table(name, newest.get(name, ())) for name in sorted(names)]

    def _send(self, event: dict[str, Any]) -> None:
        """Append an event to the file, and post it; raise EndpointError if one of them is not possible."""
        settings, body = self._config.lineage, json.dumps(event).encode("ascii")
        reasons = []
        if settings.path is not None and (reason := _append(settings.path, body)):
            reasons.append(f"An event was not written to lineage.path: {reason}.")
        if settings.url is not None and (reason := post(settings.url, body, token=settings.api_key)):
            reasons.append(f"The receiver at lineage.url did not accept an event: {reason}.")
        if reasons:
            reasons.append("It is lost. The run goes on, and sends its next event.")
            raise EndpointError(" ".join(reasons))


def _append(file: str, body: bytes) -> str | None:
    """Append a line to a file at once, so that lines of several processes stay whole; return why not."""
    try:
        opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(opened, body + b"\n")
        finally:
            os.close(opened)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return None
