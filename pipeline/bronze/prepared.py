"""`{root}/bronze/prepared`: transactions that are prepared and neither committed nor rolled back yet.

Once a PREPARE is acknowledged, the server sends nothing more of the transaction than its end, maybe days
later and to another host. So its rows are kept here by a commit that precedes the acknowledgement. They have
the columns of `changes` with the LSNs of the PREPARE; one row of op `P` is that of the transaction itself,
which may be empty. COMMIT PREPARED appends them to `changes` under its own LSNs.
"""

from collections.abc import Collection, Iterable, Sequence

from pyspark.sql import functions as F

from pipeline.bronze.schema import CHANGES, STATISTICS_PROPERTY, spark_ddl, storable
from pipeline.bronze.spool import PreparedFile, PreparedOutcome
from pipeline.delta.commit_files import DataFile, Epoch, commit_files
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.sql import literal
from pipeline.delta.table import LakeTable, local_frame
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
        self.table.ensure(spark_ddl(CHANGES), STATISTICS_PROPERTY)
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
        table_commit = TableCommit(
            self._txn,
            max(commit.end_lsn for commit in commits),
            {"epoch": self._epoch.number},
            expected_offset=recorded,
        )
        commit_files(self._changes, [], table_commit, rows=rows, epoch=self._epoch)

    def forget(self, ended: Collection[tuple[str, int]]) -> None:
        """Remove transactions that ended, by gid and xid; those that are removed already do no harm."""
        remaining = self.open().intersection(ended) if ended else ()
        if remaining:
            self._claim()
            keys = ", ".join(f"({literal(gid)}, {xid}L)" for gid, xid in sorted(remaining))
            table, sql = self.table.identifier, self.table.spark.sql
            retry_conflicts(lambda: sql(f"DELETE FROM {table} WHERE (gid, xid) IN ({keys})"))

    def forget_all(self) -> None:
        """Remove all transactions."""
        if self.table.exists():
            self._claim()
            table, sql = self.table.identifier, self.table.spark.sql
            retry_conflicts(lambda: sql(f"DELETE FROM {table}"))

    def _claim(self) -> None:
        """Prevent a delayed ingest from storing again what is now removed."""
        if self.table.path not in self._epoch.claimed:
            claim = TableCommit(self._epoch.txn, LSN(self._epoch.number))
            commit_files(self.table, [], claim, epoch=self._epoch)

    def open_count(self, outcomes: Sequence[PreparedOutcome] = ()) -> int:
        """Return how many transactions are open once these outcomes are known."""
        return len(self.open().difference(transaction_keys(outcomes)))

    def open(self) -> set[tuple[str, int]]:
        """Return gid and xid of the transactions that are kept."""
        if not self.table.exists():
            return set()
        rows = self.table.frame().where("op = 'P'").select("gid", "xid").collect()
        return {(row.gid, row.xid) for row in rows}


def transaction_keys(transactions: Iterable[PreparedOutcome | PreparedFile]) -> list[tuple[str, int]]:
    """Return gid and xid of each, as the table has them: a gid alone may be used again."""
    return [(storable(transaction.gid), transaction.xid) for transaction in transactions]
