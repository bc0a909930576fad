"""Points in time as Spark counts them, microseconds since 1970 in UTC: collected so, they need no zone."""

from datetime import datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def now() -> datetime:
    return datetime.now(timezone.utc)


def from_microseconds(microseconds: int) -> datetime:
    """Return what `unix_micros` gave as a time in UTC."""
    return EPOCH + microseconds * _MICROSECOND


def to_microseconds(time: datetime) -> int:
    """Return what `unix_micros` gives for a time that has a zone."""
    return (time - EPOCH) // _MICROSECOND


def utc_text(time: datetime | None) -> str | None:
    """Return a time as ISO 8601 in UTC; one without a zone is of this machine's, as Spark collects it."""
    return None if time is None else time.astimezone(timezone.utc).isoformat()
