"""The log of a run as JSON lines, and how an observed run ends."""

import io
import json
import logging
import socket
from contextlib import closing
from datetime import datetime, timezone
from typing import Any

import pytest

from pipeline import __version__
from pipeline.cli.options import Address
from pipeline.config.config import Config, Silver, Source, Storage
from pipeline.errors import TRACES, ConfigError, EndpointError, LakeError
from pipeline.metadata.maintenance import Maintained
from pipeline.metadata.manifests import Manifest
from pipeline.progress import ApplySummary, CopyProgress, IngestSummary, TableState
from pipeline.protocol.lsn import LSN
from pipeline.report.observers import Observers, WatchOptions
from pipeline.report.run_log import RunLog
from pipeline.table_name import TableName

NOON = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
CONFIG = Config("shop", Source("", "shop", "shop"), Storage("./lake"), Silver(), (), "pipeline.yaml")


def logged(stream: io.StringIO) -> list[dict[str, Any]]:
    """Return the objects of the lines without the fields that all have, and empty the stream."""
    text = stream.getvalue()
    assert not text or text.endswith("\n")
    found = [json.loads(line) for line in text.splitlines()]
    assert all((entry.pop("pipeline"), entry.pop("command")) == ("shop", "run") for entry in found)
    assert all(entry.pop("time").endswith("Z") for entry in found)
    stream.seek(0)
    stream.truncate()
    return found


def test_copies_that_all_fail_are_logged_once_for_each_sentence() -> None:
    lines = io.StringIO()
    log, summary = RunLog("shop", "run", lines), IngestSummary("shop", "slot", LSN(5))
    for sentence in ("no server", None, "no server", "no right", "no right"):
        summary.copy_failure = sentence
        log.on_ingest(summary)
    copy = summary.copies[TableName("public", "t")] = CopyProgress(rows_landed=4)
    copy.complete()
    log.on_ingest(summary)
    entries = [(line["event"], line.get("sentence")) for line in logged(lines)]
    assert entries == [
        ("copies failed", "no server"),
        ("copies failed", "no right"),
        ("copied", None),
    ]


def test_tables_that_join_or_lack_publication_are_logged_once() -> None:
    lines = io.StringIO()
    log, summary = RunLog("shop", "run", lines), IngestSummary("shop", "slot", LSN(5))
    log.on_ingest(summary)
    summary.published.append(TableName("public", "t"))
    for reason in ("no key", "no key", "no right"):
        summary.unpublished = {TableName("public", "u"): reason}
        log.on_ingest(summary)
    assert logged(lines) == [
        {"event": "published", "schema": "public", "table": "t"},
        {"event": "unpublished", "schema": "public", "table": "u", "sentence": "no key"},
        {"event": "unpublished", "schema": "public", "table": "u", "sentence": "no right"},
    ]


def test_commits_and_copies_are_logged_as_they_come() -> None:
    lines = io.StringIO()
    log, summary = RunLog("shop", "run", lines), IngestSummary("shop", "slot", LSN(5))
    log.start("continuous")
    log.on_ingest(summary)
    assert logged(lines) == [{"event": "start", "trigger": "continuous", "version": __version__}]
    summary.captured_offset, summary.transactions, summary.changes, summary.commits = LSN(9), 2, 30, 1
    log.on_ingest(summary)
    log.on_ingest(summary)
    summary.captured_offset, summary.transactions, summary.changes, summary.commits = LSN(12), 3, 31, 2
    copy = summary.copies[TableName("public", "t")] = CopyProgress(rows_landed=4)
    log.on_ingest(summary)
    assert logged(lines) == [
        {"event": "commit", "position": "0/9", "transactions": 2, "changes": 30},
        {"event": "commit", "position": "0/C", "transactions": 1, "changes": 1},
    ]
    copy.failure = "no right"
    log.on_ingest(summary)
    log.on_ingest(summary)
    copy.failure = None
    copy.complete()
    log.on_ingest(summary)
    table = {"schema": "public", "table": "t", "rows": 4, "seconds": 0.0}
    assert logged(lines) == [
        {"event": "copy failed", **table, "sentence": "no right"},
        {"event": "copied", **table},
    ]


def test_batches_and_alerts_are_logged_once() -> None:
    lines = io.StringIO()
    log, summary = RunLog("shop", "run", lines), ApplySummary("shop")
    log.on_apply(summary)
    assert lines.getvalue() == ""
    summary.tables = {
        TableName("public", "a"): TableState(LSN(9), 3),
        TableName("public", "b"): TableState(LSN(4), held="b changed its type"),
        TableName("public", "c"): TableState(LSN(4), failure="c has no folder"),
    }
    summary.show(Manifest(LSN(9)))
    summary.count_batch(0.25)
    log.on_apply(summary)
    log.on_apply(summary)
    facts = {"position": "0/9", "seconds": 0.25}
    assert logged(lines) == [
        {"event": "pass", **facts, "changes": 3, "tables": 1},
        {
            "event": "held",
            "schema": "public",
            "table": "b",
            "applied": "0/4",
            "sentence": "b changed its type",
        },
        {
            "event": "failed",
            "schema": "public",
            "table": "c",
            "applied": "0/4",
            "sentence": "c has no folder",
        },
    ]
    summary.tables[TableName("public", "a")].changes = 5
    summary.tables[TableName("public", "c")] = TableState(LSN(9))
    summary.count_batch(0.25)
    log.on_apply(summary)
    assert logged(lines) == [
        {"event": "pass", **facts, "changes": 2, "tables": 1},
        {"event": "resumed", "schema": "public", "table": "c", "applied": "0/9"},
    ]


