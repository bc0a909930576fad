"""Initial copies, beside the capture of an ingest run: which tables need one, round by round, to the end.

A table needs a copy when it is published and configured and has none, or when somebody asked for one. All
tables that need one at a time are read under one snapshot. A copy is complete once everything that was read
is in bronze and capture is beyond the snapshot: then it is known which transactions it holds. What a run
leaves, the next one goes on with under another snapshot where that is exact, else it begins anew. Where
somebody asked for some keys only, a patch is made: a copy of their rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing

from pipeline.bronze.copy_history import CopyHistory
from pipeline.bronze.log import Bronze
from pipeline.bronze.staging import Staging
from pipeline.config.config import Config
from pipeline.errors import SourceError, report_error
from pipeline.postgres.connection import ServerIdentity, identify, shut_down_sessions
from pipeline.postgres.snapshot.export import COPY_SESSIONS, RowsMoved, Snapshot, SnapshotKeeper, SnapshotLost
from pipeline.progress import CopyProgress, IngestSummary
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_copy.candidates import CopyCandidates, CopyEvents
from pipeline.table_copy.invisible_commits import find_invisible_commits
from pipeline.table_copy.planner import Candidate, CopyPlanner
from pipeline.table_copy.reader_pool import (
    ReaderPool,
    TableCopy,
    Throttle,
    abandoned_row,
    complete_row,
    reading_row,
)
from pipeline.table_copy.streamed_names import StreamedNames
from pipeline.table_name import TableName

POLL_SECONDS = 5.0  # between two looks for tables that joined
RETRY_SECONDS = 30.0
RECORD_SECONDS = 5.0
MOST_LOST = 5
PATIENCE = 30.0  # for sessions that end by themselves: a link may stand still
_WAIT = 0.2


class CopyCoordinator:
    """Copies in a thread of its own, as long as the run of ingest lasts."""

    def __init__(
        self,
        config: Config,
        bronze: Bronze,
        identity: ServerIdentity,
        summary: IngestSummary,
        *,
        is_continuous: bool,
    ) -> None:
        self._place = (identity.system_identifier, identity.database)
        self._config = config
        self._bronze = bronze.in_session(bronze.lake.spark)
        self._summary = summary
        self._is_continuous = is_continuous
        self._stop = threading.Event()
        self._position = INVALID  # of bronze, as capture says
        self._moved = threading.Condition()
        self._target = INVALID
        self._recorded_at = 0.0
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)
        self._throttle = Throttle(config.source.copying.rate_limit)
        self._events = CopyEvents(self._bronze)
        self._candidates = CopyCandidates(
            config,
            self._bronze,
            summary,
            self._events,
            self._stop,
            is_continuous=is_continuous,
            reach=self._need,
            wait=self._await,
        )

    def start(self, names: StreamedNames) -> None:
        """Begin; `names` are those under which the stream has tables."""
        self._candidates.names = names
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Say whether there is nothing to copy any more; of a continuous run never."""
        return not self._thread.is_alive()

    @property
    def target(self) -> LSN:
        """Return which position capture has to reach, so that what was copied is complete."""
        return self._target

    def reach(self, position: LSN) -> None:
        """Note how far bronze is."""
        with self._moved:
            self._position = position
            self._moved.notify_all()

    def close(self) -> None:
        """End, with the ranges under way lost to the next run."""
        self._stop.set()
        with self._moved:
            self._moved.notify_all()
        self._thread.join(PATIENCE)
        while self._thread.is_alive():  # it may be about to open one more
            shut_down_sessions(COPY_SESSIONS)
            self._thread.join(1)

    def _run(self) -> None:
        try:
            self._go_on()
        finally:
            self._candidates.close()

    def _go_on(self) -> None:
        lost_count = 0  # snapshots in a row
        was_lost = False  # the session of the looks, in the round before
        while not self._stop.is_set():
            pause = POLL_SECONDS
            try:
                has_copied = self._round()
                self._summary.copy_failure = None
                was_lost = False
                if has_copied:
                    lost_count = 0
                    continue
                if any(copy.failure for copy in self._summary.copies.values()):
                    pause = RETRY_SECONDS
            except Exception as error:  # capture goes on
                was_lost = self._candidates.has_lost_session and not was_lost
                self._candidates.close()
                if was_lost:
                    continue  # over a new one at once
                lost_count += isinstance(error, SnapshotLost)
                if isinstance(error, SnapshotLost) and lost_count < MOST_LOST:
                    self._stop.wait(lost_count)
                    continue
                self._summary.copy_failure = report_error(error)
                pause = RETRY_SECONDS
            if not self._is_continuous:
                return
            self._stop.wait(pause)

    def _round(self) -> bool:
        """Copy what is wanted now, under one snapshot; say whether another look is worth it."""
        wanted = self._candidates.poll()
        if not wanted:
            self._note_failures(self._position)
            # A run that ends by itself waits here; one that does not looks again anyway.
            return self._candidates.is_waiting and not self._is_continuous and not self._stop.wait(1.0)
        source = self._config.source
        # what an ingest that was held up would still land of a copy must not come after this look
        self._bronze.claim()
        copies = self._bronze.copies.read()
        used = [r.lsn for states in copies.states.values() for s in states for r in s.snapshots]
        # Silver may be as far as bronze was when somebody asked for a patch.
        point = self._bronze.captured_offset()
        used += [point.lsn if point else INVALID, self._candidates.waited_for]
        with closing(SnapshotKeeper(source.snapshot_conninfo, max(used), key=source.snapshot_key)) as keeper:
            self._check_place(keeper)
            tables = self._begin(keeper, copies, wanted)
            if tables:
                self._need(LSN(keeper.snapshot.lsn + 1))
                self._read(keeper.snapshot, tables)
        # What failed is looked at again in a continuous run only: elsewhere the scheduler runs again.
        return not self._note_failures(keeper.snapshot.lsn)

    def _note_failures(self, lsn: LSN) -> bool:
        """Record why tables cannot be copied; say whether there are any."""
        failures = {name: copy.failure for name, copy in self._summary.copies.items() if copy.failure}
        self._events.record_failures(failures, lsn)
        return bool(failures)

    def _read(self, snapshot: Snapshot, tables: Sequence[TableCopy]) -> None:
        """Land what a snapshot has of the tables, and record which of them are complete."""
        copying = self._config.source.copying
        with closing(Staging(self._bronze.lake, "copies")) as staging:
            rounds = ReaderPool(
                self._bronze,
                staging,
                self._config.source.snapshot_conninfo,
                snapshot,
                tables,
                reader_count=copying.connections,
                throttle=self._throttle,
                stop=self._stop,
            )
            read: list[TableCopy] = []
            try:
                for table in rounds.run():
                    read.append(table)
                    if self._position > snapshot.lsn and not self._is_fresh():
                        self._finish(read)
                        read = []
            finally:
                self._finish(read)

    def _check_place(self, keeper: SnapshotKeeper) -> None:
        """Refuse to copy from another server than the one that streams, or one that is no standby of it."""
        found = identify(keeper.connection)
        if (found.system_identifier, found.database) != self._place:
            raise SourceError(
                "source.copying.conninfo names another database than source.conninfo: let it name the same, "
                "or that of a standby."
            )

    def _begin(
        self, keeper: SnapshotKeeper, copies: CopyHistory, wanted: Mapping[TableName, Candidate]
    ) -> list[TableCopy]:
        """Describe the tables as the snapshot has them, and record what will be read."""
        tables: list[TableCopy] = []
        with keeper.reading() as connection:
            starts = CopyPlanner(self._bronze, copies, connection, keeper.snapshot, self._config)
            for name, want in wanted.items():
                progress = self._summary.copies[name] = CopyProgress()
                try:
                    tables.append(starts.start(name, want, progress))
                except SourceError as error:
                    progress.failure = str(error)
        if tables:
            self._bronze.record_relations([table.place.version for table in tables])
        if rows := [*starts.abandoned, *map(reading_row, tables)]:
            self._bronze.copies.record(rows)
        # What was begun comes before what has to begin anew each time; small tables are there soon.
        return sorted(tables, key=lambda table: (not table.state.snapshots, table.table.pages))

    def _is_fresh(self) -> bool:
        """Say whether something was recorded a moment ago: many small tables are recorded together."""
        return time.monotonic() - self._recorded_at < RECORD_SECONDS

    def _finish(self, tables: Sequence[TableCopy]) -> None:
        """Record that tables are complete, or why not, once bronze is beyond their snapshot."""
        rows: list[dict[str, object]] = []
        whole = [table for table in tables if table.failure is None]
        for table in tables:
            if isinstance(table.failure, RowsMoved):
                rows.append(abandoned_row(table.state, str(table.failure)))  # and is copied anew
            elif table.failure is not None:
                table.progress.failure = str(table.failure)
        if whole and self._await(whole[0].snapshot.lsn):
            readings = {t.state.name: [*t.state.snapshots, t.snapshot] for t in whole}
            late = find_invisible_commits(self._bronze.changes, readings)
            for table in whole:
                lsns = late.get(table.state.name, ())
                if lsns and table.state.snapshots:
                    sentence = "transactions ended while a snapshot was taken: several do not fit together"
                    rows.append(abandoned_row(table.state, sentence))
                    continue
                rows.append(complete_row(table, lsns))
                table.progress.complete()
        if rows:
            self._bronze.copies.record(rows)
        self._recorded_at = time.monotonic()

    def _need(self, lsn: LSN) -> None:
        """Have capture go to a position before the run ends."""
        self._target = max(self._target, lsn)

    def _await(self, lsn: LSN) -> bool:
        """Wait until bronze is beyond an LSN; say whether it is."""
        with self._moved:
            while self._position <= lsn and not self._stop.is_set():
                self._moved.wait(_WAIT)
        return self._position > lsn
