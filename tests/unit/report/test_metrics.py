"""The metrics of a run by name and label, and the endpoint that serves them."""

import http.client
import itertools
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from pipeline import __version__
from pipeline.errors import ConfigError, EndpointError
from pipeline.metadata.maintenance import Maintained
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.metadata.reconciliations import PROVE, ComparedAt
from pipeline.postgres.embedded import find_free_port
from pipeline.postgres.replication.slot_status import SourceWal
from pipeline.postgres.replication.wal_holder import WalHolder
from pipeline.progress import ApplySummary, CopyProgress, IngestSummary, StreamProgress, TableState
from pipeline.protocol.lsn import LSN
from pipeline.report.metrics import METRICS, MetricsEndpoint, RunMetrics
from pipeline.table_name import TableName

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


def scraped(metrics: RunMetrics) -> dict[str, float]:
    """Return the value of each sample, by its name and labels as Prometheus' text has them."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_a_run_that_just_started_has_its_release_and_its_start() -> None:
    found = scraped(RunMetrics("shop"))
    assert found[f'pgdelta_info{{pipeline="shop",version="{__version__}"}}'] == 1
    assert len(found) == 2


def test_the_metrics_of_ingest_follow_its_summary() -> None:
    metrics, summary = RunMetrics("shop"), IngestSummary("shop", "slot", LSN(5))
    metrics.on_ingest(summary)
    found = scraped(metrics)
    assert found['pgdelta_captured_lsn{pipeline="shop"}'] == 5
    assert not any("captured_commit_timestamp" in name or "copy" in name for name in found)
    summary.captured_offset, summary.commit_time, summary.transactions = LSN(0x200000001), NOON, 7
    summary.changes, summary.commits = 21, 2
    summary.copies[TableName("sales", 'o"1')] = CopyProgress(chunks=4, chunks_landed=1, failure="no right")
    summary.unpublished = {TableName("sales", "new"): "The role does not own it."}
    found = scraped(metrics)
    assert {name: value for name, value in found.items() if "info" not in name and "start" not in name} == {
        'pgdelta_captured_lsn{pipeline="shop"}': 8589934593,
        'pgdelta_captured_commit_timestamp_seconds{pipeline="shop"}': 1795348800.0,
        'pgdelta_captured_transactions_total{pipeline="shop"}': 7,
        'pgdelta_captured_changes_total{pipeline="shop"}': 21,
        'pgdelta_bronze_commits_total{pipeline="shop"}': 2,
        'pgdelta_unpublished_tables{pipeline="shop"}': 1,
        'pgdelta_copy_share{pipeline="shop",schema="sales",table="o\\"1"}': 0.25,
        'pgdelta_copies_failed{pipeline="shop"}': 0,
        'pgdelta_copy_failed{pipeline="shop",schema="sales",table="o\\"1"}': 1,
    }


def test_maintenance_counts_what_both_jobs_did() -> None:
    metrics, ingest, apply = RunMetrics("shop"), IngestSummary("shop", "slot"), ApplySummary("shop")
    metrics.on_ingest(ingest)
    metrics.on_apply(apply)
    assert not any("maint" in name for name in scraped(metrics))
    ingest.maintenance.count(
        Maintained("bronze/changes", NOON, 9, 30, 2, removed_files=5, removed_log_files=7)
    )
    apply.maintenance.count(Maintained("public.t", NOON, 9, 4, 3))
    apply.maintenance.count(Maintained("public.u", NOON, 9, is_failed=True, sentence="no space"))
    assert {name: value for name, value in scraped(metrics).items() if "maint" in name} == {
        'pgdelta_maintained_tables_total{pipeline="shop"}': 2,
        'pgdelta_maintenance_merged_files_total{pipeline="shop"}': 29,
        'pgdelta_maintenance_removed_files_total{pipeline="shop"}': 12,
        'pgdelta_maintenance_failed_tables{pipeline="shop"}': 1,
    }


def test_the_end_of_the_source_has_a_sample_only_while_it_is_known() -> None:
    metrics = RunMetrics("shop")
    wal: SourceWal | None = SourceWal(LSN(0x200000009), 4096, 1024)
    metrics.on_source(lambda: wal)
    metrics.on_ingest(IngestSummary("shop", "slot", LSN(5)))

    def shown() -> dict[str, float]:
        return {
            name.removeprefix("pgdelta_").partition("{")[0]: value
            for name, value in scraped(metrics).items()
            if "wal" in name
        }

    sizes = {"slot_retained_wal_bytes": 4096.0, "slot_safe_wal_bytes": 1024.0}
    assert shown() == {"source_wal_lsn": 8589934601, **sizes}
    wal = SourceWal(LSN(6))  # no slot, or no limit
    assert shown() == {"source_wal_lsn": 6}
    wal = None
    assert shown() == {}


def test_the_metrics_of_apply_follow_each_table() -> None:
    metrics, summary = RunMetrics("shop"), ApplySummary("shop")
    metrics.on_apply(summary)
    assert scraped(metrics)['pgdelta_apply_pass_seconds_count{pipeline="shop"}'] == 0
    entries = tuple(
        ManifestEntry("public", name, name, 3, LSN(lsn), lsn < 90) for name, lsn in (("a", 90), ("b", 40))
    )
    summary.tables = {
        TableName("public", "b"): TableState(LSN(40), 0, 2, held="a type"),
        TableName("public", "c"): TableState(LSN(10), 5, 0, failure="no folder", paused="since noon"),
    }
    summary.show(Manifest(LSN(90), NOON, entries))
    summary.count_batch(1.5)
    summary.count_batch(0.5)
    summary.stream = StreamProgress.of(
        {"batchId": 4, "numInputRows": 12, "inputRowsPerSecond": 6.0, "durationMs": {"triggerExecution": 250}}
    )
    found = scraped(metrics)

    def tables(name: str) -> dict[str, float]:
        start = f'pgdelta_table_{name}{{pipeline="shop",schema="public",table="'
        return {key.removeprefix(start)[0]: value for key, value in found.items() if key.startswith(start)}

    assert tables("applied_lsn") == {"a": 90, "b": 40, "c": 10}
    assert tables("changes_total") == {"a": 0, "b": 0, "c": 5}
    assert tables("misfits_total") == {"a": 0, "b": 2, "c": 0}
    assert tables("held") == {"a": 0, "b": 1, "c": 0}
    assert tables("failed") == {"a": 0, "b": 0, "c": 1}
    assert tables("paused") == {"a": 0, "b": 0, "c": 1}
    whole = {name.partition("{")[0]: value for name, value in found.items() if "table=" not in name}
    del whole["pgdelta_run_start_timestamp_seconds"]
    assert whole == {
        "pgdelta_info": 1,
        "pgdelta_applied_lsn": 90,
        "pgdelta_applied_commit_timestamp_seconds": 1795348800.0,
        "pgdelta_apply_pass_seconds_sum": 2.0,
        "pgdelta_apply_pass_seconds_count": 2,
        "pgdelta_apply_last_pass_seconds": 0.5,
        "pgdelta_tables_in_doubt": 0,
        "pgdelta_stream_batch_id": 4,
        "pgdelta_stream_input_rows": 12,
        "pgdelta_stream_input_rows_per_second": 6.0,
        "pgdelta_stream_batch_seconds": 0.25,
    }


class Fixed(Collector):
    """A collector of one family."""

    def __init__(self, family: GaugeMetricFamily) -> None:
        self._family = family

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return [self._family]


class Broken(Collector):
    def collect(self) -> Iterable[GaugeMetricFamily]:
        raise ValueError("geheim")


def registry_of(*collectors: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return registry


def full_run() -> RunMetrics:
    """Return metrics in which every metric has a sample."""
    metrics = RunMetrics("shop")
    ingest = IngestSummary("shop", "slot", LSN(5), commit_time=NOON, unpublished={})
    ingest.copies[TableName("sales", 'o"1')] = CopyProgress(chunks=4)
    apply = ApplySummary("shop", LSN(5), commit_time=NOON)
    apply.tables[TableName("public", "b")] = TableState(LSN(40), 1)
    apply.verified[TableName("public", "b")] = ComparedAt(LSN(40), NOON, PROVE)
    apply.count_batch(1.5)
    apply.maintenance.count(Maintained("public.b", NOON, 3, 9, 1))
    apply.stream = StreamProgress(1, 2, 3.0, 4.0, 5.0)
    metrics.on_ingest(ingest)
    metrics.on_apply(apply)
    metrics.on_source(lambda: SourceWal(LSN(9), 4, 2, WalHolder("", 4, "app", 7, since=NOON)))
    return metrics


def test_every_declared_metric_is_served_in_both_formats() -> None:
    registry = full_run().registry
    declared = list(itertools.chain.from_iterable(METRICS.values()))
    text = generate_latest(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    kinds = {f"pgdelta_{metric.name.removesuffix('_total')}": metric.kind for metric in declared}
    assert {name: family.type for name, family in families.items()} == kinds
    helps = {f"pgdelta_{metric.name.removesuffix('_total')}": metric.help for metric in declared}
    assert {name: family.documentation for name, family in families.items()} == helps
    for metric in declared:
        for sample in families[f"pgdelta_{metric.name.removesuffix('_total')}"].samples:
            assert sample.labels.keys() == {"pipeline", *metric.labels}
    openmetrics = prometheus_client.openmetrics.exposition.generate_latest(registry).decode()
    assert {family.name for family in parse_openmetrics(openmetrics)} == kinds.keys()


def test_a_run_shares_no_registry() -> None:
    before = {family.name for family in prometheus_client.REGISTRY.collect()}
    one, other = RunMetrics("shop"), RunMetrics("shop")
    assert one.registry is not other.registry
    assert {family.name for family in prometheus_client.REGISTRY.collect()} == before
    assert not any(name.startswith("pgdelta") for name in before)


@pytest.mark.promise("metrics and logs")
def test_what_has_a_meaning_in_the_format_is_escaped() -> None:
    metrics = RunMetrics("shop")
    name = TableName('a"b\\c\nd{}=,#', "Zoë \udce9")
    metrics.on_apply(ApplySummary("shop", tables={name: TableState(LSN(0x16B374D848))}))
    text = generate_latest(metrics.registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    [sample] = families["pgdelta_table_applied_lsn"].samples
    assert sample.labels == {"pipeline": "shop", "schema": name.schema, "table": "Zoë \\udce9"}
    assert sample.value == 97500059720


def test_prometheus_client_is_imported_for_metrics_only() -> None:
    code = (
        "import sys, pipeline.report.observers, pipeline.cli.main; "
        "sys.exit('prometheus_client' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@contextmanager
def endpoint(registry: CollectorRegistry) -> Iterator[int]:
    port = find_free_port()
    with closing(MetricsEndpoint("127.0.0.1", port, registry)):
        yield port


def request(port: int, method: str, path: str, **headers: str) -> tuple[int, str | None, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        client.request(method, path, headers=headers)
        answer = client.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read()


@pytest.mark.promise("metrics and logs")
def test_the_endpoint_serves_metrics_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    family = GaugeMetricFamily("m", "x", labels=["t"])
    family.add_metric(["Zoë"], 1)
    with endpoint(registry_of(Fixed(family))) as port:
        status, kind, body = request(port, "GET", "/metrics?x=1")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert body == '# HELP m x\n# TYPE m gauge\nm{t="Zoë"} 1.0\n'.encode()
        accepted = request(port, "GET", "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert (accepted[0], accepted[2][-6:]) == (200, b"# EOF\n")
        assert request(port, "HEAD", "/metrics")[::2] == (200, b"")
        for path in ("/", "/metrics/", "/favicon.ico", "/../etc/passwd"):
            assert request(port, "GET", path)[0] == 404
        assert request(port, "POST", "/metrics")[0] == 405
        assert request(port, "DELETE", "/")[0] == 404
        with socket.create_connection(("127.0.0.1", port)) as rude:  # holds a thread, and none of the others
            rude.sendall(b"GET /met")
            assert request(port, "GET", "/metrics")[0] == 200
        assert "metrics" in [thread.name for thread in threading.enumerate()]
    with pytest.raises(OSError):  # noqa: PT011
        request(port, "GET", "/metrics")
    assert "metrics" not in [thread.name for thread in threading.enumerate()]
    assert capfd.readouterr() == ("", "")


def test_a_scrape_selects_metrics_by_name() -> None:
    with endpoint(full_run().registry) as port:
        body = request(port, "GET", "/metrics?name[]=pgdelta_captured_lsn")[2]
    assert [line for line in body.decode().splitlines() if not line.startswith("#")] == [
        'pgdelta_captured_lsn{pipeline="shop"} 5.0'
    ]


def test_a_collector_that_fails_is_the_scrape_s_error_only(capfd: pytest.CaptureFixture[str]) -> None:
    with endpoint(registry_of(Broken())) as port:
        status, _, body = request(port, "GET", "/metrics")
    assert status == 500
    assert b"geheim" not in body
    assert capfd.readouterr() == ("", "")


def test_an_address_that_cannot_be_used_is_one_sentence() -> None:
    registry = CollectorRegistry()
    with endpoint(registry) as port, pytest.raises(EndpointError) as busy:
        MetricsEndpoint("127.0.0.1", port, registry)
    assert str(busy.value) == (
        f"--metrics: Port {port} of 127.0.0.1 is in use. Stop the process that uses it, or choose another "
        "port."
    )
    assert busy.value.exit_code == 1
    for host in ("no.such.host.invalid", "192.0.2.1"):
        with pytest.raises(ConfigError, match=f"--metrics: .*{host}") as unknown:
            MetricsEndpoint(host, find_free_port(), registry)
        assert unknown.value.exit_code == 2
