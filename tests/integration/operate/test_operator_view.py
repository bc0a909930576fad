"""The operator's view of a real pipeline: lags, rows of the last day, the slot, metrics and log of a run."""

import json
import time
import urllib.request
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from pipeline.bronze.activity import Mark, read_activity
from pipeline.bronze.log import Bronze
from pipeline.cli.options import Address
from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError
from pipeline.postgres.embedded import find_free_port
from pipeline.report.observers import Observers, WatchOptions
from pipeline.report.status import read_details, read_status
from pipeline.report.status_page import Status, TableStatus
from pipeline.table_name import TableName
from tests.support.pages import render
from tests.support.pipelines import Pipeline
from tests.support.running import running_both
from tests.support.web_pages import Element, parse_page

DAY = timedelta(days=1)


def status(pipeline: Pipeline) -> Status:
    return read_status(pipeline.config)


def tables(found: Status) -> dict[str, TableStatus]:
    return {table.name[1]: table for table in found.tables}


@pytest.mark.promise("lag")
def test_status_shows_lags_rows_and_slot_and_leaves_them_in_the_lake(pipeline: Pipeline) -> None:
    pipeline.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE day (id int PRIMARY KEY, d date)"
    )
    rule = TableRule("public.day", misfit="error")
    pipeline = replace(pipeline, config=replace(pipeline.config, tables=(rule, TableRule("*.*"))))
    pipeline.ingest()
    before = time.time()
    pipeline.run("INSERT INTO t SELECT g, g FROM generate_series(1, 5) g", "INSERT INTO day VALUES (1, NULL)")
    pipeline.catch_up()
    pipeline.ingest(
        "INSERT INTO day VALUES (2, 'infinity')",
        "UPDATE t SET v = 0 WHERE id < 3",
        "DELETE FROM t WHERE id = 5",
        "TRUNCATE t",
    )
    pipeline.apply(records_status=True)

    far = replace(pipeline.config.source, conninfo="host=127.0.0.1 port=1 dbname=shop password=geheim")
    offline = status(replace(pipeline, config=replace(pipeline.config, source=far)))
    assert (offline.source, offline.rate) == (None, None)
    assert "source: Cannot connect" in render(offline.print, 400)
    assert "geheim" not in render(offline.print, 400) + json.dumps(offline.as_json())
    day, t = tables(offline)["day"], tables(offline)["t"]
    assert (t.state, t.lag_seconds, t.lag_bytes) == ("current", 0.0, 0)
    assert t.operations == {"I": 5, "U": 2, "D": 1, "T": 1}
    assert (day.state, day.operations["I"]) == ("refused", 2)
    assert day.lag_bytes == offline.captured - day.applied > 0
    assert day.lag_seconds is not None
    shown = pipeline.frame("bronze", "changes").where(f"end_lsn <= {int(day.applied)}")
    [newest] = shown.selectExpr("max(commit_time)").collect()
    assert day.commit_time == newest[0].astimezone(timezone.utc)
    assert 0 < day.lag_seconds < time.time() - before

    rows = {row.table_name: row for row in pipeline.frame("_pgdelta", "status").collect()}
    assert rows.keys() == {"t", "day"}
    assert (rows["t"].state, rows["t"].applied_lsn, rows["t"].lag_seconds) == ("current", t.applied, 0.0)
    assert (rows["day"].state, rows["day"].lag_bytes) == ("refused", day.lag_bytes)
    assert (rows["day"].sentence, rows["day"].misfits) == (day.sentence, 0)
    assert rows["day"].captured_lsn == rows["t"].captured_lsn == offline.captured
    pipeline.run("INSERT INTO t SELECT g, g FROM generate_series(1, 1000) g")
    end = pipeline.database.flush_lsn()
    online = status(pipeline)
    assert online.source is not None
    assert online.source.slot is not None
    assert online.source.wal_lsn >= end
    t = tables(online)["t"]
    assert t.lag_bytes == online.source.wal_lsn - t.applied > 50_000
    assert t.lag_seconds is not None
    assert 0 < t.lag_seconds < time.time() - before
    said = online.as_json()
    assert json.loads(json.dumps(said)) == said
    assert said["lag_behind"] == "source"
    assert said["tables"][1]["last_day"] == {"inserts": 5, "updates": 2, "deletes": 1, "truncates": 1}
    assert said["source"]["slot"]["wal_status"] == "reserved"
    assert said["source"]["slot"]["retained_bytes"] > 50_000
    page = render(online.print, 400)
    assert f"slot {pipeline.config.source.slot}: not active" in page
    assert "max_slot_wal_keep_size is unlimited" in page
    assert "5 I, 2 U, 1 D, 1 T" in page
    assert f"{pipeline.config.pipeline}: 2 tables: 1 refused, 1 current" in page

    found = read_details(pipeline.config, ["*.day"])
    [details] = found.tables
    assert [(c.name, c.silver_type, c.source_type, c.is_key) for c in details.columns] == [
        ("id", "INT", "int4", True),
        ("d", "DATE", "date", False),
        ("_commit_lsn", "BIGINT", None, False),
        ("_commit_time", "TIMESTAMP", None, False),
    ]
    assert details.path is not None
    assert details.path.endswith("/silver/public/day")
    assert found.is_held
    assert json.loads(json.dumps(found.as_json()))["tables"][0]["last_event"]["kind"] == "refused"
    assert f"version {details.table.version}, {details.path}" in render(found.print, 400)
    with pytest.raises(ConfigError, match=r"No table of the lake .* matches nothing\.\*"):
        read_details(pipeline.config, ["nothing.*"])

    assert online.rate is None or online.rate > 0
    bronze = Bronze(Lake(pipeline.root, pipeline.spark), pipeline.config.pipeline)
    point = bronze.captured_offset()
    assert point is not None
    now = datetime.now(timezone.utc)
    soon = read_activity(bronze, point, [], now + timedelta(minutes=30))
    old = read_activity(bronze, point, [day.applied], now + 2 * DAY)
    [first] = shown.selectExpr("min(commit_lsn)").collect()[0]
    assert isinstance(soon.since, Mark)
    assert soon.since.lsn == first
    assert soon.operations[TableName("public", "t")] == t.operations
    assert (old.operations, old.commit_times[day.applied] <= newest[0].astimezone(timezone.utc)) == ({}, True)
    assert old.since is not None
    assert old.since.lsn == online.applied


