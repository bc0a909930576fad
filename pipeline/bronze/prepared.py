"""`{root}/bronze/prepared`: transactions that were prepared and are not decided yet.

Once a PREPARE is acknowledged, the server sends nothing more of it than its end, maybe days later and to
another host: so its rows are kept here by a commit that comes before the acknowledgement. They look like rows
of `changes` with the positions of the PREPARE; one row of op `P` stands for the transaction itself, which may
be empty. COMMIT PREPARED appends them to `changes` under its own positions.
"""

from collections.abc import Collection, Iterable, Sequence

from pyspark.sql import functions as F

from pipeline.bronze.schema import CHANGES, STATISTICS, spark_ddl, storable
from pipeline.bronze.staged_files import Decision, Parked
from pipeline.delta.commit_files import DataFile, Epoch, commit_files
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.sql import literal
from pipeline.delta.table import Lake, LakeTable, local_frame
from pipeline.delta.txn import TableCommit, TxnId, TxnKind
from pipeline.protocol.events import CommittedPrepared
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import POSTGRES_EPOCH_MICROSECONDS

_DECIDED = "gid STRING, xid BIGINT, commit_lsn BIGINT, end_lsn BIGINT, commit_time BIGINT"


class PreparedTransactions:
    """The prepared transactions of one pipeline."""

    def __init__(self, lake: Lake, changes: LakeTable, txn: TxnId) -> None:
        self.table = lake.table("bronze", "prepared")
        self._changes = changes
        self._txn = txn.of(TxnKind.PREPARED)
        self.epoch: Epoch | None = None

    def ensure(self) -> None:
        """Create the table unless it is there."""
        statistics = {"delta.dataSkippingStatsColumns": ",".join(STATISTICS)}
        self.table.ensure(spark_ddl(CHANGES), statistics)

    def park(self, files: Sequence[tuple[Parked, DataFile]]) -> None:
        """Keep prepared transactions, each in its file; one that is kept already stays as it is.

        The server may send one again, also after its end was acknowledged.
        """
        self.ensure()
        known = self.open()
        names = identities(parked for parked, _ in files)
        new = [file for name, (_, file) in zip(names, files, strict=True) if name not in known]
        if new:
            commit_files(self.table, new, epoch=self.epoch)

    def land(self, decisions: Sequence[Decision]) -> None:
        """Append to `changes` what was committed; what was landed by an earlier run stays as it is.

        A transaction that is not here was empty: servers up to 17 send nothing but the end of one that only
        locked rows.
        """
        recorded = LSN(self._changes.offset(self._txn) or INVALID)
        commits = [d for d in decisions if isinstance(d, CommittedPrepared) and d.end_lsn > recorded]
        if not commits:
            return
        decided = local_frame(
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
            _DECIDED,
        ).withColumn("commit_time", F.expr("timestamp_micros(commit_time)"))
        positions = ("commit_lsn", "end_lsn", "commit_time")
        rows = self.table.frame().where("op <> 'P'").drop(*positions)
        landed = rows.join(F.broadcast(decided), ["gid", "xid"]).select(*CHANGES.names)
        newest = max(commit.end_lsn for commit in commits)
        facts = {"epoch": self.epoch.number} if self.epoch else {}
        landing = TableCommit(self._txn, newest, facts, expected_offset=recorded)
        commit_files(self._changes, [], landing, rows=landed, epoch=self.epoch)

    def forget(self, decided: Collection[tuple[str, int]]) -> None:
        """Remove what is decided and landed, named by gid and xid; what is removed already does no harm."""
        left = self.open().intersection(decided) if decided else ()
        if left:
            self._claim()
            ended = ", ".join(f"({literal(gid)}, {xid}L)" for gid, xid in sorted(left))
            table, sql = self.table.identifier, self.table.spark.sql
            retry_conflicts(lambda: sql(f"DELETE FROM {table} WHERE (gid, xid) IN ({ended})"))

    def _claim(self) -> None:
        """Keep an ingest that was held up from parking what is removed now."""
        epoch = self.epoch
        if epoch and self.table.path not in epoch.claimed:
            commit_files(self.table, [], TableCommit(epoch.txn, LSN(epoch.number)), epoch=epoch)

    def forget_all(self) -> None:
        """Remove all there are."""
        if self.table.exists():
            self._claim()
            table, sql = self.table.identifier, self.table.spark.sql
            retry_conflicts(lambda: sql(f"DELETE FROM {table}"))

    def open_count(self, decisions: Sequence[Decision] = ()) -> int:
        """Return how many are not decided, these decisions taken into account."""
        return len(self.open().difference(identities(decisions)))

    def open(self) -> set[tuple[str, int]]:
        """Return gid and xid of those that are kept."""
        if not self.table.exists():
            return set()
        rows = self.table.frame().where("op = 'P'").select("gid", "xid").collect()
        return {(row.gid, row.xid) for row in rows}


def identities(transactions: Iterable[Decision | Parked]) -> list[tuple[str, int]]:
    """Return the gid and the xid of each, as the table has them: a gid alone may be used again."""
    return [(storable(transaction.gid), transaction.xid) for transaction in transactions]
