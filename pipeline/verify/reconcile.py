"""Reconcile silver with its source at one LSN, while both continue: every table by sums of its rows' hashes.

A version of each silver table is pinned, then a snapshot of the source is exported, which sees all
transactions of these versions and some later ones. The later ones are in bronze once bronze is complete past
the snapshot's LSN, and are added to the version (`silver/compare/clone.py`). Both sides then hold
exactly the same transactions, and a row that is not on both is a fault of silver, bronze or the stream. A row
that changed between version and snapshot is compared with the change, which repairs it as apply does.

A proof does not read silver: the sum of all its rows is that of its files' fingerprints, which were recorded
when each file was read once. Only a table whose sum differs is read, to find its rows.

The source's sums are read at once, before a table is truncated or rewritten, which removes what the snapshot
saw. Only numbers leave either side until the ranges that differ are small; then the hashes and keys of their
rows are read. A table that cannot be compared at the moment, for example because apply is changing its
columns, is tried again with another snapshot.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from uuid import uuid4

from pipeline.bronze.copy_states import CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.locks import find_running_apply, refuse_while_apply_runs
from pipeline.delta.table import Lake
from pipeline.errors import NOTICES, LakeError, TableLockedError, report_error
from pipeline.key_ranges import KeyRange
from pipeline.metadata.manifests import Manifests
from pipeline.metadata.reconciliations import (
    DIFFERENT,
    EQUAL,
    PROVE,
    RECONCILE,
    UNPROVEN,
    Difference,
    Method,
    Reconciliation,
    Reconciliations,
)
from pipeline.metadata.registry import Records
from pipeline.metadata.status import StatusTable
from pipeline.postgres.connection import Connection, identify
from pipeline.postgres.matched_relations import read_relations
from pipeline.postgres.publication import list_published
from pipeline.postgres.same_source import refuse_other_source
from pipeline.postgres.snapshot.comparable_forms import HashedKind
from pipeline.postgres.snapshot.export import RowsMoved, SnapshotKeeper, SnapshotLost
from pipeline.postgres.snapshot.hashed_rows import ValueCount
from pipeline.postgres.unpublished_tables import list_generated
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.compare.clone import (
    CloneFolder,
    NoStableVersion,
    PinnedVersion,
    SnapshotCloner,
    pin_table,
)
from pipeline.silver.compare.comparable_columns import ComparableColumns
from pipeline.silver.compare.compared_rows import FrameRows, fields_of, rows_of
from pipeline.silver.compare.differing_rows import FIRST_DIGITS, Differences, Side, find_differences
from pipeline.silver.compare.file_fingerprints import FileFingerprints, FileSums
from pipeline.silver.compare.row_hashes import SilverHashes
from pipeline.silver.compare.source_rows import SourceReads
from pipeline.silver.fold.modes import kept_as, mode_changed, why_not_comparable
from pipeline.silver.lake_facts import detached_tables, require_followed
from pipeline.silver.read.missing_tables import no_match
from pipeline.table_name import TableName, match_tables
from pipeline.units import format_count
from pipeline.verify.reconcile_report import Reconciled

WAIT_SECONDS = 150  # an idle bronze records its offset once a minute
MAX_KEYS = 1000  # of a partial resync; for more differing rows all rows are copied
_ATTEMPTS = 5
_PAUSE = 2.0  # seconds
_POLL_PAUSE = 0.5
_NOT_PUBLISHED = (
    "It is not published any more, so silver shows it as it was. Run an ingest, which records why."
)
_GENERATED = "it is generated and not published, so silver does not have it"
_GENERATED_BEFORE = "it is generated and not published any more, so silver keeps it as it was"
_NOT_FOLLOWED = "It is not followed any more, so silver shows it as it was."
_NO_SILVER = "Silver has no table of it yet."
_STOPPED = "The run was stopped before it was compared."
Matches = Callable[[TableName], bool]


def run_reconcile(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    names: Collection[TableName] | None = None,
    wait: float = WAIT_SECONDS,
    runs: bool = False,
    repairs: bool = False,
    method: Method = RECONCILE,
    budget: int | None = None,
    stop: threading.Event | None = None,
) -> Reconciled:
    """Compare the tables that globs match, or with these names, or all.

    `runs` captures what a comparison needs by itself. `repairs` requests copies of the rows that differ; with
    `runs` they are made and applied at once. A proof reads at most `budget` bytes of the source's tables a
    second.
    """
    matches = match_tables(globs) if names is None else names.__contains__
    stop = stop or threading.Event()
    reconciler = Reconciler(
        config, wait=wait, runs=runs, stop=stop, command=method, method=method, budget=budget
    )
    if repairs and runs:
        refuse_while_apply_runs(reconciler.lake)
    found = reconciler.run(matches, globs)
    if not repairs or not reconciler.requests:
        return found
    Bronze(reconciler.lake, config.pipeline).copies.request(reconciler.requests)
    found = replace(
        found, repairs={request.name: repair_sentence(request) for request in reconciler.requests}
    )
    if not runs:
        return found
    from pipeline.operate.run import run_both  # takes long

    return replace(found, run=run_both(config, stop=stop))


class Reconciler:
    """Compares tables with their source, several under one snapshot."""

    def __init__(
        self,
        config: Config,
        *,
        wait: float,
        runs: bool,
        stop: threading.Event,
        command: str,
        method: Method = RECONCILE,
        budget: int | None = None,
        counts_values: bool = False,
    ) -> None:
        self._config = config
        self._wait = wait
        self._runs = runs
        self._stop = stop
        application = f"pgdelta {command} {config.pipeline}"
        self.lake = Lake.for_writing(config.storage, application=application)
        self._bronze = Bronze(self.lake, config.pipeline)
        self._reports = Reconciliations(self.lake)
        self._run_id = uuid4().hex
        self._verdicts: dict[TableName, Reconciliation] = {}
        self._unrecorded: list[Reconciliation] = []  # a proof records all tables of a snapshot in one commit
        self._counts_values = counts_values
        self._method = method
        self._budget = budget
        self._files = FileFingerprints(self.lake) if method == PROVE else None
        self._digits = FIRST_DIGITS if self._files is None else 0
        self._partial: Mapping[TableName, str] = {}
        self._generated: Mapping[TableName, list[str]] = {}  # columns that are not published
        self._by_spark: dict[TableName, str] = {}
        self._unstable: set[TableName] = set()  # in this attempt; only apply could change that
        self.requests: list[CopyRequest] = []  # for the rows that differ
        self.values: dict[TableName, Mapping[str, ValueCount]] = {}  # of tables that were compared

    def run(self, matches: Matches, globs: Sequence[str] | None) -> Reconciled:
        """Compare the tables that match, and that globs name; try again those that cannot be just then."""
        self._bronze.require_offset()
        names: set[TableName] | None = None
        for attempt in range(_ATTEMPTS):
            if attempt and self._stop.wait(_PAUSE):
                break
            was_applied = self._is_applied()
            self._unstable.clear()
            unsettled = self._compare_all(matches, names)
            if attempt == 0 and not unsettled and not self._verdicts:
                registered = Records(self.lake).tables.read()
                require_followed(self._chosen(matches, registered), self._detached(registered))
                raise no_match(self.lake, self._config, globs)
            names = set(unsettled)
            if not names or (names <= self._unstable and not (was_applied or self._is_applied())):
                break
        for name in sorted(names or ()):
            self._conclude(Reconciliation(name, UNPROVEN, sentence=unsettled[name]))
        self._record()
        verdicts = tuple(self._verdicts[name] for name in sorted(self._verdicts))
        partial = {name: self._partial[name] for name in self._verdicts.keys() & self._partial.keys()}
        return Reconciled(
            self._config.pipeline,
            self._run_id,
            verdicts,
            partial=partial,
            by_spark=self._by_spark,
            files=None if self._files is None else self._files.counts,
        )

    def _is_applied(self) -> bool:
        """Return whether apply may be running; it may where its lock cannot be used."""
        try:
            return find_running_apply(self.lake) is not None
        except LakeError:
            return True

    def _compare_all(self, matches: Matches, names: set[TableName] | None) -> dict[TableName, str]:
        """Compare tables under one snapshot; return those that need another one, each with the reason."""
        source = self._config.source
        pinned, unsettled = self._pin(matches, names)
        pinned_lsn = max((table.offset for table in pinned), default=INVALID)
        with ExitStack() as stack:
            snapshot = SnapshotKeeper(source.snapshot_conninfo, pinned_lsn, key=source.snapshot_key)
            keeper = stack.enter_context(closing(snapshot))
            is_ascii = self._check_source(keeper.connection)
            with keeper.reading() as connection:
                listed = list_published(connection, source.publication)
                relations = read_relations(connection, self._config)
                self._generated = list_generated(connection, source.publication)
            self._partial = relations.notes(listed)
            left = dict.fromkeys({table.name for table in pinned} - listed.keys(), _NOT_PUBLISHED)
            left |= {name: f"{_NOT_FOLLOWED} {why}" for name, why in relations.refused(listed).items()}
            for name in left.keys() & {table.name for table in pinned}:
                self._conclude(Reconciliation(name, UNPROVEN, sentence=left[name]))
            pinned = [table for table in pinned if table.name not in left]
            if names is None:
                missing = self._chosen(matches, listed) - {table.name for table in pinned}
                missing -= unsettled.keys() | self._verdicts.keys()
                unsettled |= dict.fromkeys(missing, _NO_SILVER)
                self._unstable |= missing
            reads = SourceReads(
                self._config,
                self.lake,
                keeper.snapshot,
                is_ascii=is_ascii,
                digits=self._digits,
                budget=self._budget,
            )
            stack.enter_context(reads).start({table.name: table.registered for table in pinned})
            if not self._capture_beyond(keeper.snapshot.lsn):
                return unsettled | dict.fromkeys((table.name for table in pinned), _STOPPED)
            clones = stack.enter_context(closing(CloneFolder(self.lake)))
            pipeline, writer = self._config.pipeline, self._config.silver.writer
            silver = SnapshotCloner(self.lake, pipeline, keeper.snapshot, clones, writer)
            unsettled |= silver.find_invisible(pinned)
            for table in pinned:
                if table.name in unsettled:
                    continue
                if self._stop.is_set():
                    unsettled[table.name] = _STOPPED
                    continue
                try:
                    self._conclude(self._compare(table, silver, reads))
                except NoStableVersion as error:
                    unsettled[table.name] = str(error)
                    self._unstable.add(table.name)
                except (RowsMoved, SnapshotLost, TableLockedError) as error:
                    unsettled[table.name] = str(error)
                except Exception as error:  # the others are compared all the same
                    self._conclude(Reconciliation(table.name, UNPROVEN, sentence=report_error(error)))
                finally:
                    silver.clone_of(table.name).remove()
            self._record()
        return unsettled

    def _pin(
        self, matches: Matches, names: set[TableName] | None
    ) -> tuple[list[PinnedVersion], dict[TableName, str]]:
        """Return a version of each silver table whose columns are settled, and why others have none."""
        records = Records(self.lake)
        manifest = Manifests(self.lake).last()
        shown = manifest.by_name if manifest else {}
        failures = StatusTable(self.lake).failures()
        registered = records.tables.read()
        chosen = names
        if chosen is None:
            chosen = self._chosen(matches, registered) - self._detached(registered).keys()
        pinned: list[PinnedVersion] = []
        unsettled: dict[TableName, str] = {}
        for name in sorted(chosen):
            try:
                if name not in registered:
                    raise NoStableVersion(_NO_SILVER)
                pinned.append(pin_table(self._bronze, registered[name], shown.get(name)))
            except NoStableVersion as error:
                failure, applied = failures.get(name), shown[name].applied_lsn if name in shown else INVALID
                is_failed = failure is not None and failure.applied == applied
                unsettled[name] = failure.sentence if failure and is_failed else str(error)
                self._unstable.add(name)
            except Exception as error:  # one that cannot be read stops no other
                self._conclude(Reconciliation(name, UNPROVEN, sentence=report_error(error)))
        again = Records(self.lake).tables.read()
        changed = {table.name for table in pinned if again.get(table.name) != table.registered}
        unsettled |= dict.fromkeys(changed, "Apply is changing the table's columns.")
        return [table for table in pinned if table.name not in changed], unsettled

    def _detached(self, names: Iterable[TableName]) -> dict[TableName, str]:
        captured = self._bronze.captured_offset()
        if captured is None:
            return {}
        return detached_tables(self._config, self._bronze.copies.read(), names, captured)

    def _chosen(self, matches: Matches, names: Mapping[TableName, object]) -> set[TableName]:
        return {name for name in names if self._config.rule_for(name) is not None and matches(name)}

    def _check_source(self, connection: Connection) -> bool:
        """Refuse to compare with another server; return whether it has no encoding of its texts."""
        identity = identify(connection)
        refuse_other_source(self._bronze.metadata(), identity, self._config.source.snapshot_key)
        return identity.encoding == "SQL_ASCII"

    def _capture_beyond(self, lsn: LSN) -> bool:
        """Wait until bronze is complete past an LSN, or capture that far; return whether it is."""
        from pipeline.ingest import job as ingesting  # takes long, and the source is being read already

        deadline = time.monotonic() + self._wait
        has_notice = self._runs
        while True:
            if self._runs:  # again: a server may flush what ends at the snapshot only after a run has begun
                ingesting.run_ingest(self._config, stop=self._stop)
            point = self._bronze.captured_offset()
            if point is not None and point.lsn > lsn:
                return True
            if not has_notice:
                has_notice = True
                NOTICES.info(
                    f"Waiting up to {self._wait:.0f} s for an ingest to capture what committed before "
                    f"{lsn}. Add --run where none is running."
                )
            if self._stop.wait(_POLL_PAUSE):
                return False
            if time.monotonic() > deadline:
                raise LakeError(
                    f"Bronze is not complete up to the snapshot at {lsn}. Start an ingest, or add --run to "
                    "have it captured, or --wait to wait longer."
                )

    def _compare(self, pinned: PinnedVersion, silver: SnapshotCloner, reads: SourceReads) -> Reconciliation:
        """Compare one table under the snapshot."""
        started = time.monotonic()
        if any(pinned.offset < gap.end for gap in self._bronze.copies.read().gaps):
            raise LakeError("The table is before a gap of the stream until its resync is complete.")
        read = reads.read(pinned.name)
        rule = self._config.rule_for(pinned.name)
        assert rule is not None
        if reason := why_not_comparable(rule):
            raise LakeError(reason)
        if pinned.registered.mode != kept_as(rule):
            raise LakeError(mode_changed(pinned.name, pinned.registered.mode, kept_as(rule)))
        of_silver = silver.table_at_snapshot(
            pinned, rule, metadata_columns=self._config.silver.metadata_columns
        )
        columns, version = of_silver.registered.columns, of_silver.version
        compared = reads.plan(read, columns, fields_of(version), version.partition_columns)
        compared.require_any()
        if self._counts_values:
            self.values[pinned.name] = reads.count_values(pinned.name, compared.shape)
        of_source = reads.side(read, compared.shape)
        key = compared.shape.key
        side: Side = SilverHashes(of_silver.rows, compared.silver, key)
        if isinstance(of_silver.rows, FrameRows):
            self._by_spark[pinned.name] = of_silver.rows.reason
        elif self._files is not None:
            side = FileSums(self._files, of_silver.rows, compared.silver, key)
        found = find_differences(of_source, side, digits=self._digits)
        if not found.is_equal:
            self.requests.append(plan_repair(pinned.name, found, compared))
        return replace(
            _verdict(pinned.name, found, compared),
            left_out={**compared.skipped, **self._why_not_compared(pinned)},
            lsn=silver.end_lsn,
            silver_version=pinned.version,
            applied_lsn=pinned.offset,
            pending=of_silver.pending,
            misfits=of_source.misfits,
            method=self._method,
            fingerprint=None if found.fingerprint is None else str(found.fingerprint),
            relation_id=pinned.registered.relation_id,
            seconds=time.monotonic() - started,
        )

    def _why_not_compared(self, pinned: PinnedVersion) -> dict[str, str]:
        """Return why generated columns of a table that are not published are not compared."""
        kept = {column.name for column in pinned.registered.columns}
        names = self._generated.get(pinned.name, ())
        return {name: _GENERATED_BEFORE if name in kept else _GENERATED for name in names}

    def _conclude(self, verdict: Reconciliation) -> None:
        if verdict.sentence != _STOPPED:  # else it is due as before
            self._unrecorded.append(verdict)
        if self._files is None:
            self._record()
        self._verdicts[verdict.name] = verdict

    def _record(self) -> None:
        """Record the verdicts that are not recorded yet, and the fingerprints of the files that were read."""
        unrecorded, self._unrecorded = self._unrecorded, []
        if self._files is not None:
            self._files.record()
        self._reports.record(self._run_id, unrecorded)


def compare_at_rest(config: Config, lake: Lake, names: Sequence[TableName]) -> list[Reconciliation]:
    """Compare silver tables as they are with the source as it is, while nothing writes to either.

    A table that silver does not have is left out.
    """
    registered = Records(lake).tables.read()
    tables = {name: registered[name] for name in names if name in registered}
    source, verdicts = config.source, []
    with ExitStack() as stack:
        snapshot = SnapshotKeeper(source.snapshot_conninfo, key=source.snapshot_key)
        keeper = stack.enter_context(closing(snapshot))
        is_ascii = identify(keeper.connection).encoding == "SQL_ASCII"
        reads = stack.enter_context(SourceReads(config, lake, keeper.snapshot, is_ascii=is_ascii))
        reads.start(tables)
        for name, table in tables.items():
            silver = lake.table_at(table.path)
            read = reads.read(name)
            version = silver.snapshot()
            compared = reads.plan(read, table.columns, fields_of(version), version.partition_columns)
            present = rows_of(silver, version, table, config.silver.writer)
            rows = SilverHashes(present, compared.silver, compared.shape.key)
            found = find_differences(reads.side(read, compared.shape), rows)
            verdicts.append(replace(_verdict(name, found, compared), lsn=LSN(keeper.snapshot.lsn + 1)))
    return verdicts


def _verdict(name: TableName, found: Differences, compared: ComparableColumns) -> Reconciliation:
    return Reconciliation(
        name,
        EQUAL if found.is_equal else DIFFERENT,
        source_rows=found.source_rows,
        silver_rows=found.silver_rows,
        missing=found.count("missing"),
        surplus=found.count("surplus"),
        changed=found.count("changed"),
        is_whole=found.is_whole,
        columns=_columns(found, compared),
        left_out=compared.skipped,
        rows=_rows(found, compared),
    )


def _columns(found: Differences, compared: ComparableColumns) -> tuple[str, ...]:
    indexes = sorted({index for row in found.rows for index in row.columns})
    return tuple(compared.names[index] for index in indexes)


def _rows(found: Differences, compared: ComparableColumns) -> tuple[Difference, ...]:
    names = [compared.names[index] for index in compared.shape.key]
    return tuple(
        Difference(
            row.kind,
            json.dumps(dict(zip(names, row.key, strict=True)), ensure_ascii=False) if names else None,
            tuple(compared.names[index] for index in row.columns),
            row.copies,
        )
        for row in found.rows
    )


def plan_repair(name: TableName, found: Differences, compared: ComparableColumns) -> CopyRequest:
    """Return a request for the keys of the rows that differ, or for all rows if keys do not identify them."""
    forms = [compared.shape.columns[index][1] for index in compared.shape.key]
    has_texts = all(form.kind not in (HashedKind.REAL, HashedKind.DOUBLE) for form in forms)  # those are bits
    keys = {tuple(text for text in row.key if text is not None) for row in found.rows}
    is_partial = (
        bool(forms)
        and has_texts
        and found.is_whole
        and len(keys) <= MAX_KEYS
        and all(len(key) == len(forms) for key in keys)
    )
    ranges = [KeyRange(key, key) for key in sorted(keys)] if is_partial else ()
    return CopyRequest.repair(name, ranges)


def repair_sentence(request: CopyRequest) -> str:
    """Return a request in words."""
    if not request.key_ranges:
        return "A resync of the whole table is requested."
    count = len(request.key_ranges)
    return f"A partial resync of {format_count(count, 'key')} is requested."
