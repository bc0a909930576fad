"""Write `_pgdelta/status`, one row for each table, during a run of apply and at its end.

Reads the last manifest and the summary of the applier. Lags are relative to bronze at the time of writing;
the source is not read. A row contains no values of the source.
"""

import time
from datetime import datetime, timezone

from pipeline.apply.applier import Applier
from pipeline.bronze.activity import commit_times_of
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.metadata.registry import Records
from pipeline.metadata.status import FAILED, StatusTable
from pipeline.progress import ApplySummary, TableState
from pipeline.protocol.lsn import LSN
from pipeline.report.status import read_tables, with_lag
from pipeline.report.status_page import TableStatus
from pipeline.silver.doubts import find_doubts

EVERY_SECONDS = 60.0


class StatusWriter:
    """Writes the state of the tables of one applier."""

    def __init__(self, applier: Applier, config: Config) -> None:
        self._applier = applier
        self._config = config
        self._statuses = StatusTable(applier.lake)
        self._written_at = time.monotonic()
        self._batches = 0

    def write_when_due(self) -> None:
        """Write if the last write was a minute ago and a batch has run since."""
        if time.monotonic() - self._written_at >= EVERY_SECONDS:
            self.write()

    def write(self, *, always: bool = False) -> None:
        """Find the tables in doubt, and write if a batch has run since the last write, or `always`."""
        summary, bronze = self._applier.summary, self._applier.bronze
        note_comparisons(summary, bronze, self._applier.records, self._config)
        batches = summary.batches
        manifest, point = self._applier.manifest, bronze.captured_offset()
        self._written_at = time.monotonic()
        if (batches == self._batches and not always) or manifest is None or point is None:
            return
        self._batches = batches
        tables = read_tables(
            self._config,
            bronze,
            self._applier.records,
            manifest,
            point,
            self._applier.planner.relations,
        )
        behind = {table.applied for table in tables} - {manifest.lsn}
        times = commit_times_of(self._applier.lake, behind)
        now = datetime.now(timezone.utc)
        states = summary.tables
        rows = [
            _row(with_lag(table, manifest, times, point.lsn, now), states.get(table.name), point.lsn, now)
            for table in tables
        ]
        self._statuses.replace(rows)


def note_comparisons(summary: ApplySummary, bronze: Bronze, records: Records, config: Config) -> None:
    """Note where each table was last found equal to its source, and those in doubt that await no copy."""
    history, events = bronze.copies.read(), records.events.history()
    compared = records.compared()
    doubts = find_doubts(events, history, compared)
    waiting = history.open_requests if doubts else {}
    summary.verified = records.equal(looks=False)
    summary.doubts = {
        name: doubt.sentence
        for name, doubt in doubts.items()
        if name not in waiting and config.rule_for(name) is not None
    }


def _row(table: TableStatus, state: TableState | None, captured: LSN, now: datetime) -> dict[str, object]:
    failure = state.failure if state else None
    return {
        "schema_name": table.name[0],
        "table_name": table.name[1],
        "state": FAILED if failure else table.state,
        "applied_lsn": table.applied or None,
        "commit_time": table.commit_time,
        "captured_lsn": captured,
        "lag_bytes": table.lag_bytes,
        "lag_seconds": table.lag_seconds,
        "silver_version": table.version,
        "misfits": sum(table.misfits.values()),
        "verified_lsn": table.verified and table.verified.lsn,
        "sentence": failure or table.sentence,
        "recorded_at": now,
    }
