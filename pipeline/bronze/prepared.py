"""`{root}/bronze/prepared`: transactions that are prepared and neither committed nor rolled back yet.

Once a PREPARE is acknowledged, the server sends nothing more of the transaction than its end, maybe days
later and to another host. So its rows are kept here by a commit that precedes the acknowledgement. They have
the columns of `changes` with the LSNs of the PREPARE; one row of op `P` is that of the transaction itself,
which may be empty. COMMIT PREPARED appends them to `changes` under its own LSNs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.schema import CHANGES, STATISTICS_PROPERTY, spark_ddl, storable
from pipeline.bronze.staged_files import StagedFileWriter
from pipeline.bronze.staged_transactions import PreparedFile, PreparedOutcome
from pipeline.delta.commit_files import Epoch, commit_files
from pipeline.delta.data_files import DataFile
from pipeline.delta.log_retention import short_log
from pipeline.delta.parquet_files import named_if_damaged, open_data_file
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.spark.frames import local_frame
from pipeline.delta.sql import from_microseconds, literal
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, TxnId, TxnKind
from pipeline.protocol.events import CommittedPrepared
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import POSTGRES_EPOCH_MICROSECONDS

_COMMITTED = "gid STRING, xid BIGINT, commit_lsn BIGINT, end_lsn BIGINT, commit_time BIGINT"


class PreparedTransactions:
    """The prepared transactions of one pipeline, as one run of ingest commits them."""

    def __init__(self, table: LakeTable, changes: LakeTable, txn: TxnId, epoch: Epoch) -> None:
        self.table = table
        self._changes = changes
        self._txn = txn.of(TxnKind.PREPARED)
        self._epoch = epoch

    def keep(self, files: Sequence[tuple[PreparedFile, DataFile]]) -> None:
        """Keep prepared transactions, each in its file; one that is kept already stays as it is.

        The server may send one again, also after its end was acknowledged.
        """
        self.table.ensure(spark_ddl(CHANGES), STATISTICS_PROPERTY | short_log())
        kept = self.open()
        keys = transaction_keys(prepared for prepared, _ in files)
        new = [file for key, (_, file) in zip(keys, files, strict=True) if key not in kept]
        if new:
            commit_files(self.table, new, epoch=self._epoch)

    def commit(self, outcomes: Sequence[PreparedOutcome]) -> None:
        """Append committed transactions to `changes`, except those that an earlier run appended.

        A transaction that is not kept was empty: servers up to 17 send nothing but the end of one that only
        locked rows.
        """
        recorded = LSN(self._changes.offset(self._txn) or INVALID)
        commits = [o for o in outcomes if isinstance(o, CommittedPrepared) and o.end_lsn > recorded]
        if not commits:
            return
        table_commit = TableCommit(
            self._txn,
            max(commit.end_lsn for commit in commits),
            {"epoch": self._epoch.number},
            expected_offset=recorded,
        )
        if self.table.local_path is None:
            self._commit_by_spark(commits, table_commit)
            return
        # in the table's folder: without the commit it is garbage, as after a crash
        writer = StagedFileWriter(self._changes.folder)
        try:
            for rows in self._rows_of(dict(zip(transaction_keys(commits), commits, strict=True))):
                writer.write(rows)
        except BaseException:
            writer.discard()
            raise
        files = [writer.close().data] if writer.row_count else []
        if not files:
            writer.discard()
        commit_files(self._changes, files, table_commit, epoch=self._epoch)

    def _rows_of(self, commits: Mapping[tuple[str, int], CommittedPrepared]) -> Iterator[pa.Table]:
        """Yield the changes of these transactions under the LSNs of their commits."""
        for keys, read in _row_groups(self.table):
            present = set(zip(keys["gid"].to_pylist(), keys["xid"].to_pylist(), strict=True))
            for gid, xid in sorted(present & commits.keys()):
                is_of = (pc.field("gid") == gid) & (pc.field("xid") == xid) & (pc.field("op") != "P")
                if (rows := read().filter(is_of)).num_rows:
                    yield _committed(rows, commits[gid, xid])

    def _commit_by_spark(self, commits: Sequence[CommittedPrepared], table_commit: TableCommit) -> None:
        from pyspark.sql import functions as F

        committed = local_frame(
            self.table.spark,
            [
                {
                    "gid": storable(commit.gid),
                    "xid": commit.xid,
                    "commit_lsn": int(commit.commit_lsn),
                    "end_lsn": int(commit.end_lsn),
                    "commit_time": commit.commit_time + POSTGRES_EPOCH_MICROSECONDS,
                }
                for commit in commits
            ],
            _COMMITTED,
        ).withColumn("commit_time", F.expr("timestamp_micros(commit_time)"))
        rows = self.table.frame().where("op <> 'P'").drop("commit_lsn", "end_lsn", "commit_time")
        rows = rows.join(F.broadcast(committed), ["gid", "xid"]).select(*CHANGES.names)
        commit_files(self._changes, [], table_commit, frame=rows, epoch=self._epoch)

    def forget(self, ended: Collection[tuple[str, int]]) -> None:
        """Remove transactions that ended, by gid and xid; those that are removed already do no harm."""
        remaining = self.open().intersection(ended) if ended else ()
        if remaining:
            self._claim()
            keys = ", ".join(f"({literal(gid)}, {xid}L)" for gid, xid in sorted(remaining))
            is_ended = reduce(or_, ((pc.field("gid") == g) & (pc.field("xid") == x) for g, x in remaining))
            self._delete(is_ended, f"(gid, xid) IN ({keys})")

    def forget_all(self) -> None:
        """Remove all transactions."""
        if self.table.exists():
            self._claim()
            self._delete(pc.scalar(True), "true")

    def _delete(self, where: pc.Expression, condition: str) -> None:
        retry_conflicts(lambda: self.table.delete_rows(where, condition, ["gid", "xid"]))

    def _claim(self) -> None:
        """Prevent a delayed ingest from storing again what is now removed."""
        if self.table.path not in self._epoch.claimed:
            claim = TableCommit(self._epoch.txn, LSN(self._epoch.number))
            commit_files(self.table, [], claim, epoch=self._epoch)

    def open_count(self, outcomes: Sequence[PreparedOutcome] = ()) -> int:
        """Return how many transactions are open once these outcomes are known."""
        return len(self.open().difference(transaction_keys(outcomes)))

    def open(self, end_lsn: LSN | None = None) -> set[tuple[str, int]]:
        """Return gid and xid of the transactions that are kept, those alone whose PREPARE ends by an LSN."""
        if not self.table.exists():
            return set()
        rows = self.table.rows(["gid", "xid", "op", "end_lsn"]).filter(pc.field("op") == "P")
        if end_lsn is not None:
            rows = rows.filter(pc.field("end_lsn") <= int(end_lsn))
        return set(zip(rows["gid"].to_pylist(), rows["xid"].to_pylist(), strict=True))


def transaction_keys(transactions: Iterable[PreparedOutcome | PreparedFile]) -> list[tuple[str, int]]:
    """Return gid and xid of each, as the table has them: a gid alone may be used again."""
    return [(storable(transaction.gid), transaction.xid) for transaction in transactions]


def _row_groups(table: LakeTable) -> Iterator[tuple[pa.Table, Callable[[], pa.Table]]]:
    """Yield `gid` and `xid` of a part of the rows, and how to read that part."""
    paths = table.file_paths()
    if paths is None:
        rows = table.rows()
        yield rows.select(["gid", "xid"]), lambda: rows
        return
    for path in paths:
        with open_data_file(path) as file, named_if_damaged(path):
            for group in range(file.num_row_groups):
                keys = file.read_row_group(group, columns=["gid", "xid"])
                yield keys, partial(file.read_row_group, group)


def _committed(rows: pa.Table, commit: CommittedPrepared) -> pa.Table:
    """Return the rows of a prepared transaction as those of its commit."""
    time = from_microseconds(commit.commit_time + POSTGRES_EPOCH_MICROSECONDS)
    values = {"commit_lsn": int(commit.commit_lsn), "end_lsn": int(commit.end_lsn), "commit_time": time}
    columns = [
        pa.repeat(pa.scalar(values[field.name], field.type), rows.num_rows)
        if field.name in values
        else rows.column(field.name).cast(field.type)
        for field in CHANGES
    ]
    return pa.Table.from_arrays(columns, schema=CHANGES)
