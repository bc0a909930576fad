"""The fence of apply: after another process has taken over, a late owner of the lease commits nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pipeline.delta.commit_files import commit_files
from pipeline.delta.fence import Fence, fence_of, fenced, raise_if_fenced
from pipeline.delta.locks import claim_table
from pipeline.delta.native_commit import Operation
from pipeline.delta.native_write import create
from pipeline.delta.retry import ConflictError, SameWriteError
from pipeline.delta.schema import TableSchema
from pipeline.delta.store.lease import Lease
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, TxnId, TxnKind
from pipeline.errors import FencedError
from pipeline.protocol.lsn import LSN

FENCE = TxnId("shop", kind=TxnKind.FENCE)
OFFSET = TxnId("shop")
WRITE = Operation("WRITE", {"mode": "Append"})


def owner(root: Path, number: int, suspect: int) -> Fence:
    """Return the fence of a process that believes that it holds the lease."""
    lease = SimpleNamespace(number=number, suspect=suspect, check=lambda: None, place="", token="")
    return Fence(str(root), FENCE, cast(Lease, lease))


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    found = LakeTable(str(tmp_path / "silver" / "orders"))
    found.ensure("id INT")
    return found


def write(table: LakeTable, lsn: int) -> int:
    return table.commit(table.snapshot(), [], {str(OFFSET): lsn}, WRITE)


def recorded(table: LakeTable) -> int | None:
    return table.offsets().get(str(FENCE))


def test_the_first_commit_claims_a_table_that_an_earlier_owner_may_write(
    tmp_path: Path, table: LakeTable
) -> None:
    with fenced(owner(tmp_path, 7, suspect=5)):
        write(table, 1)
        assert recorded(table) == 7
    with fenced(owner(tmp_path, 8, suspect=5)):
        write(table, 2)
        assert recorded(table) == 7, "no owner before 7 may write any more, and 7 has released the lease"
    with fenced(owner(tmp_path, 9, suspect=8)):
        write(table, 3)
        assert recorded(table) == 9


def test_a_late_owner_is_refused_if_it_reads_before_or_after_the_claim(
    tmp_path: Path, table: LakeTable
) -> None:
    late, new = owner(tmp_path, 7, suspect=0), owner(tmp_path, 8, suspect=7)
    with fenced(late):
        write(table, 1)
        before = table.snapshot()
    with fenced(new):
        claim_table(table)
        claim_table(table)  # claims it once
        assert table.version() == before.version + 1
    with fenced(late):
        with pytest.raises(FencedError, match=r"Another apply has taken over and written to .*/orders"):
            table.commit(before, [], {str(OFFSET): 2}, WRITE)
        with pytest.raises(FencedError):
            write(table, 2)
        with pytest.raises(FencedError):
            claim_table(table)
    with fenced(new):
        write(table, 2)
    assert table.offsets() == {str(FENCE): 8, str(OFFSET): 2}


def test_the_new_owner_sees_a_commit_of_the_late_one_before_the_claim(
    tmp_path: Path, table: LakeTable
) -> None:
    late, new = owner(tmp_path, 7, suspect=0), owner(tmp_path, 8, suspect=7)
    with fenced(late):
        write(table, 5)
    with fenced(new):
        claim_table(table)
        assert table.offset(OFFSET) == 5


def test_two_commits_of_one_owner_that_both_claim_are_made_again(tmp_path: Path, table: LakeTable) -> None:
    with fenced(owner(tmp_path, 8, suspect=7)):
        before = table.snapshot()
        claim_table(table)
        with pytest.raises(ConflictError, match="Another commit of this run claimed"):
            table.commit(before, [], {str(OFFSET): 2}, WRITE)
        write(table, 2)


def test_another_writer_of_the_offset_is_reported_as_before(tmp_path: Path, table: LakeTable) -> None:
    with fenced(owner(tmp_path, 8, suspect=7)):
        claim_table(table)
        before = table.snapshot()
        write(table, 2)
        with pytest.raises(SameWriteError):
            table.commit(before, [], {str(OFFSET): 2}, WRITE)


def test_a_table_that_an_earlier_owner_created_meanwhile_is_read_again(tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path / "silver" / "new"))
    schema = TableSchema.of_ddl("id INT")
    with fenced(owner(tmp_path, 7, suspect=6)):
        create(table.folder, schema, {}, "{}")
        create(table.folder, schema, {}, "{}")  # as another thread of this process
        assert recorded(table) == 7
    with fenced(owner(tmp_path, 8, suspect=7)), pytest.raises(ConflictError, match="created meanwhile"):
        create(table.folder, schema, {}, "{}")
    with fenced(owner(tmp_path, 6, suspect=5)), pytest.raises(FencedError):
        create(table.folder, schema, {}, "{}")
    other = LakeTable(str(tmp_path / "silver" / "other"))
    other.ensure("id INT")
    with fenced(owner(tmp_path, 8, suspect=7)), pytest.raises(ConflictError):
        create(other.folder, schema, {}, "{}")


def test_a_process_that_has_lost_its_lease_commits_nothing(tmp_path: Path, table: LakeTable) -> None:
    def lost() -> None:
        raise FencedError("The lease is lost.")

    fence = owner(tmp_path, 8, suspect=0)
    fence.lease.check = lost  # type: ignore[method-assign]
    with fenced(fence):
        version = table.version()
        with pytest.raises(FencedError, match="lost"):
            write(table, 1)
        with pytest.raises(FencedError, match="lost"):
            raise_if_fenced(ValueError(), table.path)
        assert table.version() == version
    raise_if_fenced(ValueError(), table.path)
    with pytest.raises(FencedError, match="overtaken"):
        raise_if_fenced(FencedError("overtaken"), table.path)


def test_tables_of_bronze_and_of_other_lakes_are_not_fenced(tmp_path: Path) -> None:
    root = "s3a://bucket/lake"
    fence = Fence(root, FENCE, cast(Lease, None))
    with fenced(fence):
        assert fence_of("s3a://bucket/lake/silver/orders") is fence
        assert fence_of("s3://bucket/lake/_pgdelta/manifests") is fence
        for path in ("s3a://bucket/lake/bronze/changes", "s3a://bucket/lake2/silver/t", str(tmp_path)):
            assert fence_of(path) is None
    assert fence_of("s3a://bucket/lake/silver/orders") is None


def test_a_table_without_a_fence_gets_nothing_more(table: LakeTable) -> None:
    write(table, 1)
    claim_table(table)
    commit_files(table, [], TableCommit(OFFSET, LSN(2)))
    assert table.offsets() == {str(OFFSET): 2}
