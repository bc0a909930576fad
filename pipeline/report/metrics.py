"""Metrics of one run for Prometheus, and the endpoint that serves them.

`METRICS` declares every metric once, and the reference page is generated from it. `RunMetrics` is a collector
in its own registry. At each scrape it reads the summaries of the run, and omits metrics that have no value
yet. LSNs are numbers, so that a difference is bytes of WAL; times are in seconds.

`MetricsEndpoint` answers `GET /metrics` and nothing else, on its own threads. It has no authentication and no
TLS, so the caller chooses the address, by default this machine only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from pipeline import __version__
from pipeline.report.endpoint import Endpoint
from pipeline.report.metric import HOLDER_LABELS, TABLE_LABELS, Durations, Family, Metric, Samples, Scrape
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from pipeline.metadata.reconciliations import ComparedAt
    from pipeline.postgres.replication.slot_status import SourceWal
    from pipeline.postgres.replication.wal_holder import WalHolder
    from pipeline.progress import (
        ApplySummary,
        CopyProgress,
        IngestSummary,
        MaintenanceProgress,
        StreamProgress,
        TableState,
    )
    from pipeline.protocol.lsn import LSN


class RunMetrics(Collector):
    """The metrics of one run: of ingest, of apply or of both."""

    def __init__(self, pipeline: str) -> None:
        self.registry = CollectorRegistry()
        self._pipeline = pipeline
        self._started = time.time()
        self._ingest: IngestSummary | None = None
        self._apply: ApplySummary | None = None
        self._read_source: Callable[[], SourceWal | None] = lambda: None
        self.registry.register(self)

    def on_ingest(self, summary: IngestSummary) -> None:
        """Keep the summary, which continues to change."""
        self._ingest = summary

    def on_apply(self, summary: ApplySummary) -> None:
        """Keep the summary, which continues to change."""
        self._apply = summary

    def on_source(self, read: Callable[[], SourceWal | None]) -> None:
        """Keep the function that returns the WAL of the source, None while it is unknown."""
        self._read_source = read

    def scrape(self) -> Scrape:
        """Return what the run is now; its summaries continue to change."""
        return Scrape(self._started, self._ingest, self._apply, self._read_source)

    def describe(self) -> Iterator[Family]:
        """Give every metric without samples."""
        for metric in chain.from_iterable(METRICS.values()):
            yield metric.family(self._pipeline, {})

    def collect(self) -> Iterator[Family]:
        """Give the metrics that have a value now."""
        scrape = self.scrape()
        for metric in chain.from_iterable(METRICS.values()):
            if samples := metric.read(scrape):
                yield metric.family(self._pipeline, samples)


def _single(value: float | None) -> Samples:
    return {} if value is None else {(): value}


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _ingest(read: Callable[[IngestSummary], float | None]) -> Callable[[Scrape], Samples]:
    return lambda scrape: {} if scrape.ingest is None else _single(read(scrape.ingest))


def _source(read: Callable[[SourceWal], float | None]) -> Callable[[Scrape], Samples]:
    def samples(scrape: Scrape) -> Samples:
        wal = scrape.read_source() if scrape.ingest is not None else None
        return {} if wal is None else _single(read(wal))

    return samples


def _holder(read: Callable[[WalHolder], float | None]) -> Callable[[Scrape], Samples]:
    """Return a reader of what keeps the slot's restart_lsn back, without samples if nothing does."""

    def samples(scrape: Scrape) -> Samples:
        wal = scrape.read_source() if scrape.ingest is not None else None
        holder = None if wal is None else wal.holder
        value = None if holder is None else read(holder)
        return {} if holder is None or value is None else {holder.labels: value}

    return samples


def _copies(read: Callable[[CopyProgress], float]) -> Callable[[Scrape], Samples]:
    def samples(scrape: Scrape) -> Samples:
        copies = {} if scrape.ingest is None else dict(scrape.ingest.copies)
        return {tuple(name): read(copies[name]) for name in sorted(copies)}

    return samples


def _apply(read: Callable[[ApplySummary], float | None]) -> Callable[[Scrape], Samples]:
    return lambda scrape: {} if scrape.apply is None else _single(read(scrape.apply))


def _stream(read: Callable[[StreamProgress], float | None]) -> Callable[[Scrape], Samples]:
    def samples(scrape: Scrape) -> Samples:
        stream = scrape.apply.stream if scrape.apply is not None else None
        return {} if stream is None else _single(read(stream))

    return samples


