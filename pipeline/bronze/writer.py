"""The commits of one run of ingest to bronze: staged transactions, rows of table copies, gaps.

Each commit of the stream records from which offset to which bronze is complete, and the source that the
changes came from. Bronze is ahead of the slot at any moment: what a commit depends on is committed before it,
and its offset is acknowledged to the slot after it. Commits to `changes`, `prepared` and `copies` carry the
epoch of the run, so that an ingest that was delayed while another one took over is refused. (A relation
version that it still records is harmless.)
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pipeline.bronze.column_numbers import CatalogHorizons
from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.bronze.prepared import PreparedTransactions, transaction_keys
from pipeline.bronze.relations import RelationVersion, relations_table
from pipeline.bronze.schema import RELATIONS, spark_ddl
from pipeline.bronze.staged_files import StagingFolder
from pipeline.bronze.staged_transactions import StagedTransactions
from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.commit_files import Epoch, commit_files
from pipeline.delta.data_files import DataFile
from pipeline.delta.new_rows import add_columns
from pipeline.delta.txn import TableCommit, TxnKind
from pipeline.errors import GapError
from pipeline.postgres.attributes import CatalogHorizon
from pipeline.protocol.lsn import INVALID, LSN

_COUNTS = ("transactions", "changes", "gap", "moved_from")  # of a commit, not of the offset that it records


class BronzeWriter:
    """Writes bronze under an epoch of its own; may be shared by threads."""

    def __init__(self, bronze: Bronze, source: Mapping[str, object]) -> None:
        """Begin the next epoch; `source` is what commits of the stream record of the source."""
        self.bronze = bronze
        self._source = source
        txn = bronze.txn.of(TxnKind.EPOCH)
        # A run that died may have claimed one of the tables only.
        claimed = (bronze.changes, bronze.prepared, bronze.copies.table)
        self.epoch = Epoch(txn, max(table.offset(txn) or 0 for table in claimed) + 1)
        self.prepared = PreparedTransactions(bronze.prepared, bronze.changes, bronze.txn, self.epoch)
        self._prepared_count = 0  # transactions that are prepared and have not ended
        self.horizons = CatalogHorizons()
        self.watched_xid: int | None = None
        """What transactions before this one (64 bits) altered is recorded, and needs no other look."""
        self._offset_lock = threading.Lock()

    def claim(self) -> None:
        """Refuse earlier ingests from now on; raise FencedError if a later one has begun."""
        commit_files(
            self.bronze.changes,
            [],
            TableCommit(self.epoch.txn, LSN(self.epoch.number)),
            epoch=self.epoch,
        )

    def start(self, offset: LSN) -> None:
        """Record the offset that an empty bronze begins with."""
        self.commit([], replace(self._offset_commit(offset, offset), expected_offset=INVALID))

    def record_offset_again(self, captured: BronzeOffset) -> None:
        """Record the captured offset again if Delta has forgotten it."""
        bronze = self.bronze
        if bronze.changes.offset(bronze.txn) is None:
            facts = {name: fact for name, fact in bronze.metadata().items() if name not in _COUNTS}
            facts["from_lsn"] = str(captured.lsn)
            self.commit([], TableCommit(bronze.txn, captured.lsn, facts))

    def continue_horizons(self, recorded: Mapping[str, Any]) -> None:
        """Go on with the horizon of the catalog that the newest commit records, if it is of this source."""
        if "catalog_xid" in recorded and self._source.items() <= recorded.items():
            lsn = LSN.parse(recorded["catalog_lsn"])
            self.horizons.add(CatalogHorizon(lsn, recorded["catalog_xid"]))
        if self._source.items() <= recorded.items():
            self.watched_xid = recorded.get("watched_xid")

    def check_prepared(self, recorded: Mapping[str, Any]) -> None:
        """Raise GapError if prepared transactions are missing that the newest commit counts.

        Those that the newest commit ended do not count: the run may have died before it forgot them.
        """
        if expected := int(recorded.get("prepared", 0)):
            found = len(self.prepared.open() - _decided(recorded))
            if found >= expected:
                return
            raise GapError(
                f"Bronze has {found} of {expected} prepared transactions, and the server does "
                f"not send them again. Restore {self.prepared.table.path}, or start over with a new "
                "storage.root."
            )

    def continue_prepared(self, recorded: Mapping[str, Any]) -> None:
        """Go on with the prepared transactions that the newest commit counts, without those that it ended."""
        self.prepared.forget(_decided(recorded))
        self._prepared_count = int(recorded.get("prepared", 0))

    def force_logs(self) -> None:
        """Force the commits of other runs to disk: those of a run that died may not be there yet."""
        bronze = self.bronze
        for table in (bronze.changes, bronze.relations, bronze.prepared, bronze.copies.table):
            table.force_log()

    def land(self, staged: StagedTransactions, staging: StagingFolder) -> None:
        """Commit staged transactions; their end LSN may be acknowledged once this returns."""
        if staged.versions:
            self.record_relations(staged.versions)
        if staged.prepared:
            self.prepared.keep([(p, staging.move(p.file, self.prepared.table)) for p in staged.prepared])
        if staged.outcomes:
            self.prepared.commit(staged.outcomes)
        if staged.prepared or staged.outcomes:
            self._prepared_count = self.prepared.open_count(staged.outcomes)
        files = [staging.move(file, self.bronze.changes) for file in staged.files]
        facts: dict[str, object] = {
            "transactions": staged.transaction_count,
            "changes": staged.change_count,
        }
        if ended := transaction_keys(staged.outcomes):
            facts["decided"] = ended
        with self._offset_lock:
            self.commit(files, self._offset_commit(staged.start_lsn, staged.end_lsn, **facts))
        self.prepared.forget(ended)

    def land_gap(self, start: LSN, end: LSN, sentence: str, **facts: object) -> None:
        """Move the offset over a gap of the stream, and record more facts about it."""
        self._prepared_count = self.prepared.open_count()
        self.commit([], self._offset_commit(start, end, gap=sentence, **facts))

    @contextmanager
    def keep_offset(self) -> Iterator[None]:
        """Let no offset be committed meanwhile; what is read of the stream waits."""
        with self._offset_lock:
            yield

    def record_relations(self, versions: Sequence[RelationVersion]) -> None:
        """Append relation versions; must be on disk before the changes that name them."""
        if any(version.at_rest for version in versions):
            add_columns(self.bronze.relations, spark_ddl(RELATIONS))
        rows = relations_table(versions).to_pylist()
        with crash_step(CrashStep.RECORD_RELATIONS):
            commit_files(self.bronze.relations, [], rows=(rows, spark_ddl(RELATIONS)))

    def record_copies(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows to `bronze/copies`."""
        self.bronze.copies.record(rows, self.epoch)

    def commit(self, files: Sequence[DataFile], *commits: TableCommit) -> None:
        """Append files (possibly none) in the table's folder to `changes`, in one commit with offsets."""
        epoch = {"epoch": self.epoch.number}
        commits = tuple(replace(each, metadata={**each.metadata, **epoch}) for each in commits)
        with crash_step(CrashStep.COMMIT_BRONZE):
            commit_files(self.bronze.changes, files, *commits, epoch=self.epoch)

    def _offset_commit(self, start: LSN, end: LSN, **facts: object) -> TableCommit:
        metadata = {
            **self._source,
            "from_lsn": str(start),
            "to_lsn": str(end),
            **facts,
            "prepared": self._prepared_count,
        }
        if (horizon := self.horizons.before(end)) is not None:
            metadata |= {"catalog_lsn": str(horizon.lsn), "catalog_xid": horizon.xid}
        if self.watched_xid is not None:
            metadata["watched_xid"] = self.watched_xid
        return TableCommit(self.bronze.txn, end, metadata, expected_offset=start)


def _decided(recorded: Mapping[str, Any]) -> set[tuple[str, int]]:
    """Return gid and xid of the prepared transactions that a commit ended."""
    return {(gid, xid) for gid, xid in recorded.get("decided", ())}
