"""OpenLineage events: valid by the published schemas, named by its rules, and never in the way of a run."""

import json
import logging
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from jsonschema import ValidationError

from pipeline.config.lineage import Lineage
from pipeline.config.load import load_text
from pipeline.delta.schema import TableSchema
from pipeline.errors import NOTICES, ConfigError, LakeError
from pipeline.metadata.registry import RegisteredColumn, RegisteredTable
from pipeline.progress import ApplySummary, IngestSummary, TableState
from pipeline.protected_columns import ProtectedColumn
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.report import lineage_sender
from pipeline.report.capsule import known_secrets, public_configuration
from pipeline.report.lineage import LineageJob, SourceServer, lake_dataset, position, written
from pipeline.report.lineage_sender import LineageSender
from pipeline.report.observers import Observers, WatchOptions
from pipeline.table_name import TableName
from tests.support.lineage import validate
from tests.support.native_lakes import NativeLake
from tests.support.webhooks import receiver

NOW = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
JOB = LineageJob("pgdelta", "shop.apply", "01890000-0000-7000-8000-000000000000")
SERVER = SourceServer("postgres://db:5432", "shop")
HEAD = 'pipeline: shop\nsource: {conninfo: "dbname=shop"}\nstorage: {root: ./lake}\n'
TABLE = RegisteredTable(
    "public",
    "people",
    "file:/lake/silver/public/people",
    7,
    (
        RegisteredColumn("id", "id", 1, "id", 23, -1, True),
        RegisteredColumn("full_name", "full_name", 2, "name", 25, -1),
        RegisteredColumn("Name", "Name__3", 3, "Name__3", 25, -1),
        RegisteredColumn("email", "email", 4, "email", 25, -1),
        RegisteredColumn("card", "card", 5, "card", 25, -1),
        RegisteredColumn("gone", "gone", 6, "gone", None, None),
    ),
    protected=(
        ProtectedColumn("email", "email", 4, "hmac-sha256 0123abcd"),
        ProtectedColumn("card", "card", 5, "mask text do not tell"),
    ),
)


def test_events_and_facets_are_valid_by_the_published_schemas() -> None:
    at = position(LSN(1000), NOW)
    columns = SERVER.column_lineage(TABLE)
    outputs = [written(TABLE.path, TableSchema.of_ddl("id INT, tags ARRAY<STRING>"), 3, at, columns)]
    inputs = [SERVER.table(TABLE.name, [("id", "int4")]), lake_dataset("s3://b/lake/bronze/changes")]
    for kind in ("START", "RUNNING", "COMPLETE", "FAIL", "ABORT"):
        failure = "Table t failed." if kind == "FAIL" else None
        event = JOB.event(kind, NOW, position=at, inputs=inputs, outputs=outputs, failure=failure)
        validate(event)
        assert event["eventTime"].startswith("2026-01-31T12:00:00")
    with pytest.raises(ValidationError):
        validate({**event, "eventType": "DONE"})
    del event["run"]["facets"]["pgdelta_position"]["lsn"]
    with pytest.raises(ValidationError):
        validate(event)


def test_columns_keep_their_origin_when_renamed_and_say_when_masked() -> None:
    fields = SERVER.column_lineage(TABLE)["fields"]
    assert list(fields) == ["id", "full_name", "Name__3", "email", "card"]
    origins = {name: each["inputFields"][0]["field"] for name, each in fields.items()}
    assert origins["Name__3"] == "Name"
    changes = {name: each["inputFields"][0]["transformations"][0] for name, each in fields.items()}
    assert {name: change["masking"] for name, change in changes.items() if change["masking"]} == {
        "email": True,
        "card": True,
    }
    assert (changes["email"]["description"], changes["card"]["description"]) == ("hmac-sha256", "mask text")


