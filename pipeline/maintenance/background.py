"""Maintenance by the jobs: a thread of a continuous run, or the last seconds of a scheduled one.

Each job maintains what it writes: ingest bronze, apply silver and `_pgdelta`. One table at a time is
maintained, and none that is being written. No Spark is started. A failure never fails the run: it is recorded
with the table, once as an event, and in the run's summary.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.config.config import Config
from pipeline.delta.sql import from_seconds
from pipeline.delta.table import Lake
from pipeline.errors import report_error
from pipeline.maintenance.job_tables import DueTable, due_tables
from pipeline.maintenance.write_gate import BusyError, WriteGate
from pipeline.metadata.events import MAINTENANCE_FAILED, Event, EventLog
from pipeline.metadata.maintenance import Maintained, MaintenanceTable
from pipeline.progress import MaintenanceProgress
from pipeline.protocol.lsn import INVALID

if TYPE_CHECKING:
    from pipeline.maintenance.maintainer import MaintainedTable, Maintainer

BUDGET_SECONDS = 5.0
"""How long a scheduled run maintains tables at its end; a merge that has begun ends first."""
_CHECK_SECONDS = 60.0  # how often a continuous run checks what is due
_MAX_REST = 5.0  # seconds between two tables of a continuous run


class JobMaintenance:
    """Maintains the tables of one job.

    `candidates` returns them each time; `report` is called after each table that was maintained. `clock`
    gives seconds since 1970.
    """

    def __init__(
        self,
        config: Config,
        lake: Lake,
        candidates: Callable[[], Iterable[DueTable]],
        progress: MaintenanceProgress,
        *,
        stop: threading.Event,
        gate: WriteGate | None = None,
        report: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._lake = lake
        self._rules = config.maintenance
        self._is_enabled = self._rules.enabled and lake.working_root is not None
        self._candidates = candidates
        self._progress = progress
        self._stop = stop
        self._ending = threading.Event()
        self._gate = gate or WriteGate()
        self._report = report
        self._clock = clock
        self._records = MaintenanceTable(lake)
        self._events = EventLog(lake)

    def run(self, seconds: float | None = BUDGET_SECONDS) -> None:
        """Maintain the tables that are due, those with the most commits first, and record what was done.

        After so many seconds, or a stop, no other table and no other merge is begun.
        """
        if not self._is_enabled or self._is_stopping():
            return
        end = None if seconds is None else time.monotonic() + seconds

        def is_over() -> bool:
            return self._is_stopping() or (end is not None and time.monotonic() >= end)

        try:
            self._run(is_over, is_gentle=seconds is None)
        except Exception as error:  # the run goes on
            self._progress.failures["_pgdelta/maintenance"] = report_error(error)

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Maintain tables in a thread, during a block."""
        if not self._is_enabled:
            yield
            return
        thread = threading.Thread(target=self._follow, name="maintenance")
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()

    def _follow(self) -> None:
        pause = min(_CHECK_SECONDS, float(max(self._rules.every, 1)))
        while not self._ending.wait(pause) and not self._stop.is_set():
            self.run(None)

    def _is_stopping(self) -> bool:
        return self._stop.is_set() or self._ending.is_set()

    def _run(self, is_over: Callable[[], bool], *, is_gentle: bool) -> None:
        now = from_seconds(self._clock())
        due = due_tables(self._candidates(), self._records.read(), now, self._rules)
        if not due:
            return
        from pipeline.maintenance.maintainer import Maintainer
        from pipeline.maintenance.sort_orders import SortOrders

        orders = SortOrders(self._lake, self._config)
        maintainer = Maintainer(
            self._rules,
            should_stop=is_over,
            clock=self._clock,
            order_of=orders.of,
            committing=self._gate.exchanging,
        )
        done: list[tuple[DueTable, Maintained]] = []
        try:
            for candidate in due:
                if is_over():
                    break
                began = time.monotonic()
                found = self._maintain(maintainer, candidate)
                seconds = time.monotonic() - began
                if found is not None:
                    row = self._row(found, seconds)
                    self._progress.count(row)
                    self._report()
                    if not is_over():  # else its merges go on in the next run
                        done.append((candidate, row))
                if is_gentle:
                    self._ending.wait(min(seconds, _MAX_REST))
        finally:
            self._records.record([row for _, row in done])
            self._record_failures(done)

    def _maintain(self, maintainer: Maintainer, candidate: DueTable) -> MaintainedTable | None:
        """Maintain a table; return None if it is left for later."""
        if self._gate.is_writing(candidate.name):
            return None
        try:
            return maintainer.maintain(candidate.name, candidate.table, is_own=candidate.is_own)
        except BusyError:
            return None

    def _row(self, found: MaintainedTable, seconds: float) -> Maintained:
        spark = f"{found.table} has {found.needs_spark}. Run pgdelta maintain --spark."
        return Maintained(
            found.table,
            from_seconds(self._clock()),
            found.version,
            found.files_before,
            found.files_after,
            found.bytes,
            found.removed_files,
            found.removed_log_files,
            round(seconds, 3),
            found.failure is not None,
            found.failure or (spark if found.needs_spark else None),
        )

    def _record_failures(self, done: Iterable[tuple[DueTable, Maintained]]) -> None:
        failed = [
            Event(*candidate.event_name, INVALID, MAINTENANCE_FAILED, str(row.sentence))
            for candidate, row in done
            if row.is_failed
        ]
        if failed:
            self._events.ensure()
            self._events.record(failed)
