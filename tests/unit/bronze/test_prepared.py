"""Prepared transactions without Spark: kept, committed under the LSNs of their ends, and removed."""

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.bronze.log import Bronze
from pipeline.bronze.prepared import PreparedTransactions
from pipeline.bronze.schema import CHANGES
from pipeline.bronze.staged_files import StagedFileWriter
from pipeline.bronze.staged_transactions import PreparedFile, PreparedOutcome
from pipeline.bronze.writer import BronzeWriter
from pipeline.delta.table import Lake
from pipeline.delta.txn import TxnKind
from pipeline.protocol.events import CommittedPrepared, RolledBackPrepared
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import POSTGRES_EPOCH_MICROSECONDS

AT = 1_700_000_000_123_456 - POSTGRES_EPOCH_MICROSECONDS


def rows_of(gid: str, xid: int, count: int) -> pa.Table:
    """Return the rows of one transaction: one of op `P`, and its changes."""
    rows: list[dict[str, Any]] = [{"op": "P", "gid": gid, "xid": xid, "commit_lsn": 10, "end_lsn": 20}]
    rows += [
        {"op": "I", "gid": gid, "xid": xid, "ordinal": n, "new": [str(n), None], "raw_new": [b"\xff"]}
        for n in range(count)
    ]
    return pa.Table.from_pylist(rows, CHANGES)


@pytest.fixture
def bronze(tmp_path: Path) -> Bronze:
    made = Bronze(Lake(str(tmp_path)), "shop")
    made.ensure()
    return made


@pytest.fixture
def prepared(bronze: Bronze) -> PreparedTransactions:
    return BronzeWriter(bronze, {}).prepared


def keep(prepared: PreparedTransactions, *transactions: tuple[str, int, int]) -> None:
    files = []
    for gid, xid, count in transactions:
        writer = StagedFileWriter(prepared.table.folder)
        writer.write(rows_of(gid, xid, count))
        staged = writer.close()
        files.append((PreparedFile(gid, xid, staged), staged.data))
    prepared.keep(files)


def committed(gid: str, xid: int, lsn: int) -> CommittedPrepared:
    return CommittedPrepared(gid, xid, LSN(lsn), LSN(lsn + 5), AT)


def test_each_is_kept_once(prepared: PreparedTransactions) -> None:
    keep(prepared, ("a", 1, 2), ("b", 2, 0))
    keep(prepared, ("a", 1, 2))
    assert prepared.open() == {("a", 1), ("b", 2)}
    assert len(prepared.table.rows()) == 4
    assert prepared.open_count([committed("a", 1, 50)]) == 1


def test_a_commit_appends_its_rows_under_its_own_lsn(bronze: Bronze, prepared: PreparedTransactions) -> None:
    keep(prepared, ("a", 1, 2), ("a", 7, 1), ("b", 2, 3))
    rolled_back = RolledBackPrepared("b", 2, LSN(60), LSN(65), AT, AT)
    outcomes: list[PreparedOutcome] = [committed("a", 1, 50), rolled_back, committed("no", 9, 70)]
    prepared.commit(outcomes)
    prepared.commit(outcomes)
    rows = bronze.changes.rows().to_pylist()
    assert [(r["gid"], r["xid"], r["ordinal"], r["commit_lsn"], r["end_lsn"]) for r in rows] == [
        ("a", 1, 0, 50, 55),
        ("a", 1, 1, 50, 55),
    ]
    assert rows[0]["commit_time"] == datetime.fromtimestamp(1_700_000_000, timezone.utc).replace(
        microsecond=123_456
    )
    assert (rows[0]["new"], rows[0]["raw_new"], rows[0]["op"]) == (["0", None], [b"\xff"], "I")
    assert bronze.changes.offset(bronze.txn.of(TxnKind.PREPARED)) == LSN(75)


def test_a_commit_of_empty_transactions_records_its_offset(
    bronze: Bronze, prepared: PreparedTransactions
) -> None:
    keep(prepared, ("a", 1, 0))
    prepared.commit([committed("a", 1, 50)])
    assert bronze.changes.offset(bronze.txn.of(TxnKind.PREPARED)) == LSN(55)
    assert len(bronze.changes.rows()) == 0
    assert not list(bronze.changes.folder.glob("*.parquet"))


def test_what_ended_is_removed_whatever_files_it_is_in(prepared: PreparedTransactions) -> None:
    keep(prepared, ("a", 1, 2), ("it's", 2, 1))
    prepared.table.compact_rows()
    keep(prepared, ("c", 3, 1), ("d", 4, 1))
    prepared.forget([("it's", 2), ("c", 3), ("gone", 5)])
    assert prepared.open() == {("a", 1), ("d", 4)}
    assert sorted(r["gid"] for r in prepared.table.rows(["gid"]).to_pylist()) == ["a", "a", "a", "d", "d"]
    version = prepared.table.version()
    prepared.forget([("it's", 2)])
    assert prepared.table.version() == version
    prepared.forget_all()
    assert (prepared.open(), len(prepared.table.snapshot().files)) == (set(), 0)
