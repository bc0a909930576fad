"""`_pgdelta/alerts`: the alerts that began and are not over, so that each is sent once by whatever job.

One row an alert. A job claims what it is about to send before it sends it, so that two jobs that find the
same do not send it twice; a claim that is not followed by a result expires.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from pipeline.delta import native_write
from pipeline.delta.log_retention import short_log
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.table import Lake

ALERTS = (
    "rule STRING, kind STRING, schema_name STRING, table_name STRING, sentence STRING, began_at TIMESTAMP, "
    "sent_at TIMESTAMP, ended_at TIMESTAMP, sender STRING, claimed_at TIMESTAMP"
)


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


class AlertTable:
    """Reads and changes `_pgdelta/alerts`."""

    def __init__(self, lake: Lake) -> None:
        self._table = lake.table("_pgdelta", "alerts")

    def read(self) -> list[RecordedAlert]:
        """Return the alerts that are recorded."""
        if not self._table.exists():
            return []
        return [RecordedAlert(**row) for row in self._table.rows().to_pylist()]

    def change(
        self, change: Callable[[Sequence[RecordedAlert]], Sequence[RecordedAlert]]
    ) -> list[RecordedAlert]:
        """Replace the rows by what a function makes of them, in one commit, and return them.

        The function is called again if another job changed the rows meanwhile. Without a difference nothing
        is written.
        """
        result: list[RecordedAlert] = []

        def write() -> None:
            nonlocal result
            if not self._table.exists():
                result = list(change([]))
                if not result:
                    return
                self._table.ensure(ALERTS, short_log())  # another job may do so, and write its rows
            snapshot = self._table.snapshot()
            before = [RecordedAlert(**row) for row in self._table.rows(snapshot=snapshot).to_pylist()]
            result = list(change(before))
            if result == before:
                return
            rows = [asdict(each) for each in result]
            if self._table.writes_natively(snapshot, removes=True):
                # a commit that follows this snapshot: another job's claim in between is a conflict
                native_write.overwrite(self._table.folder, snapshot, rows, None)
            else:
                self._table.overwrite_rows(rows, ALERTS)

        retry_conflicts(write)
        return result