def _tables(read: Callable[[TableState], float]) -> Callable[[Scrape], Samples]:
    """Return a reader of what this run did to each table, 0 for tables that only the manifest has."""

    def samples(scrape: Scrape) -> Samples:
        if scrape.apply is None:
            return {}
        states = dict(scrape.apply.tables)
        names = {entry.name for entry in scrape.apply.entries} | states.keys()
        return {tuple(name): read(states[name]) if name in states else 0 for name in sorted(names)}

    return samples


def _applied_lsns(scrape: Scrape) -> Samples:
    if scrape.apply is None:
        return {}
    applied: dict[TableName, LSN] = {name: state.applied for name, state in dict(scrape.apply.tables).items()}
    applied |= {entry.name: entry.applied_lsn for entry in scrape.apply.entries}
    return {tuple(name): applied[name] for name in sorted(applied)}


def _verified(read: Callable[[ComparedAt], float]) -> Callable[[Scrape], Samples]:
    """Return a reader of the newest comparison that found a table equal, as apply read it last."""

    def samples(scrape: Scrape) -> Samples:
        verified = {} if scrape.apply is None else dict(scrape.apply.verified)
        return {tuple(name): read(verified[name]) for name in sorted(verified)}

    return samples


def _batches(scrape: Scrape) -> Samples:
    summary = scrape.apply
    return {} if summary is None else {(): Durations(summary.batches, summary.total_batch_seconds)}


def _maintenance(read: Callable[[MaintenanceProgress], int]) -> Callable[[Scrape], Samples]:
    """Return a reader of what the jobs of this run maintained together, without samples until they did."""

    def samples(scrape: Scrape) -> Samples:
        jobs = [job.maintenance for job in (scrape.ingest, scrape.apply) if job is not None]
        has_run = any(each.tables or each.failures for each in jobs)
        return {(): sum(map(read, jobs))} if has_run else {}

    return samples


_gauge, _counter = partial(Metric, "gauge"), partial(Metric, "counter")
_table_gauge, _table_counter = partial(_gauge, labels=TABLE_LABELS), partial(_counter, labels=TABLE_LABELS)