@pytest.mark.promise("metrics and logs")
def test_a_continuous_run_is_watched(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    port, page_port = find_free_port(), find_free_port()
    http = Address("127.0.0.1", page_port)
    options = WatchOptions("continuous", Address("127.0.0.1", port), "json", http=http)

    def scrape() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def load(path: str) -> Element:
        with urllib.request.urlopen(f"http://127.0.0.1:{page_port}{path}", timeout=60) as answer:
            return parse_page(answer.read().decode())

    def wait_for(name: str, least: float) -> dict[str, float]:
        deadline = time.monotonic() + 300
        while (found := scrape()).get(name, -1.0) < least:
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
        return found

    of = f'{{pipeline="{pipeline.config.pipeline}"'
    of_t = f'{of},schema="public",table="t"}}'
    with (
        Observers(pipeline.config, options, "run") as observers,
        running_both(pipeline.config, ingest_progress=observers.on_ingest, apply_progress=observers.on_apply),
    ):
        wait_for(f"pgdelta_captured_lsn{of}}}", 1)
        pipeline.run("INSERT INTO t VALUES (1, 'geheim'), (2, 'geheim')", "DELETE FROM t WHERE id = 1")
        wait_for(f"pgdelta_table_changes_total{of_t}", 3)
        wait_for(f"pgdelta_captured_changes_total{of}}}", 3)  # apply may be faster than the acknowledgement
        found = wait_for(f"pgdelta_apply_pass_seconds_count{of}}}", 1)
        while found[f"pgdelta_applied_lsn{of}}}"] < found[f"pgdelta_table_applied_lsn{of_t}"]:
            found = scrape()  # silver as a whole comes after its tables
        assert found[f"pgdelta_captured_changes_total{of}}}"] == 3
        assert found[f"pgdelta_captured_transactions_total{of}}}"] >= 2
        end = int(pipeline.database.flush_lsn())  # servers write WAL at rest, too
        assert found[f"pgdelta_table_applied_lsn{of_t}"] == found[f"pgdelta_applied_lsn{of}}}"] <= end
        assert found[f"pgdelta_table_failed{of_t}"] == found[f"pgdelta_table_held{of_t}"] == 0
        page = load("/")
        assert page.by_id("headline").text.endswith("of 1 table.")
        assert "active" in page.by_id("slot").text
        [link] = page.by_id("tables").every("a")
        table = load(f"/{link.attributes['href']}")
        assert "First version: id int4, v text." in table.by_id("schema").text
        assert "INT" in table.by_id("columns").text
        assert "geheim" not in page.text + table.text
        assert pipeline.database.conninfo not in page.text + table.text
        for name in ("captured", "applied"):
            assert abs(found[f"pgdelta_{name}_commit_timestamp_seconds{of}}}"] - time.time()) < 120
        assert found[f"pgdelta_apply_pass_seconds_count{of}}}"] >= 1
    assert observers.end(0) == 0
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    events = [line["event"] for line in said]
    assert (events[0], events[-1]) == ("start", "end")
    assert sum(line["changes"] for line in said if line["event"] == "commit") == 3
    assert sum(line["changes"] for line in said if line["event"] == "pass") == 3
    assert "geheim" not in json.dumps(said)
    assert pipeline.database.conninfo not in json.dumps(said)
    assert [row.table_name for row in pipeline.frame("_pgdelta", "status").collect()] == ["t"]
