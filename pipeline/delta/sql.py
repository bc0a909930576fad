"""Write the text of Spark SQL: quoted identifiers, string literals and timestamps.

Timestamps are microseconds since 1970-01-01 UTC, as in Spark's `unix_micros`.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(timezone.utc)


def from_seconds(seconds: float) -> datetime:
    """Return a time, given in seconds since 1970, in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc)


def from_microseconds(microseconds: int) -> datetime:
    """Return a result of `unix_micros` as a time in UTC."""
    return EPOCH + microseconds * _MICROSECOND


def to_microseconds(time: datetime) -> int:
    """Return the `unix_micros` of a time that has a zone."""
    return (time - EPOCH) // _MICROSECOND


def utc_text(time: datetime | None) -> str | None:
    """Return a time as ISO 8601 in UTC; without a zone it is local time, as Spark collects timestamps."""
    return None if time is None else time.astimezone(timezone.utc).isoformat()


def literal(text: str) -> str:
    """Return a text as a Spark SQL string literal, `$` escaped: Spark replaces `${…}` by host variables."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


def quoted(name: str) -> str:
    """Quote one identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
