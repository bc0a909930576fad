"""What is known of a table by all its comparisons: the newest, and the newest with each verdict."""

from pathlib import Path

import pytest

from pipeline.config.storage import Storage
from pipeline.delta.table import Lake, LakeTable
from pipeline.metadata.reconciliations import (
    DIFFERENT,
    EQUAL,
    UNPROVEN,
    Reconciliation,
    Reconciliations,
)
from pipeline.metadata.registry import verified_through
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

ONE, TWO = TableName("public", "one"), TableName("public", "two")


def test_a_difference_counts_until_a_later_comparison_finds_none(tmp_path: Path) -> None:
    lake = Lake(Storage(root=str(tmp_path)))
    reconciliations = Reconciliations(lake)
    assert reconciliations.compared() == {}
    rounds = [(EQUAL, DIFFERENT), (DIFFERENT, EQUAL), (UNPROVEN, UNPROVEN)]
    for lsn, verdicts in enumerate(rounds, 1):
        pairs = zip((ONE, TWO), verdicts, strict=True)
        reconciliations.record("run", [Reconciliation(name, verdict, LSN(lsn)) for name, verdict in pairs])
    one, two = (reconciliations.compared()[name] for name in (ONE, TWO))
    assert one.equal is not None
    assert one.different is not None
    assert (one.last.lsn, one.equal.lsn, one.different.lsn) == (3, 1, 2)
    assert two.equal is not None
    assert (two.last.lsn, two.equal.lsn, two.different) == (3, 2, None)
    assert verified_through(lake) == {ONE: 1, TWO: 2}


def test_comparisons_are_read_again_only_after_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(Storage(root=str(tmp_path)))
    reads: list[str] = []
    rows = LakeTable.rows

    def counted(table: LakeTable, *arguments: object, **options: object) -> object:
        reads.append(table.path)
        return rows(table, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LakeTable, "rows", counted)
    reconciliations = Reconciliations(lake)
    assert (reconciliations.compared(), len(reads)) == ({}, 0)
    for count in (1, 2):
        Reconciliations(lake).record("run", [Reconciliation(ONE, EQUAL, LSN(count))])
        for _ in range(3):
            assert reconciliations.compared()[ONE].last.lsn == count
        assert len(reads) == count


def test_comparisons_of_an_earlier_table_of_the_name_do_not_count(tmp_path: Path) -> None:
    reconciliations = Reconciliations(Lake(Storage(root=str(tmp_path))))
    found = [Reconciliation(ONE, EQUAL, LSN(n), relation_id=oid) for n, oid in ((1, None), (2, 7), (3, 8))]
    for each in found:
        reconciliations.record("run", [each])
    newest = {None: 3, 7: 2, 8: 3, 9: 1}  # that of an earlier release has no oid
    for oid, lsn in newest.items():
        assert reconciliations.compared({ONE: oid} if oid else None)[ONE].last.lsn == lsn
