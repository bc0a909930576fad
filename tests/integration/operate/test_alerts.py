"""Alerts of a real pipeline: what status finds at each step, by the function and by the command."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pipeline.cli.main import main
from pipeline.config.alerts import Alerting
from pipeline.config.tables import TableRule
from pipeline.errors import GapError
from pipeline.report.alert_rules import AlertFacts, find_alerts
from pipeline.report.alerts import read_facts
from pipeline.report.observers import Observers, WatchOptions
from pipeline.table_name import TableName
from tests.support.pipelines import Pipeline
from tests.support.webhooks import Receiver, receiver

ALERTS = Alerting(on=("held", "failed", "unpublished", "slot", "lag > 5 min", "wal > 1 GB"))
DAY, T = TableName("public", "day"), TableName("public", "t")


@pytest.fixture
def hook() -> Iterator[Receiver]:
    """Give a receiver of webhooks."""
    with receiver() as found:
        yield found


@pytest.fixture
def life(pipeline: Pipeline) -> Pipeline:
    """Give a pipeline whose table `day` refuses values that are no DATE."""
    pipeline.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE day (id int PRIMARY KEY, d date)"
    )
    rules = (TableRule("public.day", misfit="error"), TableRule("*.*"))
    return replace(pipeline, config=replace(pipeline.config, tables=rules, alerts=ALERTS))


def later(life: Pipeline, **duration: float) -> AlertFacts:
    """Return the facts as they are if nothing happens for some time."""
    facts, by = read_facts(life.config), timedelta(**duration)
    pending = {name: age + by.total_seconds() for name, age in facts.pending.items()}
    return replace(facts, now=facts.now + by, pending=pending)


def without_more_wal(facts: AlertFacts) -> AlertFacts:
    """Return the facts without the WAL that other databases of the server have written since an ingest."""
    status = facts.status
    assert status.source is not None
    source = replace(status.source, wal_lsn=status.captured)
    return replace(facts, status=replace(status, source=source))


def rules(facts: AlertFacts) -> list[tuple[str, TableName | None]]:
    return [(each.rule, each.table) for each in find_alerts(facts).found]


def command(life: Pipeline, path: Path, *options: str) -> int:
    config = path / "shop.yaml"
    source = life.config.source
    config.write_text(
        f"pipeline: {life.config.pipeline}\n"
        f"source: {{conninfo: '{source.conninfo}', slot: {source.slot}, publication: {source.publication}}}\n"
        f"storage: {{root: {life.root}}}\n"
        "tables: [{source: 'public.day', misfits: {d: error}}, {source: '*.*'}]\n"
    )
    return main(["status", "--alert", "--config", str(config), *options])


def run(life: Pipeline, job: str) -> None:
    """Run a job as its command does, with what observes it."""
    with Observers(life.config, WatchOptions(json=True), job) as watch:
        if job == "ingest":
            life.ingest(progress=watch.on_ingest)
        else:
            life.apply(progress=watch.on_apply)


@pytest.mark.promise("alerts")
def test_what_needs_a_person_is_found_and_is_over_when_it_is_mended(
    life: Pipeline, tmp_path: Path, hook: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rules(later(life, days=9)) == []  # before the first run
    life.ingest()
    life.catch_up("INSERT INTO t VALUES (1, 'geheim')", "INSERT INTO day VALUES (1, NULL)")
    assert rules(later(life)) == []
    assert (command(life, tmp_path), capsys.readouterr().out) == (0, "")

    life.ingest("UPDATE t SET v = 'geheim'", "INSERT INTO day VALUES (2, 'infinity')")
    facts = later(life)
    assert facts.pending.keys() == {T, DAY}
    assert all(0 < age < 60 for age in facts.pending.values())
    assert rules(facts) == []
    late = without_more_wal(later(life, minutes=10))
    assert rules(late) == [("apply", None)]
    just_now = replace(late, applied_at=late.now)
    assert rules(just_now) == [("lag", DAY), ("lag", T)]

    life = replace(life, config=replace(life.config, alerts=replace(ALERTS, webhook=hook.url)))
    for _ in range(2):
        run(life, "apply")
    assert hook.alerts() == [("began", "held", "day")]
    assert read_facts(life.config).pending == {}
    assert rules(later(life)) == [("held", DAY)]
    assert command(life, tmp_path) == 3
    line = " ".join(capsys.readouterr().out.split())  # a narrow terminal breaks it
    assert line.startswith("held: ")
    assert line.count(": Table ") == 1
    assert "public.day" in line
    assert command(life, tmp_path, "--json") == 3
    shown = json.loads(capsys.readouterr().out)
    assert [(each["rule"], each["table"]) for each in shown["alerts"]] == [("held", "day")]
    assert "geheim" not in json.dumps(shown) + line
    assert "infinity" not in json.dumps(shown) + line

    life = replace(life, config=replace(life.config, tables=(TableRule("*.*"),)))
    for _ in range(2):
        run(life, "apply")
    assert hook.alerts()[1:] == [("over", "held", "day")]
    assert rules(later(life)) == []

    # WAL grows, and no ingest reads it
    life.run("CREATE TABLE elsewhere AS SELECT g FROM generate_series(1, 1000) g")
    assert rules(later(life, minutes=3)) == []
    [found] = find_alerts(later(life, minutes=10)).found
    assert (found.rule, found.kind) == ("slot_unread", "slot")
    assert f"No job has read the slot {life.config.source.slot} for 10 min" in found.sentence
    assert rules(replace(later(life), settings=Alerting(on=("wal > 1 kB",)))) == [("wal", None)]
    assert rules(replace(later(life), settings=Alerting(on=("wal > 1 GB",)))) == []
    offline = find_alerts(read_facts(life.config, is_offline=True))
    assert offline.found == []
    assert "slot_missing" in offline.unknown

    life.drop_slot()
    assert ("slot_missing", None) in rules(later(life))
    for _ in range(2):
        with pytest.raises(GapError, match="does not exist"):
            run(life, "ingest")
    assert set(hook.alerts()[2:]) == {("began", "job_ingest", None), ("began", "slot_missing", None)}
    assert len(hook.alerts()) == 4
    assert "geheim" not in str(hook.bodies)
    assert "infinity" not in str(hook.bodies)
