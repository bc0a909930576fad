"""The records of a table that is written beside the one of its name, and what of them others have to know."""

from collections.abc import Sequence

from pipeline.lake.records import ONLY_A_COPY_HELPS, Event, Records, Registered
from pipeline.protocol.lsn import LSN


class RecordsBeside(Records):
    """The records of a table that is written beside the one of its name: nobody else sees them but misfits.

    Its events are kept: those of what the table of its name had not come to yet are news.
    """

    def __init__(self, records: Records) -> None:
        super().__init__(records.lake)
        self.registered_last: Registered | None = None
        self._events_kept: list[Event] = []
        self._lock = records._lock  # misfits go to the same table

    def register(self, table: Registered) -> None:
        """Keep the newest."""
        self.registered_last = table

    def record_events(self, events: Sequence[Event]) -> None:
        """Keep them."""
        self._events_kept += events

    def news(self, shown: LSN) -> list[Event]:
        """Return the events that only a copy helps after, of what lies behind the position that was shown."""
        return [e for e in self._events_kept if e.kind in ONLY_A_COPY_HELPS and e.lsn > shown]
