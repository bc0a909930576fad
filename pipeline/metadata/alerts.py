"""`_pgdelta/alerts`: the alerts that began and are not over, so that each is sent once by whatever job.

One row an alert. A job claims what it is about to send before it sends it, so that two jobs that find the
same do not send it twice; a claim that is not followed by a result expires.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pipeline.delta.record_table import RecordTable
from pipeline.delta.table import Lake


@dataclass(frozen=True, slots=True)
class RecordedAlert:
    """An alert that began: when it was sent, when it was over, and who claimed to send the next message."""

    rule: str
    kind: str
    schema_name: str | None
    table_name: str | None
    sentence: str
    began_at: datetime
    sent_at: datetime | None = None
    ended_at: datetime | None = None
    sender: str | None = None
    claimed_at: datetime | None = None


def alert_table(lake: Lake) -> RecordTable[RecordedAlert]:
    """Return the table of the alerts."""
    return RecordTable(lake, "alerts", RecordedAlert)
