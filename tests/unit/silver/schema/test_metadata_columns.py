"""pgdelta's two columns make room for the source's names, and are found after a crash."""

import pytest

from pipeline.silver.schema.column_mapping import find_metadata_columns, free_names, plan_metadata_renames
from pipeline.silver.schema.schema_operations import RenameColumn

NAMES = ["_commit_lsn", "_commit_time"]


@pytest.mark.parametrize(
    ("used", "names"),
    [
        (["id"], NAMES),
        (["_commit_lsn"], ["_commit_lsn_", "_commit_time"]),
        (["_commit_lsn_"], NAMES),
        (["_COMMIT_LSN", "_commit_lsn_"], ["_commit_lsn__", "_commit_time"]),
    ],
)
def test_the_columns_get_names_that_are_free(used: list[str], names: list[str]) -> None:
    assert free_names(used) == names


@pytest.mark.parametrize(
    ("columns", "recorded", "source_names", "expected"),
    [
        (["id", *NAMES], ["id"], ["id"], NAMES),
        # recorded as the source's, though longer
        (["id", "_commit_lsn_", *NAMES], ["id", "_commit_lsn_"], [], NAMES),
        # a table that was created and not registered
        (["id", "_commit_lsn_", *NAMES], [], ["id", "_commit_lsn_"], NAMES),
        (["_commit_lsn", "_commit_lsn_", "_commit_time"], [], ["_commit_lsn"], ["_commit_lsn_", NAMES[1]]),
        # the source's column is added: before ours is renamed, after that, and after the source's was added
        (["id", *NAMES], ["id"], ["id", "_commit_lsn"], NAMES),
        (["id", "_commit_lsn_", "_commit_time"], ["id"], ["id", "_commit_lsn"], ["_commit_lsn_", NAMES[1]]),
        (
            ["id", "_commit_lsn_", "_commit_time", "_commit_lsn"],
            ["id"],
            ["id", "_commit_lsn"],
            ["_commit_lsn_", NAMES[1]],
        ),
        # a table without the two columns keeps the source's
        (
            ["_commit_lsn", "_Commit_Time"],
            ["_commit_lsn", "_Commit_Time"],
            [],
            ["_commit_lsn_", "_commit_time_"],
        ),
    ],
)
def test_the_columns_are_those_that_the_source_does_not_have(
    columns: list[str], recorded: list[str], source_names: list[str], expected: list[str]
) -> None:
    assert find_metadata_columns(columns, recorded, source_names) == expected


def renames(columns: list[str], silver: list[str], targets: list[str]) -> list[tuple[str, str]]:
    return [(rename.name, rename.to) for rename in plan_metadata_renames(columns, silver, targets)]


def test_names_that_differ_only_in_case_are_freed() -> None:
    assert renames(NAMES, ["id"], ["id", "_Commit_Lsn"]) == [("_commit_lsn", "_commit_lsn_")]
    assert renames(NAMES, ["id", "_commit_lsn_"], ["id", "_commit_lsn"]) == [("_commit_lsn", "_commit_lsn__")]
    assert renames(NAMES, ["id"], ["_commit_time", "_commit_lsn_", "_commit_lsn"]) == [
        ("_commit_lsn", "_commit_lsn__"),
        ("_commit_time", "_commit_time_"),
    ]


def test_the_columns_keep_names_that_no_source_column_gets() -> None:
    assert renames(NAMES, ["id"], ["id", "_commit_lsn_"]) == []
    assert renames(["_commit_lsn_", "_commit_time"], ["id", "_commit_lsn"], ["id", "_commit_lsn"]) == []
    assert renames([], [], ["_commit_lsn"]) == []


def test_a_renamed_column_has_a_sentence() -> None:
    sentence = (
        "Column _commit_time of pgdelta was renamed to _commit_time_, because the source has a column "
        "_commit_time."
    )
    [rename] = plan_metadata_renames(NAMES, ["id"], ["_commit_time"])
    assert rename == RenameColumn("_commit_time", "_commit_time_", sentence)
