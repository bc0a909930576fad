"""Send alerts to a webhook: one POST of JSON, by urllib, with short timeouts and without redirects.

The address is a secret. It is in no error and in no log, and neither is what the receiver answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from pipeline import __version__
from pipeline.config.alerts import Alerting
from pipeline.config.config import Config
from pipeline.delta.sql import utc_text
from pipeline.errors import EndpointError, one_line
from pipeline.http_requests import RequestFailed, send_request
from pipeline.metadata.alerts import RecordedAlert
from pipeline.postgres.checks.table_checks import Check
from pipeline.report.alert_log import alert_of

SECONDS = 5.0  # of each step of a request: connect, send, each read
_LONGEST = 1000  # characters of a sentence in Slack
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ICONS = {True: ":white_check_mark:", False: ":rotating_light:"}


def message(pipeline: str, format: str, alerts: Sequence[RecordedAlert]) -> dict[str, Any]:
    """Return the body of a message about alerts that began or are over."""
    if format == "slack":
        return {"text": "\n".join(_slack_line(pipeline, row) for row in alerts)}
    return {"pipeline": pipeline, "version": __version__, "alerts": [_json(row) for row in alerts]}


def send(settings: Alerting, body: dict[str, Any], seconds: float = SECONDS) -> None:
    """Send a body to the webhook; raise EndpointError unless the receiver accepts it."""
    assert settings.webhook is not None
    if reason := post(settings.webhook, json.dumps(body).encode("ascii"), seconds=seconds):
        raise EndpointError(
            f"The webhook of alerts.webhook did not accept a message: {reason}. Correct the address or the"
            " receiver; the jobs send it again."
        )


def post(address: str, body: bytes, *, token: str | None = None, seconds: float = SECONDS) -> str | None:
    """Send JSON to an address; return why the receiver did not accept it, None if it did."""
    try:
        status, _ = send_request("POST", address, body, token=token, seconds=seconds)
    except RequestFailed as failed:
        return str(failed)
    return None if status // 100 == 2 else f"it answered {status}"


def check_webhook(config: Config) -> Check:
    """Send a test message, and return whether the receiver accepted it."""
    settings, sentence = config.alerts, "This is a test of pgdelta check. There is nothing to do."
    test = RecordedAlert("test", "test", None, None, sentence, datetime.now(timezone.utc))
    try:
        send(settings, message(config.pipeline, settings.format, [test]))
    except EndpointError as error:
        what, _, fix = str(error).partition(". ")
        return Check("alerts", False, f"{what}.", fix)
    return Check("alerts", True, "the receiver accepted a test message")


def _json(row: RecordedAlert) -> dict[str, Any]:
    return {
        "state": "over" if row.ended_at else "began",
        **alert_of(row).as_json(),
        "began_at": utc_text(row.began_at),
        "ended_at": utc_text(row.ended_at),
    }


def _slack_line(pipeline: str, row: RecordedAlert) -> str:
    sentence = one_line(row.sentence)
    sentence = sentence if len(sentence) <= _LONGEST else f"{sentence[: _LONGEST - 1]}…"
    is_over = row.ended_at is not None
    line = f"{pipeline}: {'over: ' if is_over else ''}{row.kind}: {sentence}"
    return f"{_ICONS[is_over]} {line.translate(_ESCAPES)}"
