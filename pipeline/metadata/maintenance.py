"""`_pgdelta/maintenance`: the last maintenance of each table, by a job.

One row a table. Ingest and apply both write here, each for the tables that it maintains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipeline.delta.record_table import RecordTable
from pipeline.delta.table import Lake


@dataclass(frozen=True, slots=True)
class Maintained:
    """What the last maintenance of a table did; `table_name` is `bronze/changes` or `schema.table`.

    The table had `files_before` data files, and `files_after` in `bytes` and `version` afterwards. Files were
    removed from its folder and from its log. `sentence` says why it failed, or what only Spark can do.
    """

    table_name: str
    maintained_at: datetime
    version: int
    files_before: int = 0
    files_after: int = 0
    bytes: int = 0
    removed_files: int = 0
    removed_log_files: int = 0
    seconds: float = 0.0
    is_failed: bool = False
    sentence: str | None = None


class MaintenanceTable:
    """Reads and writes `_pgdelta/maintenance`."""

    def __init__(self, lake: Lake) -> None:
        self._records = RecordTable(lake, "maintenance", Maintained)

    def read(self) -> Mapping[str, Maintained]:
        """Return the last maintenance of each table; rows are read only if the table has a new version."""
        return {each.table_name: each for each in self._records.read()}

    def record(self, done: Sequence[Maintained]) -> None:
        """Replace the rows of some tables, in one commit."""
        self._records.put(done, key=lambda each: each.table_name)
