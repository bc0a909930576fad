"""`_pgdelta/maintenance`: the last maintenance of each table, by a job.

One row a table. Ingest and apply both write here, each for the tables that it maintains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from pipeline.delta.retry import retry_conflicts
from pipeline.delta.table import Lake

MAINTENANCE = (
    "table_name STRING, maintained_at TIMESTAMP, version BIGINT, files_before BIGINT, files_after BIGINT, "
    "bytes BIGINT, removed_files BIGINT, removed_log_files BIGINT, seconds DOUBLE, is_failed BOOLEAN, "
    "sentence STRING"
)


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
        self._table = lake.table("_pgdelta", "maintenance")
        self._read: tuple[int, dict[str, Maintained]] = (-1, {})

    def read(self) -> Mapping[str, Maintained]:
        """Return the last maintenance of each table; rows are read only if the table has a new version."""
        snapshot = self._table.snapshot()
        if snapshot.exists and snapshot.version != self._read[0]:
            rows = self._table.rows(snapshot=snapshot).to_pylist()
            self._read = snapshot.version, {row["table_name"]: Maintained(**row) for row in rows}
        return self._read[1] if snapshot.exists else {}

    def record(self, done: Sequence[Maintained]) -> None:
        """Replace the rows of some tables, in one commit."""
        if not done:
            return

        def write() -> None:
            rows = dict(self.read()) | {each.table_name: each for each in done}
            self._table.overwrite_rows([asdict(rows[name]) for name in sorted(rows)], MAINTENANCE)

        retry_conflicts(write)
