"""What a rule's mode means for copies, guards and comparisons, and what a table of it shows."""

from dataclasses import replace
from typing import get_args

import pytest

from pipeline.config.tables import Guards, History, RowMode, TableRule
from pipeline.engine import SPARK
from pipeline.errors import LakeError
from pipeline.metadata.registry import RegisteredTable
from pipeline.silver.fold.modes import (
    current_rows,
    keeps_past,
    kept_as,
    metadata_columns,
    row_mode,
    why_not_comparable,
)
from pipeline.table_name import TableName

RULE = TableRule("public.*", guards=Guards(deletes=1, truncates=2))
TABLE = RegisteredTable("public", "t", "/lake/t", 1, ())
NAMES = {"col-1": "_commit_lsn", "col-2": "_commit_time", "col-3": "_deleted_", "col-4": "_deleted_at"}


@pytest.mark.parametrize(
    ("changed", "past", "guards", "reason"),
    [
        ({}, False, (1, 2), None),
        ({"on_delete": "ignore"}, True, (None, 2), "ignores deletes or truncates"),
        ({"on_truncate": "ignore"}, True, (1, None), "ignores deletes or truncates"),
        ({"mode": "soft_delete", "on_delete": "ignore"}, True, (1, 2), None),  # of silver, for other tables
        ({"mode": "history"}, True, (1, 2), None),
        ({"mode": "append"}, True, (None, None), "a row of silver is a change"),
    ],
)
def test_a_rule_decides_what_silver_keeps(
    changed: dict[str, str], past: bool, guards: tuple[int | None, int | None], reason: str | None
) -> None:
    rule = replace(RULE, **changed)  # type: ignore[arg-type]
    assert rule.keeps_past is past
    assert rule.applied_guards == Guards(*guards)
    found = why_not_comparable(rule)
    assert found is None if reason is None else reason in (found or "")


def test_current_rows_are_found_by_the_registered_column() -> None:
    soft = replace(TABLE, mode="soft_delete", metadata_columns=("col-1", "col-2", "col-3", "col-4"))
    assert current_rows(soft, NAMES, SPARK) == "`_deleted_` = false"
    without_commit = replace(soft, metadata_columns=("col-3", "col-4"))
    assert current_rows(without_commit, NAMES, SPARK) == "`_deleted_` = false"
    names = [column.name for column in metadata_columns("history", has_commit=True)]
    history = replace(TABLE, mode="history", metadata_columns=tuple(names))
    assert current_rows(history, dict(zip(names, names, strict=True)), SPARK) == "`_valid_to_lsn` IS NULL"
    assert current_rows(TABLE, {}, SPARK) is None
    names = [c.name for c in metadata_columns("history", has_commit=True, has_intermediate=True)]
    rule = TableRule("public.*", mode="history", history=History(intermediate=True))
    history = replace(TABLE, mode=kept_as(rule), metadata_columns=tuple(names))
    assert current_rows(history, dict(zip(names, names, strict=True)), SPARK) == "`_valid_to_lsn` IS NULL"
    assert kept_as(replace(rule, mode="append")) == "append"


def test_the_modes_are_those_of_the_configuration() -> None:
    modes: tuple[RowMode, ...] = get_args(RowMode)
    assert [row_mode(mode) for mode in modes] == [*modes]
    with pytest.raises(LakeError, match="Mode newer of a silver table is not known"):
        row_mode("newer")


def test_a_copy_that_would_remove_rows_has_a_sentence_with_the_command() -> None:
    sentence = keeps_past(TableName("public", "t"), replace(RULE, mode="history"))
    assert "silver has rows in mode history that the copy does not have" in sentence
    assert "pgdelta rebuild --table public.t" in sentence
