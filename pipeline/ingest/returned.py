"""Tables that left the publication and came back: silver may lack changes until they are copied anew."""

from __future__ import annotations

from pipeline.lake.bronze.tables import Bronze
from pipeline.lake.records import Event, Records
from pipeline.postgres.published import Membership
from pipeline.rules import TableName

_SENTENCE = (
    "the table left the publication and came back, or its row filter changed: what happened meanwhile is "
    "missing until it is copied anew, which goes on by itself"
)


class Returned:
    """Records, once for each table, that it came back."""

    def __init__(self, bronze: Bronze) -> None:
        self._bronze = bronze
        self._noted: set[TableName] = set()

    def note(self, name: TableName, now: Membership) -> None:
        """Record an event where silver shows a table whose entry in the publication is another one now."""
        copied_at = self._bronze.copies.came_back(name, now.relation_id, now.entry)
        if copied_at is not None and name not in self._noted:
            records = Records(self._bronze.lake)
            if name in records.registered():
                records.record_events([Event(*name, copied_at, "resync", _SENTENCE)])
            self._noted.add(name)
