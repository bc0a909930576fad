"""What becomes known of tables while they are copied, as events: they came back, or cannot be copied."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.lake.bronze.copy_history import CopyHistory
from pipeline.lake.bronze.tables import Bronze
from pipeline.lake.records import Event, Records
from pipeline.postgres.published import Membership
from pipeline.protocol.lsn import LSN
from pipeline.rules import TableName

_CAME_BACK = (
    "the table left the publication and came back, or its row filter changed: what happened meanwhile is "
    "missing until it is copied anew, which goes on by itself"
)


class CopyEvents:
    """Records, once for each table and sentence, what an operator has to know of its copy."""

    def __init__(self, bronze: Bronze) -> None:
        self._bronze = bronze
        self._returned: set[TableName] = set()
        self._failed: dict[TableName, str] = {}

    def note(self, name: TableName, now: Membership, copies: CopyHistory) -> None:
        """Record an event where silver shows a table whose entry in the publication is another one now."""
        copied_at = copies.came_back(name, now.relation_id, now.entry)
        if copied_at is not None and name not in self._returned:
            records = Records(self._bronze.lake)
            if name in records.registered():
                records.record_events([Event(*name, copied_at, "resync", _CAME_BACK)])
            self._returned.add(name)

    def note_failures(self, failures: Mapping[TableName, str], lsn: LSN) -> None:
        """Record why tables cannot be copied, unless that is the last that is known of them."""
        new = {name: sentence for name, sentence in failures.items() if self._failed.get(name) != sentence}
        self._failed = dict(failures)
        if not new:
            return
        records = Records(self._bronze.lake)
        records.ensure()
        known = records.last_events()
        events = [Event(*name, lsn, "held", f"it cannot be copied: {why}") for name, why in new.items()]
        told = {name: known[name].sentence for name in new if name in known}
        records.record_events([e for e in events if told.get((e.schema_name, e.table_name)) != e.sentence])