@pytest.mark.parametrize(
    ("conninfo", "environ", "expected"),
    [
        ("host=db port=5433 dbname=shop", {}, ("postgres://db:5433", "shop")),
        ("postgresql://app@db:5433/shop", {}, ("postgres://db:5433", "shop")),
        ("postgresql://db/shop", {}, ("postgres://db:5432", "shop")),
        ("host=/run/postgresql user=app", {}, ("postgres://localhost:5432", "app")),
        ("", {"PGHOST": "db", "PGPORT": "6000", "PGDATABASE": "d"}, ("postgres://db:6000", "d")),
        ("host=a,b port=1,2 dbname=d password=secret", {}, ("postgres://a:1", "d")),
    ],
)
def test_a_server_is_named_as_openlineage_does(
    conninfo: str, environ: dict[str, str], expected: tuple[str, str]
) -> None:
    found = SourceServer.of(conninfo, environ)
    assert (found.namespace, found.database) == expected
    assert found.table(TableName("s", "t"))["name"] == f"{expected[1]}.s.t"


@pytest.mark.parametrize(
    ("path", "namespace", "name"),
    [
        ("file:/a lake/x#1?/t", "file", "/a lake/x#1?/t"),
        ("/lake/t", "file", "/lake/t"),
        ("s3a://bucket/lake/t", "s3://bucket", "lake/t"),
        ("gs://bucket/lake/t", "gs://bucket", "lake/t"),
        ("hdfs://host:8020/lake/t", "hdfs://host:8020", "/lake/t"),
        ("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net", "/t"),
    ],
)
def test_a_table_of_the_lake_is_named_by_its_place(path: str, namespace: str, name: str) -> None:
    found = lake_dataset(path)
    assert (found["namespace"], found["name"]) == (namespace, name)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ("{url: 'http://user@h/'}", "has a user before the host"),
        ("{url: h}", "Not an address of the form"),
        ("{api_key: abc}", "Put it into a variable"),
        ("{transport: http}", "Unknown key"),
        ("{interval: 0}", "lineage.interval"),
        ("{interval: 0s}", "Expected forever, or a time"),
    ],
)
def test_a_mistake_of_the_section_is_named(section: str, sentence: str) -> None:
    assert not load_text(HEAD, "shop.yaml", {}).lineage.is_on
    with pytest.raises(ConfigError, match=sentence):
        load_text(f"{HEAD}lineage: {section}\n", "shop.yaml", {})


@pytest.fixture
def lake(tmp_path: Path) -> NativeLake:
    return NativeLake(tmp_path / "lake", 2)


def watched(lake: NativeLake, settings: Lineage, error: BaseException | None = None) -> None:
    """Let the observers see a run that wrote to the first table, or that ended with an error."""
    config = replace(lake.config, lineage=settings)
    with Observers(config, WatchOptions(), "run") as watch:
        watch.on_ingest(IngestSummary("p", "p", LSN(1008), changes=40))
        summary = ApplySummary("p", LSN(1008), {lake.names[0]: TableState(LSN(1008), changes=20)})
        watch.on_apply(summary)
        if error is not None:
            raise error


def events_of(file: Path) -> dict[tuple[str, str], dict[str, Any]]:
    events = [json.loads(line) for line in file.read_text().splitlines()]
    for event in events:
        validate(event)
    return {(event["job"]["name"], event["eventType"]): event for event in events}


def test_a_run_says_what_it_read_and_wrote(lake: NativeLake, tmp_path: Path) -> None:
    file = tmp_path / "lineage.jsonl"
    watched(lake, Lineage(str(file)))
    events = events_of(file)
    assert list(events) == [
        ("p.ingest", "START"),
        ("p.apply", "START"),
        ("p.ingest", "COMPLETE"),
        ("p.apply", "COMPLETE"),
    ]
    ingest, apply = events["p.ingest", "COMPLETE"], events["p.apply", "COMPLETE"]
    assert [each["name"] for each in ingest["inputs"]] == ["d.public.t0000", "d.public.t0001"]
    (bronze,) = ingest["outputs"]
    assert bronze["outputFacets"]["outputStatistics"]["rowCount"] == 40
    assert [(each["namespace"], each["name"]) for each in apply["inputs"]] == [
        (bronze["namespace"], bronze["name"]),
        ("postgres://127.0.0.1:1", "d.public.t0000"),
    ]
    (silver,) = apply["outputs"]
    assert silver["name"] == f"{lake.root}/silver/public/t0000"
    assert silver["facets"]["pgdelta_position"]["lsn"] == "0/3F0"
    assert set(silver["facets"]["columnLineage"]["fields"]) == {"id", "name"}
    assert silver["outputFacets"]["outputStatistics"]["rowCount"] == 20