METRICS = {
    "every run": (
        _gauge("info", "The release that runs; always 1.", lambda _: {(__version__,): 1}, ("version",)),
        _gauge("run_start_timestamp_seconds", "Start of this run.", lambda s: _single(s.started)),
    ),
    "ingest": (
        _gauge(
            "source_wal_lsn",
            "End of the source's WAL, requested every 10 s in a session of its own. "
            "No sample if the source did not answer for a minute.",
            _source(lambda wal: wal.lsn),
        ),
        _gauge(
            "slot_retained_wal_bytes",
            "WAL that the server retains for the slot. No sample if it is not known.",
            _source(lambda wal: wal.retained_size),
        ),
        _gauge(
            "slot_safe_wal_bytes",
            "WAL that can still be written before the slot can be lost. No sample without "
            "max_slot_wal_keep_size.",
            _source(lambda wal: wal.safe_size),
        ),
        _gauge(
            "slot_held_wal_bytes",
            "WAL that the server retains because a transaction, or the slot of a standby, keeps the slot's "
            "restart_lsn back. No sample below the limit of alerts.",
            _holder(lambda holder: holder.retained_size),
            HOLDER_LABELS,
        ),
        _gauge(
            "slot_held_since_timestamp_seconds",
            "Start of that transaction. No sample if it is not visible to the role.",
            _holder(lambda holder: _seconds(holder.since)),
            HOLDER_LABELS,
        ),
        _gauge("captured_lsn", "LSN up to which bronze is complete.", _ingest(lambda i: i.captured_offset)),
        _gauge(
            "captured_commit_timestamp_seconds",
            "Commit time of the newest transaction that this run captured.",
            _ingest(lambda i: _seconds(i.commit_time)),
        ),
        _counter(
            "captured_transactions_total",
            "Transactions captured by this run.",
            _ingest(lambda i: i.transactions),
        ),
        _counter("captured_changes_total", "Row changes captured by this run.", _ingest(lambda i: i.changes)),
        _counter("bronze_commits_total", "Commits of this run to bronze.", _ingest(lambda i: i.commits)),
        _gauge(
            "unpublished_tables",
            "Tables that match the configuration and are not published or not followed.",
            _ingest(lambda i: None if i.unpublished is None else len(i.unpublished) + len(i.unfollowed)),
        ),
    ),
    "table copies": (
        _gauge(
            "copies_failed",
            "1 if no table can be copied, because the server or its snapshot is not available.",
            _ingest(lambda i: i.copy_failure is not None),
        ),
        _table_gauge(
            "copy_share", "Part of a table's copy that bronze holds, 0 to 1.", _copies(lambda c: c.share)
        ),
        _table_gauge(
            "copy_failed", "1 if the copy of a table failed.", _copies(lambda c: c.failure is not None)
        ),
    ),
    "apply": (
        _gauge("applied_lsn", "LSN that all current silver tables show.", _apply(lambda a: a.applied_offset)),
        _gauge(
            "applied_commit_timestamp_seconds",
            "Commit time of the newest transaction that silver shows.",
            _apply(lambda a: _seconds(a.commit_time)),
        ),
        Metric("summary", "apply_pass_seconds", "Duration of the batches that applied something.", _batches),
        _gauge(
            "apply_last_pass_seconds",
            "Duration of the last batch that applied something.",
            _apply(lambda a: a.batch_seconds or None),
        ),
        _gauge(
            "tables_in_doubt",
            "Tables that may differ from the source until they are copied or compared.",
            _apply(lambda a: len(a.doubts)),
        ),
        _table_gauge("table_applied_lsn", "LSN up to which a table is applied.", _applied_lsns),
        _table_counter(
            "table_changes_total", "Changes that this run applied to a table.", _tables(lambda t: t.changes)
        ),
        _table_counter(
            "table_misfits_total",
            "Values that did not fit their silver type in this run.",
            _tables(lambda t: t.misfits),
        ),
        _table_gauge("table_held", "1 if a recorded policy holds a table.", _tables(lambda t: bool(t.held))),
        _table_gauge(
            "table_verified_lsn",
            "LSN at which a table was last found equal to its source, by prove or reconcile.",
            _verified(lambda found: float(found.lsn)),
        ),
        _table_gauge(
            "table_verified_timestamp_seconds",
            "When a table was last found equal to its source.",
            _verified(lambda found: found.at.timestamp()),
        ),
        _table_gauge(
            "table_failed", "1 if a table could not be applied.", _tables(lambda t: bool(t.failure))
        ),
        _table_gauge("table_paused", "1 if an operator paused a table.", _tables(lambda t: bool(t.paused))),
    ),
    "maintenance": (
        _counter(
            "maintained_tables_total",
            "How often this run maintained a table, for all tables.",
            _maintenance(lambda m: m.tables),
        ),
        _counter(
            "maintenance_merged_files_total",
            "Data files that tables have fewer after merging.",
            _maintenance(lambda m: m.merged),
        ),
        _counter(
            "maintenance_removed_files_total",
            "Files that maintenance removed from the folders of tables and from their logs.",
            _maintenance(lambda m: m.removed_files + m.removed_log_files),
        ),
        _gauge(
            "maintenance_failed_tables",
            "Tables whose last maintenance failed.",
            _maintenance(lambda m: len(m.failures)),
        ),
    ),
    "Structured Streaming": (
        _gauge(
            "stream_batch_id",
            "Id of the newest micro-batch of the streaming query.",
            _stream(lambda s: s.batch_id),
        ),
        _gauge("stream_input_rows", "Input rows of the newest micro-batch.", _stream(lambda s: s.rows)),
        _gauge(
            "stream_input_rows_per_second",
            "Rate at which the rows of the newest micro-batch arrived.",
            _stream(lambda s: s.input_rate),
        ),
        _gauge(
            "stream_processed_rows_per_second",
            "Rate at which the rows of the newest micro-batch were processed.",
            _stream(lambda s: s.processed_rate),
        ),
        _gauge("stream_batch_seconds", "Duration of the newest micro-batch.", _stream(lambda s: s.seconds)),
    ),
}
"""Every metric, by what it is about."""


class MetricsEndpoint(Endpoint):
    """Serves a registry at `/metrics` from its creation until `close`."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Listen on an address; raise as `Endpoint` does."""
        super().__init__(
            host, port, _only_metrics(serve_registry(registry)), option="--metrics", name="metrics"
        )


def serve_registry(registry: CollectorRegistry) -> WSGIApplication:
    """Return an application that answers GET and HEAD with the metrics of a registry."""
    application = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "HEAD":
            application({**environ, "REQUEST_METHOD": "GET"}, start_response)
            return []
        found: Iterable[bytes] = application(environ, start_response)
        return found

    return answer


def _only_metrics(application: WSGIApplication) -> WSGIApplication:
    """Return the application behind `/metrics`; other paths are not found."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"Only /metrics is here.\n"]
        return application(environ, start_response)

    return answer
