"""`_pgdelta/status`: the state of each table after the last batch, for analysts and monitoring.

apply replaces it at the end of a run and once a minute.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.delta.retry import retry_conflicts
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

FAILED = "failed"
STATUS = (
    "schema_name STRING, table_name STRING, state STRING, applied_lsn BIGINT, commit_time TIMESTAMP, "
    "captured_lsn BIGINT, lag_bytes BIGINT, lag_seconds DOUBLE, silver_version BIGINT, misfits BIGINT, "
    "verified_lsn BIGINT, sentence STRING, recorded_at TIMESTAMP"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the last batch failed to apply a table beyond an LSN."""

    applied: LSN
    sentence: str


class StatusTable:
    """Reads and writes `_pgdelta/status`."""

    def __init__(self, lake: Lake) -> None:
        self._table = lake.table("_pgdelta", "status")

    def replace(self, rows: Sequence[dict[str, object]]) -> None:
        """Replace the states of all tables in one commit."""
        retry_conflicts(lambda: self._table.overwrite_rows(rows, STATUS, replaces_schema=True))

    def failures(self) -> dict[TableName, Failure]:
        """Return the tables that had failed when the states were written."""
        if not self._table.exists():
            return {}
        return {
            TableName(row["schema_name"], row["table_name"]): Failure(
                LSN(row["applied_lsn"] or 0), row["sentence"]
            )
            for row in self._table.rows().to_pylist()
            if row["state"] == FAILED
        }