@pytest.mark.parametrize(
    ("error", "kind"), [(LakeError("There is no lake."), "FAIL"), (KeyboardInterrupt(), "ABORT")]
)
def test_a_run_that_fails_or_is_ended_says_so(
    lake: NativeLake, tmp_path: Path, error: BaseException, kind: str
) -> None:
    file = tmp_path / "lineage.jsonl"
    with pytest.raises(type(error)):
        watched(lake, Lineage(str(file)), error)
    facets = events_of(file)["p.apply", kind]["run"]["facets"]
    assert facets.get("errorMessage", {}).get("message") == ("There is no lake." if kind == "FAIL" else None)


def notices_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == NOTICES.name]


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Any:
    """Hear the notices, which do not propagate."""
    NOTICES.addHandler(caplog.handler)
    yield caplog
    NOTICES.removeHandler(caplog.handler)


def test_a_receiver_that_refuses_or_is_gone_is_named_once(
    lake: NativeLake, heard: pytest.LogCaptureFixture
) -> None:
    with heard.at_level(logging.INFO), receiver() as found:
        found.code = 500
        watched(lake, Lineage(url=found.url))
        assert found.attempts == 4
        (sentence,) = notices_of(heard)
        assert "The receiver at lineage.url did not accept an event: it answered 500. It is lost." in sentence
        assert "planted-secret" not in sentence
        found.code = 201
        watched(lake, Lineage(url=found.url))
    assert [body["eventType"] for body in found.bodies] == ["START", "START", "COMPLETE", "COMPLETE"]
    heard.clear()
    watched(lake, Lineage("/no/such/folder/x"))
    assert notices_of(heard) == [
        "lineage: An event was not written to lineage.path: No such file or directory. It is lost. The run "
        "goes on, and sends its next event."
    ]


def test_a_receiver_that_hangs_delays_only_the_end_and_not_for_long(
    lake: NativeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_sender, "END_SECONDS", 0.2)
    with receiver() as found:
        found.hangs = threading.Event()
        config = replace(lake.config, lineage=Lineage(url=found.url))
        began = time.monotonic()
        sender = LineageSender(config, "run", is_continuous=False)
        sender.on_ingest(IngestSummary("p", "p", INVALID))
        assert time.monotonic() - began < 0.15
        sender.finish(None)
        assert time.monotonic() - began < 2
        found.hangs.set()


def test_a_continuous_run_sends_an_event_an_interval_if_it_has_news(lake: NativeLake, tmp_path: Path) -> None:
    file = tmp_path / "lineage.jsonl"
    config = replace(lake.config, lineage=Lineage(str(file), interval=1))
    sender = LineageSender(config, "ingest", is_continuous=True)
    summary = IngestSummary("p", "p", LSN(1008), changes=1)
    sender.on_ingest(summary)
    time.sleep(2.5)
    sender.finish(None)
    kinds = [json.loads(line)["eventType"] for line in file.read_text().splitlines()]
    assert kinds == ["START", "RUNNING", "COMPLETE"]


def test_the_key_and_the_address_are_in_no_capsule_and_no_text() -> None:
    section = "lineage: {url: 'http://h/planted', api_key: '${KEY}', path: x}\n"
    config = load_text(HEAD + section, "shop.yaml", {"KEY": "planted-0123456789"})
    assert public_configuration(config)["lineage"] == {
        "path": "x",
        "url": "set",
        "api_key": "set",
        "namespace": "pgdelta",
        "interval": 300,
    }
    assert {"planted-0123456789", "http://h/planted"} <= set(known_secrets(config, {}))
    assert "0123456789" not in repr(config)


def test_without_the_section_nothing_of_it_is_imported() -> None:
    program = (
        "import sys\n"
        "from pipeline.config.load import load_text\n"
        "from pipeline.report.observers import Observers, WatchOptions\n"
        f"config = load_text({HEAD!r}, 'x', {{}})\n"
        "with Observers(config, WatchOptions(), 'run'): pass\n"
        "assert not [name for name in sys.modules if 'report.lineage' in name or 'openlineage' in name]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
