"""What became of a silver table since the last manifest, by its version, id and position."""

from __future__ import annotations

import pytest

from pipeline.apply.expected_versions import FirstCommit, TableChange, TableVersion, classify_change
from pipeline.metadata.manifests import ManifestEntry
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

NAME = TableName("public", "t")
ENTRY = ManifestEntry(*NAME, "file:/lake/silver/public/t", 5, LSN(90), False, "a", LSN(70))


def verdict(
    found: TableVersion, entry: ManifestEntry | None = ENTRY, origin: FirstCommit | None = None
) -> TableChange:
    def ask() -> FirstCommit:
        assert origin is not None, "the table's log is read where ids differ, and not otherwise"
        return origin

    return classify_change(NAME, entry, found, ask)


@pytest.mark.promise("silver folders that lack rows")
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (TableVersion(5, "a", LSN(70)), TableChange.SAME),
        (TableVersion(9, "a", LSN(70)), TableChange.SAME),  # somebody's OPTIMIZE
        (TableVersion(6, "a", LSN(80)), TableChange.SAME),  # a run that ended before its manifest
        (TableVersion(-1, "", INVALID), TableChange.MISSING),
        (TableVersion(3, "a", LSN(50)), TableChange.OLDER),
        (TableVersion(8, "a", LSN(50)), TableChange.OLDER),  # put back, then changed by somebody's OPTIMIZE
        (TableVersion(4, "a", LSN(70)), TableChange.OLDER),  # a column that came without rows is not there
        (
            TableVersion(5, "a", INVALID),
            TableChange.SAME,
        ),  # its position is forgotten: that is refused elsewhere
    ],
)
def test_a_table_is_judged_by_its_log(found: TableVersion, expected: TableChange) -> None:
    assert verdict(found) is expected


@pytest.mark.parametrize(
    ("found", "origin", "expected"),
    [
        (
            TableVersion(0, "b", LSN(80)),
            FirstCommit(NAME, INVALID),
            TableChange.SAME,
        ),  # built again, then the run ended
        (TableVersion(9, "b", LSN(60)), FirstCommit(NAME, INVALID), TableChange.OLDER),
        (TableVersion(0, "b", LSN(80)), FirstCommit(NAME, LSN(70)), TableChange.OLDER),  # begun in the middle
        (
            TableVersion(9, "b", LSN(80)),
            FirstCommit(TableName("public", "other"), INVALID),
            TableChange.REPLACED,
        ),
        (TableVersion(9, "b", LSN(80)), FirstCommit(), TableChange.REPLACED),
    ],
)
def test_a_table_of_another_id_is_judged_by_how_it_began(
    found: TableVersion, origin: FirstCommit, expected: TableChange
) -> None:
    assert verdict(found, origin=origin) is expected


def test_a_table_that_no_manifest_has_is_taken_as_it_is() -> None:
    assert verdict(TableVersion(9, "b", LSN(80)), None) is TableChange.SAME
    failed = ManifestEntry(*NAME, ENTRY.path, -1, INVALID, True)
    assert verdict(TableVersion(-1, "", INVALID), failed) is TableChange.SAME


@pytest.mark.parametrize(
    ("now", "is_same"),
    [
        (TableVersion(5, "a", LSN(70)), True),
        (TableVersion(6, "a", LSN(70)), True),
        (TableVersion(4, "a", LSN(70)), False),
        (TableVersion(6, "a", LSN(71)), False),
        (TableVersion(6, "a", LSN(69)), False),
        (TableVersion(6, "b", LSN(70)), False),
        (TableVersion(-1, "", INVALID), False),
    ],
)
def test_a_write_requires_the_table_that_was_read(now: TableVersion, is_same: bool) -> None:
    assert now.follows(TableVersion(5, "a", LSN(70))) is is_same
