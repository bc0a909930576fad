"""What became of a silver table since the last manifest, by its version, id and position."""

import pytest

from pipeline.apply.expected_versions import ExpectedVersion, FirstCommit, TableChange, classify_change
from pipeline.delta.record_table import record_of, row_of
from pipeline.metadata.manifests import ManifestEntry
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

NAME = TableName("public", "t")
ENTRY = ManifestEntry(*NAME, "file:/lake/silver/public/t", 5, LSN(90), False, "a", LSN(70))


def verdict(
    found: ExpectedVersion, entry: ManifestEntry | None = ENTRY, origin: FirstCommit | None = None
) -> TableChange:
    def ask() -> FirstCommit:
        assert origin is not None, "the table's log is read where ids differ, and not otherwise"
        return origin

    return classify_change(NAME, entry, found, ask)


@pytest.mark.promise("silver folders that lack rows")
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ExpectedVersion(5, "a", LSN(70)), TableChange.SAME),
        (ExpectedVersion(9, "a", LSN(70)), TableChange.SAME),  # somebody's OPTIMIZE
        (ExpectedVersion(6, "a", LSN(80)), TableChange.SAME),  # a run that ended before its manifest
        (ExpectedVersion(-1, "", INVALID), TableChange.MISSING),
        (ExpectedVersion(3, "a", LSN(50)), TableChange.OLDER),
        (
            ExpectedVersion(8, "a", LSN(50)),
            TableChange.OLDER,
        ),  # put back, then changed by somebody's OPTIMIZE
        (ExpectedVersion(4, "a", LSN(70)), TableChange.OLDER),  # a column that came without rows is not there
        (
            ExpectedVersion(5, "a", INVALID),
            TableChange.SAME,
        ),  # its position is forgotten: that is refused elsewhere
    ],
)
def test_a_table_is_judged_by_its_log(found: ExpectedVersion, expected: TableChange) -> None:
    assert verdict(found) is expected


@pytest.mark.parametrize(
    ("found", "origin", "expected"),
    [
        (
            ExpectedVersion(0, "b", LSN(80)),
            FirstCommit(NAME, INVALID),
            TableChange.SAME,
        ),  # built again, then the run ended
        (ExpectedVersion(9, "b", LSN(60)), FirstCommit(NAME, INVALID), TableChange.OLDER),
        (
            ExpectedVersion(0, "b", LSN(80)),
            FirstCommit(NAME, LSN(70)),
            TableChange.OLDER,
        ),  # begun in the middle
        (
            ExpectedVersion(9, "b", LSN(80)),
            FirstCommit(TableName("public", "other"), INVALID),
            TableChange.REPLACED,
        ),
        (ExpectedVersion(9, "b", LSN(80)), FirstCommit(), TableChange.REPLACED),
    ],
)
def test_a_table_of_another_id_is_judged_by_how_it_began(
    found: ExpectedVersion, origin: FirstCommit, expected: TableChange
) -> None:
    assert verdict(found, origin=origin) is expected


def test_a_table_that_no_manifest_has_is_taken_as_it_is() -> None:
    assert verdict(ExpectedVersion(9, "b", LSN(80)), None) is TableChange.SAME
    failed = ManifestEntry(*NAME, ENTRY.path, -1, INVALID, True)
    assert verdict(ExpectedVersion(-1, "", INVALID), failed) is TableChange.SAME


@pytest.mark.parametrize(
    ("now", "is_same"),
    [
        (ExpectedVersion(5, "a", LSN(70)), True),
        (ExpectedVersion(6, "a", LSN(70)), True),
        (ExpectedVersion(4, "a", LSN(70)), False),
        (ExpectedVersion(6, "a", LSN(71)), False),
        (ExpectedVersion(6, "a", LSN(69)), False),
        (ExpectedVersion(6, "b", LSN(70)), False),
        (ExpectedVersion(-1, "", INVALID), False),
    ],
)
def test_a_write_requires_the_table_that_was_read(now: ExpectedVersion, is_same: bool) -> None:
    assert now.follows(ExpectedVersion(5, "a", LSN(70))) is is_same


@pytest.mark.promise("versions that are gone")
def test_a_manifest_that_has_no_id_of_a_table_refuses_none() -> None:
    entry = record_of(ManifestEntry, row_of(ENTRY) | {"table_id": None})
    assert verdict(ExpectedVersion(5, "a", LSN(70)), entry) is TableChange.SAME
    assert verdict(ExpectedVersion(4, "a", LSN(70)), entry) is TableChange.OLDER
