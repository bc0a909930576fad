"""Alerts are sent once when they begin and once when they are over, over failures, restarts and two jobs.

The receiver is a real server on this machine, the record a real table of a lake without Spark.
"""

import http.client
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.config.alerts import Alerting
from pipeline.config.config import Config, Source, Storage
from pipeline.delta.table import Lake
from pipeline.errors import NOTICES, EndpointError, LakeError
from pipeline.metadata.alerts import alert_table
from pipeline.report import alert_log, alert_sender
from pipeline.report.alert_rules import Alert, Alerts
from pipeline.report.alert_sender import AlertSender
from pipeline.report.webhook import check_webhook, send
from pipeline.table_name import TableName
from tests.support.threads import wait_until
from tests.support.webhooks import PATH, Receiver, receiver

T, U = TableName("public", "t"), TableName("public", "u")
HELD = Alert("held", "held", T, "Table public.t is held: a type <b>. Run pgdelta rebuild.")
FAILED = Alert("failed", "failed", U, "No space left on device.")
SLOT = Alert("slot_lost", "slot", None, "The slot shop is lost.")


class Found:
    """What the rules find, in place of a pipeline."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.unknown: set[str] = set()
        self.error: Exception | None = None
        self.known: list[str] = []

    def read(self, config: Config, **options: object) -> Alerts:
        self.known = list(options["known"])  # type: ignore[call-overload]
        if self.error is not None:
            raise self.error
        return Alerts(config.pipeline, list(self.alerts), set(self.unknown))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Found:
    """Give what the rules find, by every sender of the test."""
    found = Found()
    monkeypatch.setattr(alert_sender, "read_facts", found.read)
    monkeypatch.setattr(alert_sender, "find_alerts", lambda alerts: alerts)
    return found


@pytest.fixture
def hook() -> Iterator[Receiver]:
    """Give a receiver that accepts everything."""
    with receiver() as found:
        yield found


@pytest.fixture
def notices() -> Iterator[list[str]]:
    """Give the sentences that a run would print."""
    found: list[str] = []

    class Notices(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Notices()
    NOTICES.addHandler(handler)
    yield found
    NOTICES.removeHandler(handler)


def config(folder: Path, hook: Receiver, format: str = "json") -> Config:
    alerts = Alerting(webhook=hook.url, format="slack" if format == "slack" else "json")
    return Config("shop", Source("dbname=shop"), Storage(str(folder / "lake")), alerts=alerts)


def sender(config: Config, command: str = "apply", **options: float) -> AlertSender:
    """Return the sender of a run that ends by itself: one of a job that a scheduler starts."""
    return AlertSender(config, command, is_continuous=False, **options)


@pytest.mark.promise("alerts")
def test_repeated_jobs_send_an_alert_once_and_once_more_when_it_is_over(
    tmp_path: Path, found: Found, hook: Receiver
) -> None:
    shop = config(tmp_path, hook)
    sender(shop).check()
    assert not (tmp_path / "lake").exists()  # nothing to record
    found.alerts = [HELD, SLOT]
    for _ in range(3):
        sender(shop).finish(None)
    assert hook.alerts() == [("began", "held", "t"), ("began", "slot_lost", None)]
    assert found.known == ["held public.t", "slot_lost"]
    found.alerts = [HELD, FAILED]
    sender(shop, "ingest").finish(None)
    assert hook.alerts()[2:] == [("over", "slot_lost", None), ("began", "failed", "u")]
    found.alerts = []
    for _ in range(2):
        sender(shop).finish(None)
    assert hook.alerts()[4:] == [("over", "held", "t"), ("over", "failed", "u")]
    assert hook.requests == [(PATH, "application/json")] * len(hook.bodies)
    [began] = [each for each in hook.bodies[0]["alerts"] if each["table"] == "t"]
    assert (began["schema"], began["kind"], began["sentence"]) == ("public", "held", HELD.sentence)
    assert began["began_at"].endswith("Z") or "+00:00" in began["began_at"]
    assert began["ended_at"] is None
    assert alert_table(Lake(shop.storage)).read() == ()


def test_what_is_not_known_now_is_not_over(tmp_path: Path, found: Found, hook: Receiver) -> None:
    shop = config(tmp_path, hook)
    found.alerts = [SLOT]
    sender(shop).check()
    found.alerts, found.unknown = [], {"slot_lost"}
    sender(shop).check()
    assert hook.alerts() == [("began", "slot_lost", None)]
    found.unknown = set()
    sender(shop).check()
    assert hook.alerts()[1:] == [("over", "slot_lost", None)]


@pytest.mark.costly
def test_a_receiver_that_fails_gets_it_again_with_growing_pauses(
    tmp_path: Path, found: Found, hook: Receiver, notices: list[str]
) -> None:
    shop = config(tmp_path, hook)
    found.alerts = [HELD]
    hook.codes = [500, 503]
    sender(shop).finish(None)  # three attempts at the end of a run
    assert (hook.attempts, hook.alerts()) == (3, [("began", "held", "t")])
    assert "did not accept a message: it answered 500" in notices[0]
    assert PATH not in "".join(notices)

    found.alerts = []
    hook.code = 500
    running = AlertSender(shop, "apply", is_continuous=True, check_seconds=0.2)
    time.sleep(3.0)
    attempts = hook.attempts - 3
    assert 2 <= attempts <= 5  # after 0.2, 0.4, 0.8, 1.6 s, each at the next check
    assert len([each for each in notices if "answered 500" in each]) == 2  # once by each of the two runs
    hook.code = 200
    wait_until(lambda: len(hook.alerts()) > 1, 120)
    running.finish(None)
    assert hook.alerts()[1:] == [("over", "held", "t")]


def test_what_a_dead_receiver_missed_the_next_run_sends(
    tmp_path: Path, found: Found, notices: list[str]
) -> None:
    found.alerts = [HELD]
    with receiver() as dead:
        shop = config(tmp_path, dead)
    sender(shop).finish(None)
    assert "Connection refused" in notices[0]
    assert PATH not in "".join(notices)
    [row] = alert_table(Lake(shop.storage)).read()
    assert row.sent_at is None
    with receiver() as hook:
        again = sender(config(tmp_path, hook))
        again.check()  # the claim of the run before has not expired
        assert hook.alerts() == []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(alert_log, "CLAIM", alert_log.CLAIM * 0)
            again.check()
        assert hook.alerts() == [("began", "held", "t")]


@pytest.mark.promise("alerts")
def test_a_receiver_that_hangs_delays_the_end_of_a_job_by_seconds_only(
    tmp_path: Path, found: Found, hook: Receiver
) -> None:
    hook.hangs = threading.Event()
    found.alerts = [HELD]
    shop = config(tmp_path, hook)
    begin = time.monotonic()
    sender(shop, end_seconds=1.0).finish(None)
    assert time.monotonic() - begin < 4
    running = AlertSender(shop, "apply", is_continuous=True, check_seconds=0.1, end_seconds=1.0)
    time.sleep(0.5)
    begin = time.monotonic()
    running.finish("a failure")
    assert time.monotonic() - begin < 4
    assert hook.alerts() == []


def test_a_job_that_fails_is_an_alert_until_a_run_works(tmp_path: Path, found: Found, hook: Receiver) -> None:
    shop = config(tmp_path, hook)
    for _ in range(3):
        sender(shop, "ingest").finish("Cannot connect to host=a: refused.")
    sender(shop, "apply").finish(None)  # knows nothing of ingest
    assert hook.alerts() == [("began", "job_ingest", None)]
    assert hook.bodies[0]["alerts"][0]["sentence"] == (
        "pgdelta ingest failed: Cannot connect to host=a: refused."
    )
    sender(shop, "ingest").finish(None)
    assert hook.alerts()[1:] == [("over", "job_ingest", None)]


def test_a_job_that_fails_is_reported_even_if_the_status_cannot_be_read(
    tmp_path: Path, found: Found, hook: Receiver
) -> None:
    found.alerts = [HELD]
    shop = config(tmp_path, hook)
    sender(shop).check()
    found.error = LakeError("The log is damaged. Restore it.")
    sender(shop).finish("The log is damaged. Restore it.")
    assert hook.alerts() == [("began", "held", "t"), ("began", "job_apply", None)]


@pytest.mark.promise("alerts")
def test_two_jobs_that_find_the_same_at_once_send_it_once(
    tmp_path: Path, found: Found, hook: Receiver
) -> None:
    shop = config(tmp_path, hook)
    found.alerts = [Alert("held", "held", TableName("public", f"t{number}"), "A.") for number in range(60)]
    barrier = threading.Barrier(4)

    def check(command: str) -> None:
        mine = sender(shop, command)
        barrier.wait()
        mine.finish(None)

    jobs = [threading.Thread(target=check, args=(name,)) for name in ("ingest", "apply", "run", "apply")]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    sender(shop).check()
    assert sorted(hook.alerts()) == sorted(("began", "held", f"t{number}") for number in range(60))
    assert [len(body["alerts"]) for body in hook.bodies] == [50, 10]


def test_an_alert_that_is_over_before_it_was_sent_is_never_sent(
    tmp_path: Path, found: Found, hook: Receiver
) -> None:
    shop = config(tmp_path, hook)
    hook.code, found.alerts = 500, [HELD]
    mine = sender(shop)
    with pytest.raises(EndpointError):
        mine.check()
    hook.code, found.alerts = 200, []
    mine.check()
    assert (hook.alerts(), alert_table(Lake(shop.storage)).read()) == ([], ())


def test_slack_gets_lines_of_text_with_its_signs_escaped(
    tmp_path: Path, found: Found, hook: Receiver
) -> None:
    shop = config(tmp_path, hook, "slack")
    found.alerts = [HELD, Alert("held", "held", U, "Two\nlines & \x1b[31m.")]
    sender(shop).check()
    found.alerts = []
    sender(shop).check()
    assert [body.keys() for body in hook.bodies] == [{"text"}, {"text"}]
    assert hook.bodies[0]["text"].splitlines() == [
        ":rotating_light: shop: held: Table public.t is held: a type &lt;b&gt;. Run pgdelta rebuild.",
        ":rotating_light: shop: held: Two\\nlines &amp; \\x1b[31m.",
    ]
    assert hook.bodies[1]["text"].startswith(":white_check_mark: shop: over: held: Table public.t")


@pytest.mark.parametrize("code", [301, 302, 307, 404, 500])
def test_a_redirect_or_error_is_no_answer_and_no_error_has_the_address(hook: Receiver, code: int) -> None:
    hook.code = code
    with pytest.raises(EndpointError, match=f"it answered {code}") as error:
        send(Alerting(webhook=hook.url), {"alerts": []})
    assert hook.attempts == 1
    assert PATH not in str(error.value)
    assert str(hook.port) not in str(error.value)


def test_other_failures_have_a_sentence_without_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "http://planted-secret.invalid/x"
    for error in (http.client.BadStatusLine("planted-secret"), ConnectionResetError(), TimeoutError()):

        def fail(*arguments: object, _error: Exception = error, **options: object) -> None:
            raise _error

        monkeypatch.setattr("urllib.request.OpenerDirector.open", fail)
        with pytest.raises(EndpointError) as raised:
            send(Alerting(webhook=secret), {"alerts": []})
        assert "planted-secret" not in str(raised.value)
        assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_a_test_message_is_a_check(tmp_path: Path, hook: Receiver) -> None:
    assert check_webhook(config(tmp_path, hook)).ok
    assert hook.alerts() == [("began", "test", None)]
    hook.code = 403
    failed = check_webhook(config(tmp_path, hook))
    assert (failed.ok, failed.sentence[-16:]) == (False, "it answered 403.")
    assert failed.fix.startswith("Correct the address")


def test_names_of_another_encoding_can_be_sent(hook: Receiver) -> None:
    send(Alerting(webhook=hook.url), {"table": "a\udcff"})
    assert json.dumps(hook.bodies[0]) == '{"table": "a\\udcff"}'
