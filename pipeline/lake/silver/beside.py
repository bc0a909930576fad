"""The records of a table that is written beside the one of its name: nobody else sees them but misfits."""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.lake.positions import Commit
from pipeline.lake.records import MISFIT_COLUMNS, Event, Records, Registered


class RecordsBeside(Records):
    """The records of a table that is written beside the one of its name: nobody else sees them."""

    def __init__(self, records: Records) -> None:
        super().__init__(records.lake)
        self.registered_last: Registered | None = None

    def register(self, table: Registered) -> None:
        """Keep the newest."""
        self.registered_last = table

    def record_events(self, events: Sequence[Event]) -> None:
        """Record nothing: these things happened to the table before."""

    def record_misfits(self, frame: DataFrame, commit: Commit) -> None:
        """Append those that are not recorded yet."""
        del commit
        equal = (F.col(f"n.{name}").eqNullSafe(F.col(f"o.{name}")) for name in MISFIT_COLUMNS)
        new = frame.select(*MISFIT_COLUMNS).alias("n")
        new = new.join(self.misfits.frame().alias("o"), reduce(Column.__and__, equal), "left_anti")
        self.misfits.append_few(new)
