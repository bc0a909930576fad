"""The rules of alerts over made-up statuses: what each finds, what turns it off, and what is not known."""

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from pipeline.config.alerts import Alerting
from pipeline.metadata.events import Event
from pipeline.metadata.maintenance import Maintained
from pipeline.postgres.replication.wal_holder import WalHolder
from pipeline.protocol.lsn import INVALID
from pipeline.report.alert_rules import EXIT_CODE, RULES, AlertFacts, Alerts, find_alerts
from pipeline.report.status_page import Status, TableStatus
from pipeline.table_name import TableName
from tests.support.statuses import MIB, NOON, current_table, shop_source, shop_status

T = TableName("public", "t")
HOLDER = WalHolder("The open transaction of PID 7 keeps the slot back. End it.", 884 * MIB, "app", 7)
ALL = ("held", "failed", "unpublished", "slot", "lag > 1 h", "wal > 1 GB")


def quiet(**changes: Any) -> Status:
    """Return the status of a pipeline with nothing to report: one current table, a slot that is read."""
    return replace(shop_status(), **{"tables": (current_table(T),), **changes})


def facts(status: Status | None = None, **changes: Any) -> AlertFacts:
    settings = {
        "settings": Alerting(on=ALL),
        "captured_at": NOON - timedelta(seconds=30),
        "applied_at": NOON - timedelta(seconds=40),
        "copy_failures": {},
    }
    return AlertFacts(status or quiet(), now=NOON, **{**settings, **changes})


def table(state: str, sentence: str | None = None, **changes: Any) -> Status:
    return quiet(tables=(replace(current_table(T), state=state, sentence=sentence, **changes),))


def slot(**changes: Any) -> Status:
    source = shop_source()
    assert source.slot is not None
    return quiet(source=replace(source, slot=replace(source.slot, **changes)))


def idle(**duration: float) -> Status:
    """Return the status of a slot without a reader for some time, which is lost after an hour."""
    status = slot(active_pid=None, inactive_since=ago(**duration))
    assert status.source is not None
    return replace(status, source=replace(status.source, idle_timeout=timedelta(hours=1)))


def ago(**duration: float) -> datetime:
    return NOON - timedelta(**duration)


def test_nothing_is_reported_of_a_pipeline_that_is_well() -> None:
    found = find_alerts(facts())
    assert found == Alerts("shop", [], set())
    assert (found.lines(), found.exit_code(False)) == ([], 0)


CASES: dict[str, Callable[[], AlertFacts]] = {
    "held": lambda: facts(table("held", "Table public.t is held: a type. Run pgdelta rebuild.")),
    "resync": lambda: facts(
        table("behind", "A gap. Run pgdelta resync.", event=Event(*T, INVALID, "resync", ""))
    ),
    "doubt": lambda: facts(table("in doubt", "Table public.t was rewritten. Run pgdelta resync.")),
    "failed": lambda: facts(table("failed", "No space left on device.")),
    "copy": lambda: facts(copy_failures={T: "The role may not read it."}),
    "maintenance": lambda: facts(
        quiet(maintenance={"public.t": Maintained("public.t", NOON, 3, is_failed=True, sentence="No space.")})
    ),
    "unpublished": lambda: facts(table("unpublished", "public.t matches and is not published.")),
    "slot_missing": lambda: facts(quiet(source=replace(shop_source(), slot=None))),
    "slot_lost": lambda: facts(slot(wal_status="lost", invalidation_reason="wal_removed")),
    "slot_limit": lambda: facts(quiet(source=shop_source(safe=100 * MIB))),
    "source_restored": lambda: facts(quiet(source=replace(shop_source(), refusal="It is another one."))),
    "slot_idle": lambda: facts(idle(minutes=50)),
    "slot_unread": lambda: facts(slot(active_pid=None), captured_at=ago(hours=2)),
    "slot_held": lambda: facts(quiet(source=replace(shop_source(), holder=HOLDER))),
    "wal": lambda: facts(settings=Alerting(on=("wal > 100 MB",))),
    "capture": lambda: facts(captured_at=ago(hours=2)),
    "apply": lambda: facts(pending={T: 7200.0}, applied_at=ago(hours=3)),
    "lag": lambda: facts(pending={T: 7200.0}),
}


def test_each_rule_has_a_case() -> None:
    assert CASES.keys() == {rule.name for rule in RULES}


@pytest.mark.promise("alerts")
@pytest.mark.parametrize("name", CASES)
def test_a_rule_finds_only_its_case_and_states_what_to_do(name: str) -> None:
    case = CASES[name]()
    [found] = find_alerts(case).found
    assert found.rule == name
    assert found.sentence.endswith(".")
    assert found.table in (None, T)
    assert found.table is None or str(T) in found.sentence
    others = tuple(each for each in ALL if each.partition(" ")[0] != found.kind)
    elsewhere = find_alerts(replace(case, settings=Alerting(on=others)))
    assert name not in {each.rule for each in elsewhere.found}
    alerts = find_alerts(case)
    assert alerts.exit_code(False) == EXIT_CODE == 3
    assert alerts.lines() == [f"{found.kind}: {found.sentence}"]
    assert alerts.as_json()["alerts"] == [found.as_json()]


def test_a_slot_may_rest_for_most_of_its_timeout() -> None:
    assert not find_alerts(facts(idle(minutes=45))).found


