"""The records of a table that is written beside the one of its name: nobody else sees them but misfits."""

from collections.abc import Sequence

from pipeline.lake.records import Event, Records, Registered


class RecordsBeside(Records):
    """The records of a table that is written beside the one of its name: nobody else sees them."""

    def __init__(self, records: Records) -> None:
        super().__init__(records.lake)
        self.registered_last: Registered | None = None
        self._lock = records._lock  # misfits go to the same table

    def register(self, table: Registered) -> None:
        """Keep the newest."""
        self.registered_last = table

    def record_events(self, events: Sequence[Event]) -> None:
        """Record nothing: these things happened to the table before."""
