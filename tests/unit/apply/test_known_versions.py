"""What became of a silver table since the last manifest, by its version, id and position."""

from __future__ import annotations

import pytest

from pipeline.apply.known_versions import Origin, Sight, Verdict, judge
from pipeline.metadata.manifests import ManifestEntry
from pipeline.protocol.lsn import INVALID, LSN

NAME = ("public", "t")
ENTRY = ManifestEntry(*NAME, "file:/lake/silver/public/t", 5, LSN(90), False, "a", LSN(70))


def verdict(found: Sight, entry: ManifestEntry | None = ENTRY, origin: Origin | None = None) -> Verdict:
    def ask() -> Origin:
        assert origin is not None, "the table's log is read where ids differ, and not otherwise"
        return origin

    return judge(NAME, entry, found, ask)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Sight(5, "a", LSN(70)), Verdict.SAME),
        (Sight(9, "a", LSN(70)), Verdict.SAME),  # somebody's OPTIMIZE
        (Sight(6, "a", LSN(80)), Verdict.SAME),  # a run that ended before its manifest
        (Sight(-1, "", INVALID), Verdict.GONE),
        (Sight(3, "a", LSN(50)), Verdict.OLDER),
        (Sight(8, "a", LSN(50)), Verdict.OLDER),  # put back, then changed by somebody's OPTIMIZE
        (Sight(4, "a", LSN(70)), Verdict.OLDER),  # a column that came without rows is not there
        (Sight(5, "a", INVALID), Verdict.SAME),  # its position is forgotten: that is refused elsewhere
    ],
)
def test_a_table_is_judged_by_its_log(found: Sight, expected: Verdict) -> None:
    assert verdict(found) is expected


@pytest.mark.parametrize(
    ("found", "origin", "expected"),
    [
        (Sight(0, "b", LSN(80)), Origin(NAME, INVALID), Verdict.SAME),  # built again, then the run ended
        (Sight(9, "b", LSN(60)), Origin(NAME, INVALID), Verdict.OLDER),
        (Sight(0, "b", LSN(80)), Origin(NAME, LSN(70)), Verdict.OLDER),  # begun in the middle
        (Sight(9, "b", LSN(80)), Origin(("public", "other"), INVALID), Verdict.OTHER),
        (Sight(9, "b", LSN(80)), Origin(), Verdict.OTHER),
    ],
)
def test_a_table_of_another_id_is_judged_by_how_it_began(
    found: Sight, origin: Origin, expected: Verdict
) -> None:
    assert verdict(found, origin=origin) is expected


def test_a_table_that_no_manifest_has_is_taken_as_it_is() -> None:
    assert verdict(Sight(9, "b", LSN(80)), None) is Verdict.SAME
    failed = ManifestEntry(*NAME, ENTRY.path, -1, INVALID, True)
    assert verdict(Sight(-1, "", INVALID), failed) is Verdict.SAME


@pytest.mark.parametrize(
    ("now", "is_same"),
    [
        (Sight(5, "a", LSN(70)), True),
        (Sight(6, "a", LSN(70)), True),
        (Sight(4, "a", LSN(70)), False),
        (Sight(6, "a", LSN(71)), False),
        (Sight(6, "a", LSN(69)), False),
        (Sight(6, "b", LSN(70)), False),
        (Sight(-1, "", INVALID), False),
    ],
)
def test_a_write_wants_the_table_that_was_seen(now: Sight, is_same: bool) -> None:
    assert now.follows(Sight(5, "a", LSN(70))) is is_same
