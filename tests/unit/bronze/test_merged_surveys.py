"""Surveys of parts of bronze, merged, are the survey of all at once."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.bronze.changes_scan import ChangesScan
from pipeline.bronze.surveys import SURVEY_COLUMNS, duckdb_key, survey_sql, surveys_of
from pipeline.bronze.table_input import TableSurvey, merged
from pipeline.delta.table_log import Snapshot
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from tests.support.native_lakes import change, write_file

NAME = TableName("public", "t")
CHANGES = st.fixed_dictionaries(
    {
        "op": st.sampled_from("IUUDT"),
        "version": st.integers(1, 3),
        "old_kind": st.sampled_from([None, "K", "O"]),
        "unsent": st.sampled_from([None, [0], [1, 2], [2]]),
        "is_next": st.booleans(),  # it begins another transaction
    }
)


def rows_of(changes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of bronze, as transactions that each end 8 bytes after their commit."""
    rows, lsn, ordinal = [], 1000, 0
    for each in changes:
        lsn, ordinal = (lsn + 10, 0) if each["is_next"] else (lsn, ordinal + 1)
        more = {"old_kind": each["old_kind"], "unsent": each["unsent"]}
        rows.append(change(NAME, each["version"], ordinal, lsn, each["op"], **more))
    return rows


def survey(path: str, start_lsn: int, end_lsn: int) -> list[TableSurvey]:
    scan = ChangesScan(
        "", cast(Snapshot, None), start_lsn=LSN(start_lsn), end_lsn=LSN(end_lsn), paths=(path,)
    )
    sql = survey_sql().replace("{changes}", "changes").replace("{key}", duckdb_key())
    return surveys_of(scan.query(sql, SURVEY_COLUMNS)).get(NAME, [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("surveys")


@pytest.mark.costly
@given(st.lists(CHANGES, min_size=1, max_size=30), st.lists(st.integers(1000, 1320), max_size=4))
@settings(max_examples=15, deadline=None)
def test_parts_make_the_whole(folder: Path, changes: list[dict[str, Any]], cuts: list[int]) -> None:
    path = str(folder / write_file(folder, rows_of(changes)).name)
    bounds = [0, *sorted(cuts), 10_000]
    parts = [survey(path, start, end) for start, end in pairwise(bounds)]
    found: list[TableSurvey] = []
    for part in parts:  # as a run continues what it knows
        found = merged([*found, *part])
    assert found == survey(path, 0, 10_000)
    assert merged(each for part in reversed(parts) for each in part) == found
