"""Copies of tables while a run captures: poll which tables need one, copy these, record what is complete.

A table needs a copy if it is published and configured and has none, or if one was requested. All tables that
need one at a time are read under one snapshot. A copy is complete once everything that was read is in bronze
and capture is past the snapshot: then the commits are known that the snapshot does not see. The next run
resumes what a run leaves, under another snapshot if that is exact, else from its beginning. A partial resync
copies the rows of the requested keys only. After a gap of the stream a table may be compared with silver
first, under the same snapshot, so that only the keys that differ are copied. So may a Delta table that is
adopted: its rows that are equal to the source become part of the copy without being read there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property

from pipeline.bronze.copies import CopyRow, abandoned_row, compared_row, complete_row, reading_row
from pipeline.bronze.copy_states import Comparison, CopyHistory, CopyRequest, adopts_no_protected
from pipeline.bronze.log import Bronze
from pipeline.bronze.protection import ColumnProtection
from pipeline.bronze.staged_files import COPIES, StagingFolder
from pipeline.bronze.writer import BronzeWriter
from pipeline.config.config import Config
from pipeline.errors import LakeError, NotPublishedError, SourceError, report_error
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records
from pipeline.postgres.catalog import read_relation
from pipeline.postgres.connection import ServerIdentity, identify, shut_down_sessions
from pipeline.postgres.publication import describe_published
from pipeline.postgres.snapshot.export import (
    COPY_SESSIONS,
    RowsMoved,
    SnapshotKeeper,
    SnapshotLost,
    SourceSnapshot,
)
from pipeline.progress import CopyProgress, IngestSummary
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_copy.attempts import MAX_RETRY_SECONDS, RETRY_SECONDS
from pipeline.table_copy.candidates import Candidate, CopyCandidates
from pipeline.table_copy.capture_state import CaptureState
from pipeline.table_copy.gap_verdicts import AdoptedRows, GapVerdict, TableComparer
from pipeline.table_copy.invisible_commits import find_invisible_commits
from pipeline.table_copy.planner import CopyPlanner
from pipeline.table_copy.reader_pool import ReaderPool, TableCopy, Throttle
from pipeline.table_name import TableName
from pipeline.units import format_count

POLL_SECONDS = 5.0  # between two polls for tables that joined
RECORD_SECONDS = 5.0
MAX_LOST = 5
_KEYS_CHANGED = "A key changed after the gap or rewrite, and values of its row were not sent."
PATIENCE = 30.0  # for sessions that end by themselves: a link may hang


class CopyCoordinator:
    """Copies tables in a thread of its own, as long as the run of ingest lasts."""

    def __init__(
        self,
        config: Config,
        writer: BronzeWriter,
        identity: ServerIdentity,
        summary: IngestSummary,
        state: CaptureState,
        protection: ColumnProtection,
        open_comparer: Callable[[], TableComparer],
        *,
        is_continuous: bool,
    ) -> None:
        self._open_comparer = open_comparer
        self._database = (identity.system_identifier, identity.database_oid)
        self._config = config
        self._writer = writer
        self._bronze = writer.bronze
        self._summary = summary
        self._state = state
        self._protection = protection
        self._is_continuous = is_continuous
        self._recorded_at = 0.0
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)
        self._has_ended = False
        self._gone: set[TableName] = set()  # that the last plan did not find in the publication
        self._throttle = Throttle(config.source.copying.rate_limit)
        self._candidates = CopyCandidates(
            config, writer, summary, state, protection, is_continuous=is_continuous
        )

    @cached_property
    def _comparer(self) -> TableComparer:
        """What compares tables, opened for the first one that is compared."""
        return self._open_comparer()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Return whether there is nothing more to copy; in a continuous run never."""
        return self._has_ended

    def close(self) -> None:
        """End the thread; the next run reads the chunks in progress again."""
        self._state.stop()
        self._thread.join(PATIENCE)
        while self._thread.is_alive():  # it may be about to open one more session
            shut_down_sessions(COPY_SESSIONS)
            self._thread.join(1)

    def _run(self) -> None:
        try:
            self._copy_until_stopped()
        finally:
            self._candidates.close()
            self._has_ended = True
            self._state.interrupt()

    def _copy_until_stopped(self) -> None:
        stop = self._state.stop_copies
        lost_count = error_count = 0  # snapshots, errors in a row
        was_lost = False  # the session that polls, the last time
        while not stop.is_set():
            pause = POLL_SECONDS
            try:
                polls_again = self._poll_and_copy()
                self._summary.copy_failure = None
                was_lost, error_count = False, 0
                if polls_again:
                    lost_count = 0
                    continue
            except Exception as error:  # capture continues
                was_lost = self._candidates.has_lost_session and not was_lost
                self._candidates.close()
                if was_lost:
                    continue  # over a new one at once
                lost_count += isinstance(error, SnapshotLost)
                if isinstance(error, SnapshotLost) and lost_count < MAX_LOST:
                    stop.wait(lost_count)
                    continue
                self._summary.copy_failure = report_error(error)
                pause = min(RETRY_SECONDS * 2.0 ** min(error_count, 32), MAX_RETRY_SECONDS)
                error_count += 1
            if not self._is_continuous:
                return
            stop.wait(pause)

    def _poll_and_copy(self) -> bool:
        """Copy the tables that need it now, under one snapshot; return whether to poll again at once."""
        candidates = self._without_waiting(self._candidates.poll())
        if not candidates:
            self._candidates.record_failures(self._state.captured_offset)
            # A run that ends by itself waits here; a continuous one polls again anyway.
            is_waiting = self._candidates.is_waiting and not self._is_continuous
            return is_waiting and not self._state.stop_copies.wait(1.0)
        source = self._config.source
        # An ingest that was delayed must not land chunks of a copy after its state is read here.
        self._writer.claim()
        history = self._bronze.copies.read()
        used = [s.lsn for states in history.states.values() for state in states for s in state.snapshots]
        # Silver may have been at bronze's offset when a partial resync was requested.
        captured = self._bronze.captured_offset()
        used += [captured.lsn if captured else INVALID, self._candidates.writers_end_lsn]
        with closing(SnapshotKeeper(source.snapshot_conninfo, max(used), key=source.snapshot_key)) as keeper:
            self._check_database(keeper)
            compared = _compared(candidates)
            verdicts = self._comparer.compare(keeper, compared, history) if compared else {}
            with ExitStack() as stack:
                adopted = self._adopt(keeper, candidates, stack)
                tables, equal = self._plan(keeper, history, candidates, verdicts, adopted)
                if tables or equal:
                    self._state.require(LSN(keeper.snapshot.lsn + 1))
                if tables:
                    self._copy(keeper.snapshot, tables)
            if equal and self._state.wait_past(keeper.snapshot.lsn):
                quiet = {name for name in equal if candidates[name].follows_publication}
                self._writer.record_copies(self._closing_rows(equal, quiet))
        self._count_attempts(candidates)
        # A failed table is tried again in a continuous run only: elsewhere the scheduler runs again.
        return not self._candidates.record_failures(keeper.snapshot.lsn)

    def _adopt(
        self, keeper: SnapshotKeeper, candidates: Mapping[TableName, Candidate], stack: ExitStack
    ) -> dict[TableName, AdoptedRows | None]:
        """Compare the tables that are adopted; return the rows of each that are not read from the source.

        A table that cannot be adopted fails: all its rows are copied only if a person requests that.
        """
        found: dict[TableName, AdoptedRows | None] = {}
        for name, candidate in candidates.items():
            if candidate.adoption is None:
                continue
            try:
                self._refuse_protected(keeper, name)
                sentence, rows = self._comparer.adopt(keeper, name, candidate.adoption)
            except SnapshotLost:
                raise
            except Exception as error:  # the others are copied all the same
                self._summary.copies[name] = CopyProgress(failure=report_error(error))
                continue
            self._summary.compared[name] = sentence
            found[name] = rows
            if rows is not None:
                stack.callback(rows.close)
        return found

    def _refuse_protected(self, keeper: SnapshotKeeper, name: TableName) -> None:
        """Raise LakeError if a table has protected columns, also by the rules of an earlier name of it.

        The working files of an adoption have all values.
        """
        with keeper.reading() as connection:
            relation = describe_published(connection, self._config.source.publication, name).relation
            if self._protection.protect(relation, read_relation(connection, relation)) is not None:
                raise LakeError(adopts_no_protected(name))

    def _without_waiting(self, candidates: Mapping[TableName, Candidate]) -> dict[TableName, Candidate]:
        """Leave out tables that cannot be compared yet, because silver has not reached the gap or rewrite."""
        compared = _compared(candidates)
        waiting = self._comparer.waiting(compared, self._bronze.copies.read()) if compared else {}
        self._summary.compared.update(waiting)
        return {name: candidate for name, candidate in candidates.items() if name not in waiting}

    def _closing_rows(
        self, comparisons: Mapping[TableName, Comparison], quiet: Collection[TableName] = ()
    ) -> list[CopyRow]:
        """Return the rows that record comparisons, and record an event of each that is not quiet.

        A row whose key changed after the gap may have got values that were not sent from a row that differed:
        its table is copied completely instead.
        """
        ends = {name: comparison.gap_end for name, comparison in comparisons.items()}
        lsn = max(comparison.lsn for comparison in comparisons.values())
        surveys = self._bronze.survey_tables(ends, LSN(lsn + 1))
        inexact = {
            name
            for name, of_table in surveys.items()
            if any(each.survey.key_tuples and each.survey.unchanged_toast for each in of_table)
        } & ends.keys()
        inexact |= {name for name, end in ends.items() if self._bronze.why_unread(name, end)}
        requests = [CopyRequest.of(name, _KEYS_CHANGED) for name in sorted(inexact)]
        self._bronze.copies.request(requests)
        for request in requests:
            self._summary.compared[request.name] = GapVerdict.whole(_KEYS_CHANGED).sentence
        closed = {name: each for name, each in sorted(comparisons.items()) if name not in inexact}
        records = Records(self._bronze.lake)
        records.ensure()
        records.events.record(
            [Event(*n, each.lsn, "evolved", each.sentence) for n, each in closed.items() if n not in quiet]
        )
        return [compared_row(name, comparison) for name, comparison in closed.items()]

    def _count_attempts(self, candidates: Mapping[TableName, Candidate]) -> None:
        """Count the tables that failed, whose next attempt waits; a rewritten one is counted already."""
        attempts = self._candidates.attempts
        for name, candidate in candidates.items():
            progress = self._summary.copies.get(name)
            if progress is not None and progress.is_complete:
                attempts.record_success(name)
            elif progress is not None and progress.failure and attempts.is_due(name, candidate.request_ids):
                attempts.record_failure(name, candidate.request_ids)

    def _check_database(self, keeper: SnapshotKeeper) -> None:
        """Raise SourceError unless source.copying.conninfo names the streamed database or a standby of it."""
        found = identify(keeper.connection)
        if (found.system_identifier, found.database_oid) != self._database:
            raise SourceError(
                "source.copying.conninfo names another database than source.conninfo. Name the same "
                "database, or a standby of it."
            )

    def _plan(
        self,
        keeper: SnapshotKeeper,
        history: CopyHistory,
        candidates: Mapping[TableName, Candidate],
        verdicts: Mapping[TableName, GapVerdict],
        adopted: Mapping[TableName, AdoptedRows | None],
    ) -> tuple[list[TableCopy], dict[TableName, Comparison]]:
        """Describe the tables as the snapshot has them, and record what will be read.

        Tables that a comparison found equal are returned apart.
        """
        tables: list[TableCopy] = []
        equal: dict[TableName, Comparison] = {}
        gone: set[TableName] = set()
        with keeper.reading() as connection:
            planner = CopyPlanner(
                self._bronze, history, connection, keeper.snapshot, self._config, self._protection
            )
            for name, candidate in candidates.items():
                if candidate.adoption is not None and name not in adopted:
                    continue  # it failed
                verdict = verdicts.get(name)
                if verdict is not None:
                    self._summary.compared[name] = verdict.sentence
                    candidate = replace(candidate, key_ranges=verdict.key_ranges)
                    if verdict.is_equal:
                        equal[name] = planner.compared(name, candidate, verdict.sentence)
                        continue
                progress = self._summary.copies[name] = CopyProgress()
                try:
                    tables.append(planner.plan(name, candidate, progress, adopted.get(name)))
                    if verdict is not None and tables[-1].state.key_ranges:
                        tables[-1].comparison = planner.compared(name, candidate, verdict.sentence)
                except NotPublishedError as error:
                    # It left since the poll, or is not where it is read from yet.
                    if name in self._gone:
                        progress.failure = str(error)
                    else:
                        gone.add(name)
                        del self._summary.copies[name]
                except SourceError as error:
                    progress.failure = str(error)
        self._gone = gone
        if tables:
            self._writer.record_relations([table.header.version for table in tables])
        if rows := [*planner.abandoned, *(reading_row(table.state, table.snapshot) for table in tables)]:
            self._writer.record_copies(rows)
        # Resumed copies precede those that would restart each time; small tables are complete soon.
        return sorted(tables, key=lambda table: (not table.state.snapshots, table.table.pages)), equal

    def _copy(self, snapshot: SourceSnapshot, tables: Sequence[TableCopy]) -> None:
        """Land what a snapshot has of the tables, and record which of them are complete."""
        copying = self._config.source.copying
        with closing(StagingFolder(self._bronze.lake, COPIES)) as staging:
            readers = ReaderPool(
                self._writer,
                staging,
                self._config.source.snapshot_conninfo,
                snapshot,
                tables,
                reader_count=copying.connections,
                throttle=self._throttle,
                stop=self._state.stop_copies,
                spool_limit=self._config.ingest.spool_limit,
            )
            invisible = InvisibleCommits(self._bronze, tables)
            landed: list[TableCopy] = []
            try:
                for table in readers.run():
                    landed.append(table)
                    is_recent = time.monotonic() - self._recorded_at < RECORD_SECONDS
                    # many small tables are recorded together
                    if self._state.captured_offset > snapshot.lsn and not is_recent:
                        self._record(landed, invisible)
                        landed = []
            finally:
                self._record(landed, invisible)

    def _record(self, tables: Sequence[TableCopy], invisible: InvisibleCommits) -> None:
        """Record that tables are complete, or why not, once bronze is past their snapshot."""
        rows: list[CopyRow] = []
        complete: list[TableCopy] = []
        read = [table for table in tables if table.failure is None]
        for table in tables:
            if isinstance(table.failure, RowsMoved):
                rows.append(abandoned_row(table.state, str(table.failure)))  # and is copied again
                attempts = self._candidates.attempts
                table.progress.failure = attempts.record_rewrite(table.state.name, table.request_ids)
            elif table.failure is not None:
                table.progress.failure = str(table.failure)
        if read and self._state.wait_past(read[0].snapshot.lsn):
            compared = {table.state.name: table.comparison for table in read if table.comparison}
            closing = self._closing_rows(compared) if compared else []
            rows += closing
            closed = {TableName(str(row["schema_name"]), str(row["table_name"])) for row in closing}
            for table in read:
                if table.comparison is not None and table.state.name not in closed:
                    rows.append(abandoned_row(table.state, _KEYS_CHANGED))
                    continue
                lsns = invisible.of(table.state.name)
                if lsns and table.state.snapshots:
                    sentence = "Transactions ended while a snapshot was taken: several do not fit together."
                    rows.append(abandoned_row(table.state, sentence))
                    continue
                if table.adopted is not None and table.state.row_count != table.adopted.source_rows:
                    sentence = (
                        f"The copy has {format_count(table.state.row_count, 'row')}, and the source has "
                    )
                    sentence += f"{table.adopted.source_rows}. The next run compares the tables again."
                    rows.append(abandoned_row(table.state, sentence))
                    table.progress.failure = sentence
                    continue
                rows.append(complete_row(table.state, lsns))
                complete.append(table)
            self._record_adoptions(complete)
        if rows:
            self._writer.record_copies(rows)
        for table in complete:
            table.progress.complete()
        self._recorded_at = time.monotonic()

    def _record_adoptions(self, tables: Sequence[TableCopy]) -> None:
        """Record an event of each table that was adopted."""
        events = [
            Event(*table.state.name, table.snapshot.lsn, "evolved", _adopted(table))
            for table in tables
            if table.adopted is not None
        ]
        if events:
            records = Records(self._bronze.lake)
            records.ensure()
            records.events.record(events)


def _compared(candidates: Mapping[TableName, Candidate]) -> dict[TableName, LSN | None]:
    return {name: each.rewrite for name, each in candidates.items() if each.compares}


def _adopted(table: TableCopy) -> str:
    adopted, progress = table.adopted, table.progress
    assert adopted is not None
    copied = table.state.row_count - progress.rows_adopted
    return (
        f"The table was adopted from version {adopted.version} of {adopted.path}: {copied:,} of "
        f"{format_count(table.state.row_count, 'row')} differed and were copied."
    )


class InvisibleCommits:
    """The commits that the snapshots of some tables do not see though they lie before; read once.

    Bronze must be past the newest snapshot: then no other ones are added.
    """

    def __init__(self, bronze: Bronze, tables: Sequence[TableCopy]) -> None:
        self._bronze = bronze
        self._snapshots = {table.state.name: [*table.state.snapshots, table.snapshot] for table in tables}
        self._found: Mapping[TableName, tuple[LSN, ...]] | None = None

    def of(self, name: TableName) -> tuple[LSN, ...]:
        """Return those of a table, in order."""
        if self._found is None:
            self._found = find_invisible_commits(
                self._bronze.changes, self._snapshots, self._bronze.copies.read()
            )
        return self._found.get(name, ())
