"""Commits in Delta's log: pgdelta's, maintenance, foreign ones, and those that were undone."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pipeline.delta.log import LoggedOperation
from pipeline.delta.schema import PHYSICAL_NAME, SchemaField, TableSchema
from pipeline.delta.txn import TxnId
from pipeline.silver.schema.foreign_commits import (
    ForeignCommit,
    find_foreign_commit,
    find_removal,
    records_offset,
)

OURS = {"pgdelta": 1}
CHANGING = ("DELETE", "WRITE", "a commit without a name")
REBUILT = {"pgdelta": 1, "operation": "rebuild"}


def log(*commits: str | tuple[str, int] | Mapping[str, object]) -> list[LoggedOperation]:
    """Return commits from version 11: pgdelta's as metadata, others by name, a RESTORE with its version."""
    found = []
    for version, commit in enumerate(commits, 11):
        if isinstance(commit, Mapping):
            found.append(LoggedOperation(version, "MERGE", dict(commit)))
        elif isinstance(commit, tuple):
            found.append(LoggedOperation(version, commit[0], {}, commit[1]))
        else:
            found.append(LoggedOperation(version, commit, {}, changes_rows=commit in CHANGING))
    return found


@pytest.mark.promise("foreign commits in manifests")
@pytest.mark.parametrize(
    ("commits", "foreign"),
    [
        (log(), None),
        (log(OURS, "OPTIMIZE", "VACUUM START", "VACUUM END", OURS, "ADD COLUMNS"), None),
        (log("ADD CONSTRAINT", "COMPUTE STATS", "ROW TRACKING BACKFILL", "UPGRADE PROTOCOL"), None),
        (log("DELETE"), ForeignCommit("DELETE", 11, 10)),
        (log(OURS, "WRITE", "DELETE"), ForeignCommit("WRITE", 12, 11)),
        (log("a commit without a name"), ForeignCommit("a commit without a name", 11, 10)),
        # undone: a RESTORE to a version with the rows of pgdelta's last commit
        (log("DELETE", ("RESTORE", 10)), None),
        (log(OURS, "OPTIMIZE", "DELETE", "WRITE", ("RESTORE", 11)), None),
        (log(OURS, "OPTIMIZE", "DELETE", ("RESTORE", 12)), None),
        (log("DELETE", ("RESTORE", 10), OURS, "DELETE", ("RESTORE", 13)), None),
        (log(OURS, ("RESTORE", 11)), None),
        (log("ADD COLUMNS", "DELETE", ("RESTORE", 10)), None),
        # not undone: its rows stay, or pgdelta's rows are removed with them while their offset stays
        (log("DELETE", "WRITE", ("RESTORE", 11)), ForeignCommit("DELETE", 11, 10)),
        (log(OURS, "DELETE", ("RESTORE", 10)), ForeignCommit("DELETE", 12, 11)),
        (log("DELETE", OURS), ForeignCommit("DELETE", 11, None)),
        (log("DELETE", OURS, ("RESTORE", 10)), ForeignCommit("DELETE", 11, None)),
        (log("DELETE", OURS, ("RESTORE", 12)), ForeignCommit("DELETE", 11, None)),
        (log(OURS, OURS, ("RESTORE", 11)), ForeignCommit("RESTORE", 13, 12)),
        (log(("RESTORE", 9)), ForeignCommit("RESTORE", 11, 10)),
        # replaced: all rows are new
        (log("DELETE", REBUILT), None),
        (log("DELETE", OURS, REBUILT, OURS), None),
        (log("DELETE", REBUILT, "WRITE"), ForeignCommit("WRITE", 13, 12)),
    ],
)
def test_foreign_changes_are_found_unless_they_were_undone(
    commits: list[LoggedOperation], foreign: ForeignCommit | None
) -> None:
    assert find_foreign_commit(commits, 10) == foreign


def altering(*commits: tuple[str | Mapping[str, object], Mapping[str, str]]) -> list[LoggedOperation]:
    """Return commits as `log` does, with the columns after each: name → name in files."""
    found = []
    for each, (_, columns) in zip(log(*(commit for commit, _ in commits)), commits, strict=True):
        fields = [SchemaField(name, "integer", {PHYSICAL_NAME: stored}) for name, stored in columns.items()]
        found.append(replace(each, schema_string=TableSchema(tuple(fields)).json))
    return found


A, AB, AN = {"a": "a"}, {"a": "a", "b": "b"}, {"a": "a", "b": "n"}
RENAMED, WITH_TEXT = {"a": "a", "c": "b"}, {"a": "a", "b__text": "b__text"}


@pytest.mark.promise("foreign changes")
@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        (altering(("DROP COLUMNS", A)), (ForeignCommit("DROP COLUMNS", 11, 10), ["b"])),
        (altering((OURS, AB), ("DROP COLUMNS", A)), (ForeignCommit("DROP COLUMNS", 12, 11), ["b"])),
        (altering(("DROP COLUMNS", A), (OURS, A)), (ForeignCommit("DROP COLUMNS", 11, None), ["b"])),
        (altering((OURS, RENAMED), ("WRITE", A)), (ForeignCommit("WRITE", 12, 11), ["c"])),
        # added again it is another column; what is added later is not removed before
        (altering(("DROP COLUMNS", A), ("ADD COLUMNS", AN)), (ForeignCommit("DROP COLUMNS", 11, 10), ["b"])),
        (altering(("SET", A), (OURS, AB), ("DROP", A)), (ForeignCommit("DROP", 13, 12), ["b"])),
        # the log does not have the commit any more
        (log("OPTIMIZE"), (ForeignCommit("", -1, None), ["b"])),
        # pgdelta removed it, and ended before it could register that
        (altering((OURS, A)), None),
        (altering(("SET TBLPROPERTIES", AB), (OURS, A), ("SET TBLPROPERTIES", A)), None),
        (altering(("SET TBLPROPERTIES", A), (OURS, AB), (OURS, A)), None),
    ],
)
def test_a_removed_column_is_a_foreign_change(
    commits: list[LoggedOperation], expected: tuple[ForeignCommit, list[str]] | None
) -> None:
    assert find_removal(commits, {"b": "b"}) == expected


def test_a_sidecar_is_removed_only_if_the_table_had_it() -> None:
    removal = ForeignCommit("RENAME COLUMN", 12, 11), ["b__text"]
    renamed = {"a": "a", "x": "b__text"}
    assert find_removal(altering((OURS, WITH_TEXT), ("RENAME COLUMN", renamed)), {}, ["b__text"]) == removal
    assert find_removal(altering((OURS, A), ("ADD COLUMNS", AB)), {}, ["b__text"]) is None
    assert find_removal(altering((OURS, WITH_TEXT), (OURS, A)), {}, ["b__text"]) is None


@pytest.mark.parametrize(
    ("app_ids", "expected"),
    [
        (["pgdelta:app:1"], True),
        (["pgdelta:app:1/rebuild", "pgdelta:app:1"], True),
        (["pgdelta:app:1#1"], True),
        (["pgdelta:app:1#copied/1795000000000000"], True),
        ([], False),
        (["pgdelta:app:1/rebuild"], False),
        (["pgdelta:app:1#keys", "pgdelta:app:1+16385.4"], False),
        (["pgdelta:app:10", "other"], False),
    ],
)
def test_only_an_offset_or_a_part_of_one_counts(app_ids: list[str], expected: bool) -> None:
    assert records_offset(app_ids, TxnId("app")) is expected
