"""What runs say of themselves: metrics by name and label, and the endpoint that serves them."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone

import pytest

from pipeline import __version__
from pipeline.errors import ConfigError, EndpointError
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.progress import ApplySummary, CopyProgress, IngestSummary, StreamProgress, TableState
from pipeline.protocol.lsn import LSN
from pipeline.report.metrics import Family, RunMetrics, Sample, render
from pipeline.report.metrics_endpoint import MetricsEndpoint
from pipeline.table_name import TableName

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


def scraped(metrics: RunMetrics) -> dict[str, str]:
    """Return the value of each sample, by its name and labels."""
    lines = render(metrics.families()).splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_run_that_has_just_begun_says_which_release_it_is() -> None:
    found = scraped(RunMetrics("shop"))
    assert found[f'pgdelta_info{{pipeline="shop",version="{__version__}"}}'] == "1"
    assert len(found) == 2


def test_ingest_says_how_far_bronze_is_and_goes_on_changing() -> None:
    metrics, summary = RunMetrics("shop"), IngestSummary("shop", "slot", LSN(5))
    metrics.on_ingest(summary)
    found = scraped(metrics)
    assert found['pgdelta_captured_lsn{pipeline="shop"}'] == "5"
    assert not any("captured_commit_timestamp" in name or "copy" in name for name in found)
    summary.captured_offset, summary.commit_time, summary.transactions = LSN(0x200000001), NOON, 7
    summary.changes, summary.commits = 21, 2
    summary.copies[TableName("sales", 'o"1')] = CopyProgress(chunks=4, chunks_landed=1, failure="no right")
    found = scraped(metrics)
    assert {name: value for name, value in found.items() if "info" not in name and "start" not in name} == {
        'pgdelta_captured_lsn{pipeline="shop"}': "8589934593",
        'pgdelta_captured_commit_timestamp_seconds{pipeline="shop"}': "1795348800.0",
        'pgdelta_captured_transactions_total{pipeline="shop"}': "7",
        'pgdelta_captured_changes_total{pipeline="shop"}': "21",
        'pgdelta_bronze_commits_total{pipeline="shop"}': "2",
        'pgdelta_copy_share{pipeline="shop",schema="sales",table="o\\"1"}': "0.25",
        'pgdelta_copies_failed{pipeline="shop"}': "0",
        'pgdelta_copy_failed{pipeline="shop",schema="sales",table="o\\"1"}': "1",
    }


def test_ingest_says_where_the_log_of_the_source_ends_while_that_is_known() -> None:
    metrics = RunMetrics("shop")
    ends: list[LSN | None] = [LSN(0x200000009), None]
    metrics.on_source(lambda: ends.pop(0))
    metrics.on_ingest(IngestSummary("shop", "slot", LSN(5)))
    name = 'pgdelta_source_wal_lsn{pipeline="shop"}'
    assert scraped(metrics)[name] == "8589934601"
    assert name not in scraped(metrics)


def test_apply_says_how_far_each_table_is() -> None:
    metrics, summary = RunMetrics("shop"), ApplySummary("shop")
    metrics.on_apply(summary)
    assert scraped(metrics)['pgdelta_apply_pass_seconds_count{pipeline="shop"}'] == "0"
    entries = tuple(
        ManifestEntry("public", name, name, 3, LSN(lsn), lsn < 90) for name, lsn in (("a", 90), ("b", 40))
    )
    summary.tables = {
        TableName("public", "b"): TableState(LSN(40), 0, 2, held="a type"),
        TableName("public", "c"): TableState(LSN(10), 5, 0, failure="no folder"),
    }
    summary.show(Manifest(LSN(90), NOON, entries))
    summary.count_batch(1.5)
    summary.count_batch(0.5)
    summary.stream = StreamProgress.of(
        {"batchId": 4, "numInputRows": 12, "inputRowsPerSecond": 6.0, "durationMs": {"triggerExecution": 250}}
    )
    found = scraped(metrics)

    def tables(name: str) -> dict[str, str]:
        start = f'pgdelta_table_{name}{{pipeline="shop",schema="public",table="'
        return {key.removeprefix(start)[0]: value for key, value in found.items() if key.startswith(start)}

    assert tables("applied_lsn") == {"a": "90", "b": "40", "c": "10"}
    assert tables("changes_total") == {"a": "0", "b": "0", "c": "5"}
    assert tables("misfits_total") == {"a": "0", "b": "2", "c": "0"}
    assert tables("held") == {"a": "0", "b": "1", "c": "0"}
    assert tables("failed") == {"a": "0", "b": "0", "c": "1"}
    whole = {name.partition("{")[0]: value for name, value in found.items() if "table=" not in name}
    del whole["pgdelta_run_start_timestamp_seconds"]
    assert whole == {
        "pgdelta_info": "1",
        "pgdelta_applied_lsn": "90",
        "pgdelta_applied_commit_timestamp_seconds": "1795348800.0",
        "pgdelta_apply_pass_seconds_sum": "2.0",
        "pgdelta_apply_pass_seconds_count": "2",
        "pgdelta_apply_last_pass_seconds": "0.5",
        "pgdelta_stream_batch_id": "4",
        "pgdelta_stream_input_rows": "12",
        "pgdelta_stream_input_rows_per_second": "6.0",
        "pgdelta_stream_batch_seconds": "0.25",
    }


@contextmanager
def endpoint(families: list[Family]) -> Iterator[int]:
    port = free_port()
    with closing(MetricsEndpoint("127.0.0.1", port, lambda: families)):
        yield port


def ask(port: int, method: str, path: str) -> tuple[int, str | None, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as client:
        client.request(method, path)
        answer = client.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read()


def test_the_endpoint_serves_metrics_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    families = [Family("m", "gauge", "x", (Sample(1, {"t": "Zoë \udce9"}),))]
    with endpoint(families) as port:
        status, kind, body = ask(port, "GET", "/metrics?x=1")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert body == '# HELP m x\n# TYPE m gauge\nm{t="Zoë \\udce9"} 1\n'.encode()
        assert ask(port, "HEAD", "/metrics")[::2] == (200, b"")
        assert ask(port, "GET", "/../etc/passwd")[0] == 404
        assert ask(port, "POST", "/metrics")[0] == 501
        with socket.create_connection(("127.0.0.1", port)) as rude:  # holds a thread, and none of the others
            rude.sendall(b"GET /met")
            assert ask(port, "GET", "/metrics")[0] == 200
        assert "metrics" in [thread.name for thread in threading.enumerate()]
    with pytest.raises(OSError):  # noqa: PT011
        ask(port, "GET", "/metrics")
    assert "metrics" not in [thread.name for thread in threading.enumerate()]
    assert capfd.readouterr() == ("", "")


def test_an_address_that_cannot_be_had_is_one_sentence() -> None:
    with endpoint([]) as port, pytest.raises(EndpointError) as busy:
        MetricsEndpoint("127.0.0.1", port, list)
    assert str(busy.value) == (
        f"--metrics: port {port} of 127.0.0.1 is in use: end who uses it, or give another"
    )
    assert busy.value.exit_code == 1
    for host in ("no.such.host.invalid", "192.0.2.1"):
        with pytest.raises(ConfigError, match=f"--metrics: .*{host}") as unknown:
            MetricsEndpoint(host, free_port(), list)
        assert unknown.value.exit_code == 2