def test_who_holds_the_wal_is_one_alert() -> None:
    both = Alerting(on=("slot", "wal > 100 MB"))
    status = quiet(source=replace(shop_source(), holder=HOLDER))
    [found] = find_alerts(facts(status, settings=both)).found
    assert found.rule == "slot_held"
    [found] = find_alerts(facts(status, settings=Alerting(on=("wal > 100 MB",)))).found
    assert (found.rule, found.sentence) == ("wal", HOLDER.sentence)


@pytest.mark.parametrize("state", ["paused", "copying", "detached", "current", "behind"])
def test_a_table_that_waits_for_no_person_is_no_alert(state: str) -> None:
    assert not find_alerts(facts(table(state, "A sentence."))).found


def test_a_refused_table_is_held() -> None:
    [found] = find_alerts(facts(table("refused", "2 values do not fit."))).found
    assert (found.kind, found.table, found.key) == ("held", T, "held public.t")


def test_a_table_that_awaits_a_requested_copy_is_no_alert() -> None:
    event = Event(*T, INVALID, "resync", "")
    assert not find_alerts(facts(table("behind", "A gap.", event=event, awaits_copy=True))).found


def test_a_source_without_changes_needs_no_ingest() -> None:
    status = quiet(captured=shop_source().wal_lsn)
    assert not find_alerts(facts(status, captured_at=ago(days=9))).found


def test_an_unreachable_source_alerts_after_the_limit_with_unknown_slot() -> None:
    status = quiet(source=None, rate=None, unreachable="Cannot connect to host=a: refused.")
    soon = find_alerts(facts(status))
    assert not soon.found
    slot_rules = {"missing", "lost", "limit", "idle", "unread", "held"}
    assert soon.unknown == {*(f"slot_{each}" for each in slot_rules), "source_restored", "wal"}
    [found] = find_alerts(facts(status, captured_at=ago(hours=2))).found
    assert found.rule == "capture"
    assert "Cannot connect" in found.sentence
    offline = find_alerts(facts(replace(status, unreachable=None), captured_at=ago(hours=2)))
    assert (offline.found, "capture" in offline.unknown) == ([], True)


def test_only_an_ingest_knows_of_copies() -> None:
    assert find_alerts(facts(copy_failures=None)).unknown == {"copy"}


def test_an_apply_that_does_not_run_is_one_alert_not_one_for_each_table() -> None:
    names = [TableName("public", f"t{number}") for number in range(50)]
    late = dict.fromkeys(names, 7200.0)
    stopped = find_alerts(facts(pending=late, applied_at=None))
    assert [each.rule for each in stopped.found] == ["apply"]
    assert "never" in stopped.found[0].sentence
    assert stopped.unknown == {"lag"}
    assert [each.table for each in find_alerts(facts(pending=late)).found] == sorted(names)


@pytest.mark.parametrize(
    ("known", "seconds", "is_found"),
    [((), 3000, 0), ((), 3601, 1), (("lag public.t",), 3000, 1), (("lag public.t",), 1800, 0)],
)
def test_an_alert_of_a_limit_lasts_until_half_of_it(
    known: Collection[str], seconds: float, is_found: int
) -> None:
    assert len(find_alerts(facts(pending={T: seconds}, known=known)).found) == is_found


def test_without_a_limit_of_lag_no_lag_is_reported_and_the_slot_still_is() -> None:
    settings = Alerting(on=("held", "slot"))
    assert not find_alerts(facts(pending={T: 1e6}, settings=settings, applied_at=None)).found
    assert not find_alerts(facts(slot(active_pid=None), captured_at=ago(minutes=59), settings=settings)).found
    [found] = find_alerts(facts(slot(active_pid=None), captured_at=ago(minutes=61), settings=settings)).found
    assert "No job has read the slot shop for 1 h 01 min" in found.sentence


def test_an_unread_slot_is_a_capture_alert_where_only_lag_is_configured() -> None:
    settings = Alerting(on=("lag > 1 h",))
    [found] = find_alerts(facts(slot(active_pid=None), captured_at=ago(hours=2), settings=settings)).found
    assert found.rule == "capture"


def test_the_slot_is_near_its_limit_by_size_or_by_rate() -> None:
    def rules(safe: int, rate: float | None, known: Collection[str] = ()) -> list[str]:
        status = quiet(source=shop_source(safe=safe), rate=rate)
        return [each.rule for each in find_alerts(facts(status, known=known)).found]

    assert rules(5000 * MIB, None) == []
    assert rules(5000 * MIB, 2.0 * MIB) == ["slot_limit"]
    assert rules(5000 * MIB, 1.2 * MIB) == []
    assert rules(5000 * MIB, 1.2 * MIB, ["slot_limit"]) == ["slot_limit"]
    assert rules(2000 * MIB, None) == ["slot_limit"]
    assert rules(0, None) == ["slot_limit"]


def test_names_are_escaped_in_lines_and_whole_in_json() -> None:
    hostile = TableName("public", "\x1b[2J\n")
    status = quiet(tables=(TableStatus(hostile, "held", INVALID, -1, {}, f"Table {hostile} is held."),))
    alerts = find_alerts(facts(status))
    assert "\x1b" not in alerts.lines()[0]
    assert alerts.as_json()["alerts"][0]["table"] == "\x1b[2J\n"
