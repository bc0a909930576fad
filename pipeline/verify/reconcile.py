"""Silver held against its source at one LSN, while both go on: every table by sums of its rows' hashes.

A version of each silver table is pinned, then a snapshot of the source is taken, which sees all that these
versions hold, and more. What is more is in bronze as soon as that is complete beyond the snapshot's position,
and is applied to a clone of the version (`lake.silver.snapshots`). Then both sides hold the same
transactions, to the last one, and any row that is not on both is a fault: of silver, of bronze, or of the
stream. A row that is changed between version and snapshot is compared with the change; a fault in what the
change sends is healed by it, as apply heals it.

The source's sums are read at once, before it empties a table or writes it anew, which takes away what the
snapshot saw. Nothing but numbers leaves either side, until the ranges that differ are small; of these rows
come hashes and keys. Where a table cannot be compared just now, because apply is changing its columns, say,
it is tried again with another snapshot.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from uuid import uuid4

from pyspark.sql import SparkSession

from pipeline.apply.detached_tables import detached_tables
from pipeline.bronze.copy_states import CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.locks import refuse_while_apply_runs
from pipeline.delta.spark.session import start_session
from pipeline.delta.table import Lake
from pipeline.errors import LakeError, report_error
from pipeline.ingest import job as ingesting
from pipeline.ingest.continuity import refuse_other_source
from pipeline.key_ranges import KeyRange
from pipeline.metadata.manifests import Manifests
from pipeline.metadata.reconciliations import (
    DIFFERENT,
    EQUAL,
    UNPROVEN,
    Difference,
    Reconciliation,
    Reconciliations,
)
from pipeline.metadata.records import Records
from pipeline.operate.run import run_both
from pipeline.postgres.connection import Connection, identify
from pipeline.postgres.published_tables import list_published
from pipeline.postgres.snapshot.comparable_text import Kind
from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.postgres.snapshot.read_table import RowsMoved, SnapshotLost
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.clone import CloneFolder, NoStableVersion, PinnedTable, SnapshotCloner, pin_table
from pipeline.silver.row_hashes import SilverRows
from pipeline.table_name import TableName, match_tables
from pipeline.verify.comparable_columns import ComparableColumns
from pipeline.verify.key_ranges import Differences, find_differences
from pipeline.verify.reconcile_report import Reconciled
from pipeline.verify.source_rows import SourceReads

# What brings rows that differ back to their source: a copy of their keys, or of the whole table.
MOST_KEYS = 1000  # more are a matter of the whole table
REASON = "it differs from the source"


def plan_repair(name: TableName, found: Differences, compared: ComparableColumns) -> CopyRequest:
    """Return a request for the keys of the rows that differ, or for all rows where keys do not tell them."""
    forms = [compared.shape.columns[place][1] for place in compared.shape.key]
    has_texts = all(form.kind not in (Kind.REAL, Kind.DOUBLE) for form in forms)  # those are bits
    keys = {tuple(text for text in row.key if text is not None) for row in found.rows}
    is_told = (
        bool(forms)
        and has_texts
        and found.is_whole
        and len(keys) <= MOST_KEYS
        and all(len(key) == len(forms) for key in keys)
    )
    return CopyRequest.of(name, REASON, [KeyRange(key, key) for key in sorted(keys)] if is_told else ())


def repair_sentence(request: CopyRequest) -> str:
    """Say what is copied anew."""
    if not request.key_ranges:
        return "the whole table is to be copied anew"
    count = len(request.key_ranges)
    return f"the rows of {count:,} key{'' if count == 1 else 's'} are to be copied anew"


WAIT_SECONDS = 150  # an idle bronze records its position once a minute
_ATTEMPTS = 5
_PAUSE = 2.0
_LOOK = 0.5
_STOPPED = "the run was stopped before it was compared"
Matches = Callable[[TableName], bool]


def run_reconcile(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    wait: float = WAIT_SECONDS,
    runs: bool = False,
    repairs: bool = False,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
) -> Reconciled:
    """Compare the tables that globs name, or all; `runs` captures what a comparison needs by itself.

    `repairs` asks for copies of the rows that differ; with `runs` they are made and applied at once.
    """
    matches = match_tables(globs)
    spark = spark or start_session(f"pgdelta reconcile {config.pipeline}")
    if repairs and runs:
        refuse_while_apply_runs(Lake(spark, config.storage.root))
    stop = stop or threading.Event()
    reconciler = Reconciler(spark, config, wait=wait, runs=runs, stop=stop)
    found = reconciler.run(matches)
    if not repairs or not reconciler.requests:
        return found
    Bronze(Lake(spark, config.storage.root), config.pipeline).copies.request(reconciler.requests)
    sentences = {request.name: repair_sentence(request) for request in reconciler.requests}
    return replace(found, repairs=sentences, run=run_both(config, spark=spark, stop=stop) if runs else None)


class Reconciler:
    """Compares tables with their source, several under one snapshot."""

    def __init__(
        self, spark: SparkSession, config: Config, *, wait: float, runs: bool, stop: threading.Event
    ) -> None:
        self._spark = spark
        self._config = config
        self._wait = wait
        self._runs = runs
        self._stop = stop
        self._lake = Lake.for_writing(spark, config.storage.root)
        self._bronze = Bronze(self._lake, config.pipeline)
        self._reports = Reconciliations(self._lake)
        self._run_id = uuid4().hex
        self._verdicts: dict[TableName, Reconciliation] = {}
        self.requests: list[CopyRequest] = []  # what would bring the rows that differ

    def run(self, matches: Matches) -> Reconciled:
        """Compare the tables that match, again and again those that cannot be just then."""
        if not self._bronze.changes.exists():
            raise LakeError(f"There is no bronze in {self._lake.root} yet: run pgdelta ingest first.")
        names: set[TableName] | None = None
        for attempt in range(_ATTEMPTS):
            if attempt and self._stop.wait(_PAUSE):
                break
            unsettled = self._round(matches, names)
            if attempt == 0 and not unsettled and not self._verdicts:
                raise self._lake.no_match()
            names = set(unsettled)
            if not names:
                break
        for name in sorted(names or ()):
            self._conclude(Reconciliation(name, UNPROVEN, sentence=unsettled[name]))
        verdicts = tuple(self._verdicts[name] for name in sorted(self._verdicts))
        return Reconciled(self._config.pipeline, self._run_id, verdicts)

    def _round(self, matches: Matches, names: set[TableName] | None) -> dict[TableName, str]:
        """Compare tables under one snapshot; return those that need another, each with the reason."""
        source = self._config.source
        pinned, unsettled = self._pin(matches, names)
        after = max((table.offset for table in pinned), default=INVALID)
        with ExitStack() as stack:
            taken = SnapshotKeeper(source.snapshot_conninfo, after, key=source.snapshot_key)
            keeper = stack.enter_context(closing(taken))
            is_ascii = self._check_place(keeper.connection)
            reads = SourceReads(self._config, self._lake, keeper.snapshot, is_ascii=is_ascii)
            stack.enter_context(reads).begin({table.name: table.registered for table in pinned})
            if names is None:
                with keeper.reading() as connection:
                    listed = list_published(connection, source.publication)
                published = self._chosen(matches, listed)
                missing = published - {table.name for table in pinned} - unsettled.keys()
                missing -= self._verdicts.keys()
                unsettled |= dict.fromkeys(missing, "silver has no table of it yet")
            if not self._reach(keeper.snapshot.lsn):
                return unsettled | dict.fromkeys((table.name for table in pinned), _STOPPED)
            clones = stack.enter_context(closing(CloneFolder(self._lake)))
            root, pipeline = self._lake.root, self._config.pipeline
            silver = SnapshotCloner(self._spark, root, pipeline, keeper.snapshot, clones)
            unsettled |= silver.find_invisible(pinned)
            for table in pinned:
                if table.name in unsettled:
                    continue
                if self._stop.is_set():
                    unsettled[table.name] = _STOPPED
                    continue
                try:
                    self._conclude(self._compare(table, silver, reads))
                except (RowsMoved, SnapshotLost, NoStableVersion) as error:
                    unsettled[table.name] = str(error)
                except Exception as error:  # the others are compared all the same
                    self._conclude(Reconciliation(table.name, UNPROVEN, sentence=report_error(error)))
                finally:
                    silver.clone_of(table.name).remove()
        return unsettled

    def _pin(
        self, matches: Matches, names: set[TableName] | None
    ) -> tuple[list[PinnedTable], dict[TableName, str]]:
        """Return a version of each silver table whose columns are known, and why not of the others."""
        records = Records(self._lake)
        manifest = Manifests(self._lake).last()
        shown = manifest.by_name if manifest else {}
        registered = records.tables.read()
        point = self._bronze.captured_offset()
        left = detached_tables(self._config, self._bronze.copies.read(), registered, point) if point else {}
        chosen = names if names is not None else self._chosen(matches, registered) - left.keys()
        pinned: list[PinnedTable] = []
        unsettled: dict[TableName, str] = {}
        for name in sorted(chosen):
            try:
                if name not in registered:
                    raise NoStableVersion("silver has no table of it yet")
                pinned.append(pin_table(self._bronze, registered[name], shown.get(name)))
            except NoStableVersion as error:
                unsettled[name] = str(error)
            except Exception as error:  # one that cannot be read stops no other
                self._conclude(Reconciliation(name, UNPROVEN, sentence=report_error(error)))
        again = Records(self._lake).tables.read()
        changed = {table.name for table in pinned if again.get(table.name) != table.registered}
        unsettled |= dict.fromkeys(changed, "apply is changing the table's columns")
        return [table for table in pinned if table.name not in changed], unsettled

    def _chosen(self, matches: Matches, names: Mapping[TableName, object]) -> set[TableName]:
        return {name for name in names if self._config.rule_for(name) is not None and matches(name)}

    def _check_place(self, connection: Connection) -> bool:
        """Refuse to compare with another server; say whether it knows nothing of its texts' encoding."""
        identity = identify(connection)
        refuse_other_source(self._bronze.metadata(), identity, self._config.source.snapshot_key)
        return identity.encoding == "SQL_ASCII"

    def _reach(self, lsn: LSN) -> bool:
        """Wait until bronze is complete beyond an LSN, or see to it; say whether it is."""
        if self._runs:
            ingesting.run_ingest(self._config, spark=self._spark, stop=self._stop)
        deadline = time.monotonic() + self._wait
        while (point := self._bronze.captured_offset()) is None or point.lsn <= lsn:
            if self._stop.wait(_LOOK):
                return False
            if time.monotonic() > deadline:
                raise LakeError(
                    f"Bronze is not complete up to the snapshot at {lsn} yet: is an ingest running? Add "
                    "--run to have it captured, or --wait to wait longer."
                )
        return True

    def _compare(self, pinned: PinnedTable, silver: SnapshotCloner, reads: SourceReads) -> Reconciliation:
        """Compare one table under the snapshot."""
        began = time.monotonic()
        if any(pinned.offset < gap.end for gap in self._bronze.copies.read().gaps):
            raise LakeError("the table stands before a gap of the stream, until it is copied beyond it")
        read = reads.read(pinned.name)
        rule = self._config.rule_for(pinned.name)
        assert rule is not None
        ours = silver.table_at_snapshot(pinned, rule, metadata_columns=self._config.silver.metadata_columns)
        compared = reads.plan(read, ours.columns, ours.fields)
        if not compared.silver:
            raise LakeError("no column can be compared")
        theirs = reads.side(read, compared.shape)
        found = find_differences(theirs, SilverRows(ours.frame, compared.silver, compared.shape.key))
        if not found.is_equal:
            self.requests.append(plan_repair(pinned.name, found, compared))
        return Reconciliation(
            pinned.name,
            EQUAL if found.is_equal else DIFFERENT,
            lsn=silver.end_lsn,
            silver_version=pinned.version,
            applied_lsn=pinned.offset,
            pending=ours.pending,
            source_rows=found.source_rows,
            silver_rows=found.silver_rows,
            missing=found.count("missing"),
            surplus=found.count("surplus"),
            changed=found.count("changed"),
            is_whole=found.is_whole,
            columns=_columns(found, compared),
            left_out=compared.skipped,
            misfits=theirs.misfits,
            seconds=time.monotonic() - began,
            rows=_rows(found, compared),
        )

    def _conclude(self, verdict: Reconciliation) -> None:
        self._reports.record(self._run_id, verdict)
        self._verdicts[verdict.name] = verdict


def _columns(found: Differences, compared: ComparableColumns) -> tuple[str, ...]:
    places = sorted({place for row in found.rows for place in row.columns})
    return tuple(compared.names[place] for place in places)


def _rows(found: Differences, compared: ComparableColumns) -> tuple[Difference, ...]:
    names = [compared.names[place] for place in compared.shape.key]
    return tuple(
        Difference(
            row.kind,
            json.dumps(dict(zip(names, row.key, strict=True)), ensure_ascii=False) if names else None,
            tuple(compared.names[place] for place in row.columns),
            row.copies,
        )
        for row in found.rows
    )
