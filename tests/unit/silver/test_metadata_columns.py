"""Our two columns give way to those of the source, and are told from them, whatever ended in between."""

from __future__ import annotations

import pytest

from pipeline.silver.metadata_columns import find_metadata_columns, free_names, plan_metadata_renames
from pipeline.silver.schema_operations import RenameColumn

OURS = ["_commit_lsn", "_commit_time"]


@pytest.mark.parametrize(
    ("taken", "names"),
    [
        (["id"], OURS),
        (["_commit_lsn"], ["_commit_lsn_", "_commit_time"]),
        (["_commit_lsn_"], OURS),
        (["_COMMIT_LSN", "_commit_lsn_"], ["_commit_lsn__", "_commit_time"]),
    ],
)
def test_our_columns_take_names_that_are_free(taken: list[str], names: list[str]) -> None:
    assert free_names(taken) == names


@pytest.mark.parametrize(
    ("columns", "known", "coming", "own"),
    [
        (["id", *OURS], ["id"], ["id"], OURS),
        # recorded as the source's, though longer
        (["id", "_commit_lsn_", *OURS], ["id", "_commit_lsn_"], [], OURS),
        # a table that was made and not recorded
        (["id", "_commit_lsn_", *OURS], [], ["id", "_commit_lsn_"], OURS),
        (["_commit_lsn", "_commit_lsn_", "_commit_time"], [], ["_commit_lsn"], ["_commit_lsn_", OURS[1]]),
        # the source's comes, and ours has not given way yet; it has; and the source's is there
        (["id", *OURS], ["id"], ["id", "_commit_lsn"], OURS),
        (["id", "_commit_lsn_", "_commit_time"], ["id"], ["id", "_commit_lsn"], ["_commit_lsn_", OURS[1]]),
        (
            ["id", "_commit_lsn_", "_commit_time", "_commit_lsn"],
            ["id"],
            ["id", "_commit_lsn"],
            ["_commit_lsn_", OURS[1]],
        ),
        # a table that never had ours does not give the source's away
        (
            ["_commit_lsn", "_Commit_Time"],
            ["_commit_lsn", "_Commit_Time"],
            [],
            ["_commit_lsn_", "_commit_time_"],
        ),
    ],
)
def test_our_columns_are_those_that_the_source_has_not(
    columns: list[str], known: list[str], coming: list[str], own: list[str]
) -> None:
    assert find_metadata_columns(columns, known, coming) == own


def renames(own: list[str], taken: list[str], wanted: list[str]) -> list[tuple[str, str]]:
    return [(rename.name, rename.to) for rename in plan_metadata_renames(own, taken, wanted)]


def test_our_columns_give_way_to_names_that_differ_in_case() -> None:
    assert renames(OURS, ["id"], ["id", "_Commit_Lsn"]) == [("_commit_lsn", "_commit_lsn_")]
    assert renames(OURS, ["id", "_commit_lsn_"], ["id", "_commit_lsn"]) == [("_commit_lsn", "_commit_lsn__")]
    assert renames(OURS, ["id"], ["_commit_time", "_commit_lsn_", "_commit_lsn"]) == [
        ("_commit_lsn", "_commit_lsn__"),
        ("_commit_time", "_commit_time_"),
    ]


def test_our_columns_stay_where_nothing_takes_their_names() -> None:
    assert renames(OURS, ["id"], ["id", "_commit_lsn_"]) == []
    assert renames(["_commit_lsn_", "_commit_time"], ["id", "_commit_lsn"], ["id", "_commit_lsn"]) == []
    assert renames([], [], ["_commit_lsn"]) == []


def test_a_column_of_ours_that_gives_way_is_told() -> None:
    sentence = "column _commit_time, which is ours, is _commit_time_ now: the source has one of that name"
    [rename] = plan_metadata_renames(OURS, ["id"], ["_commit_time"])
    assert rename == RenameColumn("_commit_time", "_commit_time_", sentence)
