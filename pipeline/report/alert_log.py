"""Diff current alerts against the recorded ones: which to announce, which to resolve. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pipeline.metadata.alerts import RecordedAlert
from pipeline.report.alert_rules import Alert, Alerts
from pipeline.table_name import TableName

CLAIM = timedelta(minutes=2)
"""How long no other job sends what a job has claimed."""
JOB_RULES = ("job_ingest", "job_apply", "job_run")
_ENDED_BY = {"ingest": ("job_ingest", "job_run"), "apply": ("job_apply", "job_run"), "run": JOB_RULES}


def with_job(alerts: Alerts, command: str, failure: str | None) -> Alerts:
    """Return the alerts with that of a job, if it failed.

    A job that works ends those of earlier runs; of other jobs nothing is known here.
    """
    found = list(alerts.found)
    ended = _ENDED_BY[command] if failure is None else ()
    unknown = {*alerts.unknown, *(rule for rule in JOB_RULES if rule not in ended)}
    if failure is not None:
        sentence = f"pgdelta {command} failed: {failure}"
        found.insert(0, Alert(f"job_{command}", "failed", None, sentence))
    return alerts._replace(found=found, unknown=unknown)


def alert_of(row: RecordedAlert) -> Alert:
    """Return the alert that a row records."""
    table = TableName(row.schema_name, row.table_name or "") if row.schema_name is not None else None
    return Alert(row.rule, row.kind, table, row.sentence)


def is_due(row: RecordedAlert) -> bool:
    """Return whether a message about the alert is to be sent."""
    return row.sent_at is None or row.ended_at is not None


def record_found(
    rows: Sequence[RecordedAlert], alerts: Alerts, sender: str, now: datetime, most: int
) -> list[RecordedAlert]:
    """Return the rows with alerts that begin or are over now, and at most `most` due ones claimed.

    An alert whose rule is not known stays as it is. One that is over before it was sent is forgotten, and one
    that begins again before its end was sent goes on.
    """
    active = {each.key: each for each in alerts.found}
    known: set[str] = set()
    found: list[RecordedAlert] = []
    for row in rows:
        key = alert_of(row).key
        known.add(key)
        if key in active:
            found.append(replace(row, ended_at=None) if row.ended_at else row)
        elif row.rule in alerts.unknown:
            found.append(row)
        elif row.sent_at is not None or _is_claimed(row, sender, now):
            found.append(replace(row, ended_at=row.ended_at or now))
    for key, alert in active.items():
        if key not in known:
            schema, name = alert.table or (None, None)
            found.append(RecordedAlert(alert.rule, alert.kind, schema, name, alert.sentence, now))
    claimed = [row for row in found if is_due(row) and not _is_claimed(row, sender, now)][:most]
    return [replace(row, sender=sender, claimed_at=now) if row in claimed else row for row in found]


def _is_claimed(row: RecordedAlert, sender: str, now: datetime) -> bool:
    """Return whether another job is sending a message about the alert."""
    if row.sender in (None, sender) or row.claimed_at is None:
        return False
    return now - row.claimed_at < CLAIM


def record_sent(
    rows: Sequence[RecordedAlert], sent: Collection[RecordedAlert], now: datetime
) -> list[RecordedAlert]:
    """Return the rows after messages about some of them were received."""
    messages = {alert_of(row).key: row for row in sent}
    found: list[RecordedAlert] = []
    for row in rows:
        message = messages.get(alert_of(row).key)
        if message is None:
            found.append(row)
        elif message.ended_at is None:
            found.append(replace(row, sent_at=now, sender=None, claimed_at=None))
        elif row.ended_at is None:  # it began again meanwhile: that is a new alert
            found.append(replace(row, sent_at=None, began_at=now, sender=None, claimed_at=None))
    return found
