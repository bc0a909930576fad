"""What is known of a table by all its comparisons: the newest, and the newest with each verdict."""

from pathlib import Path

from pipeline.config.storage import Storage
from pipeline.delta.table import Lake
from pipeline.metadata.reconciliations import (
    DIFFERENT,
    EQUAL,
    UNPROVEN,
    Reconciliation,
    Reconciliations,
    verified_through,
)
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
