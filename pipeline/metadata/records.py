"""The facade of what jobs record of their silver tables: registered tables, events and misfits."""

from pipeline.delta.table import Lake
from pipeline.metadata.events import EventLog
from pipeline.metadata.misfits import MisfitLog
from pipeline.metadata.registry import TableRegistry


class Records:
    """`tables`, `events` and `misfits` of a lake; safe to use from several threads of one apply."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.tables = TableRegistry(lake)
        self.events = EventLog(lake)
        self.misfits = MisfitLog(lake)

    def ensure(self) -> None:
        """Create the Delta tables unless they exist."""
        self.tables.ensure()
        self.events.ensure()
        self.misfits.ensure()