class Closed(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_maintenance_is_logged_as_done_and_a_failure_once_for_each_reason() -> None:
    lines = io.StringIO()
    log, ingest, apply = RunLog("shop", "run", lines), IngestSummary("shop", "slot"), ApplySummary("shop")
    ingest.maintenance.count(Maintained("bronze/changes", NOON, 9, 30, 2, removed_log_files=7))
    for sentence in ("no space", "no space", "no file"):
        apply.maintenance.count(Maintained("public.t", NOON, 9, is_failed=True, sentence=sentence))
        log.on_ingest(ingest)
        log.on_apply(apply)
    done = {"merged_files": 28, "removed_files": 0, "removed_log_files": 7}
    assert logged(lines) == [
        {"event": "maintained", "tables": 1, **done},
        {"event": "maintenance failed", "path": "public.t", "sentence": "no space"},
        {"event": "maintenance failed", "path": "public.t", "sentence": "no file"},
    ]
    apply.maintenance.count(Maintained("public.t", NOON, 9, 5, 5))
    log.on_apply(apply)
    assert logged(lines) == [{"event": "maintained", "tables": 1, **dict.fromkeys(done, 0)}]
    assert apply.maintenance.failures == {}


def test_a_log_without_a_reader_ends_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    RunLog("shop", "run", Closed()).start("continuous")
    assert capsys.readouterr().err == ""


def test_a_line_is_one_object_whatever_a_name_holds() -> None:
    lines = io.StringIO()
    summary = ApplySummary("shop", tables={TableName("a\nb", "\x1b[2J %s"): TableState(held="50 %d\n")})
    summary.count_batch(0.1)
    RunLog("shop", "run", lines).on_apply(summary)
    held = logged(lines)[1]
    assert (held["schema"], held["table"], held["sentence"]) == ("a\nb", "\x1b[2J %s", "50 %d\n")


def test_the_log_is_a_logger_that_no_configuration_changes() -> None:
    lines = io.StringIO()
    before = set(logging.Logger.manager.loggerDict)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL + 1)  # as the command line does
    try:
        RunLog("shop", "run", lines).start("continuous")
    finally:
        root.setLevel(level)
    assert [line["event"] for line in logged(lines)] == ["start"]
    assert set(logging.Logger.manager.loggerDict) == before


def options(
    log: str = "json",
    metrics: Address | None = None,
    trigger: str = "available-now",
    json: bool = False,
) -> WatchOptions:
    return WatchOptions(trigger, metrics, log, json)


def test_a_failed_run_ends_with_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SystemExit) as ended, Observers(CONFIG, options(), "apply"):
        raise ConfigError("no such table")
    assert ended.value.code == 2
    start, end = map(json.loads, capsys.readouterr().err.splitlines())
    assert (start["event"], start["command"]) == ("start", "apply")
    assert {k: end[k] for k in ("event", "exit_code", "sentence")} == {
        "event": "end",
        "exit_code": 2,
        "sentence": "no such table",
    }
    caplog.set_level(logging.DEBUG, TRACES.name)  # as --debug does
    with pytest.raises(ValueError, match="geheim"), Observers(CONFIG, options(), "apply"):
        raise ValueError("geheim")
    assert "geheim" not in capsys.readouterr().err


def test_a_completed_run_logs_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with Observers(CONFIG, options(), "apply") as observers:
        observers.on_apply(ApplySummary("shop"))
    assert observers.end(1) == 1
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["exit_code"] == 1


def test_text_is_what_it_was_and_leaves_errors_alone(capsys: pytest.CaptureFixture[str]) -> None:
    observers = Observers(CONFIG, options("text"), "ingest")
    with observers:
        observers.on_ingest(IngestSummary("shop", "slot"))
    assert observers.end(0) == 0
    with pytest.raises(LakeError, match="no lake"), observers:
        raise LakeError("no lake")
    assert capsys.readouterr().err == ""


def report_alerts(options: WatchOptions) -> None:
    summary = ApplySummary("shop")
    with Observers(CONFIG, options, "apply") as observers:
        for state in (
            TableState(LSN(4), held="public.b is held: a type"),
            TableState(LSN(4), held="public.b is held: a type"),
            TableState(LSN(4), held="public.b is held: two types"),
            TableState(LSN(4), failure="it has\nno folder"),
            TableState(LSN(9)),
        ):
            summary.tables = {
                TableName("public", "a"): TableState(LSN(9), 3),
                TableName("public", "b"): state,
            }
            summary.count_batch(0.25)
            observers.on_apply(summary)


def test_a_continuous_run_prints_its_alerts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report_alerts(options("text", trigger="continuous"))
    assert capsys.readouterr().err.splitlines() == [
        "held: public.b is held: a type",
        "held: public.b is held: two types",
        "failed: public.b: it has\\nno folder",
        "resumed: public.b",
    ]
    # Other runs have it in their closing lines, or in a result as data.
    report_alerts(options("text"))
    report_alerts(options("text", trigger="continuous", json=True))
    assert capsys.readouterr().err == ""


def test_a_port_that_is_taken_ends_the_run_before_it_begins() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with (
            pytest.raises(EndpointError, match="is in use"),
            Observers(CONFIG, options("text", address), "run"),
        ):
            pytest.fail("it began")
