"""Who wrote to a silver table is told from Delta's log: ours, maintenance, others, and what was undone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pipeline.delta.log import LoggedOperation
from pipeline.delta.txn import TxnId
from pipeline.silver.foreign_commits import ForeignCommit, find_foreign_commit, records_offset

OURS = {"pgdelta": 1}
REWRITE = {"pgdelta": 1, "operation": "rewrite"}


def log(*commits: str | tuple[str, int] | Mapping[str, object]) -> list[LoggedOperation]:
    """Return commits from version 11 on: ours by metadata, others by name, a RESTORE with its version."""
    found = []
    for version, commit in enumerate(commits, 11):
        if isinstance(commit, Mapping):
            found.append(LoggedOperation(version, "MERGE", dict(commit)))
        elif isinstance(commit, tuple):
            found.append(LoggedOperation(version, commit[0], {}, commit[1]))
        else:
            found.append(LoggedOperation(version, commit, {}))
    return found


@pytest.mark.parametrize(
    ("commits", "foreign"),
    [
        (log(), None),
        (log(OURS, "OPTIMIZE", "VACUUM START", "VACUUM END", OURS, "ADD COLUMNS"), None),
        (log("ADD CONSTRAINT", "COMPUTE STATS", "ROW TRACKING BACKFILL", "UPGRADE PROTOCOL"), None),
        (log("DELETE"), ForeignCommit("DELETE", 11, 10)),
        (log(OURS, "WRITE", "DELETE"), ForeignCommit("WRITE", 12, 11)),
        (log("a commit without a name"), ForeignCommit("a commit without a name", 11, 10)),
        # undone: by a RESTORE to where rows and columns are those of our last commit
        (log("DELETE", ("RESTORE", 10)), None),
        (log(OURS, "OPTIMIZE", "DELETE", "WRITE", ("RESTORE", 11)), None),
        (log(OURS, "OPTIMIZE", "DELETE", ("RESTORE", 12)), None),
        (log("DELETE", ("RESTORE", 10), OURS, "DELETE", ("RESTORE", 13)), None),
        (log(OURS, ("RESTORE", 11)), None),
        # not undone: its rows are still there, or ours are gone with them while their position stays
        (log("DELETE", "WRITE", ("RESTORE", 11)), ForeignCommit("DELETE", 11, 10)),
        (log(OURS, "DELETE", ("RESTORE", 10)), ForeignCommit("DELETE", 12, 11)),
        (log("ADD COLUMNS", "DELETE", ("RESTORE", 10)), ForeignCommit("DELETE", 12, 11)),
        (log("DELETE", OURS), ForeignCommit("DELETE", 11, None)),
        (log("DELETE", OURS, ("RESTORE", 10)), ForeignCommit("DELETE", 11, None)),
        (log("DELETE", OURS, ("RESTORE", 12)), ForeignCommit("DELETE", 11, None)),
        (log(OURS, OURS, ("RESTORE", 11)), ForeignCommit("RESTORE", 13, 12)),
        (log(("RESTORE", 9)), ForeignCommit("RESTORE", 11, 10)),
        # replaced: no row of before is left
        (log("DELETE", REWRITE), None),
        (log("DELETE", OURS, REWRITE, OURS), None),
        (log("DELETE", REWRITE, "WRITE"), ForeignCommit("WRITE", 13, 12)),
    ],
)
def test_what_somebody_else_changed_is_found_unless_it_was_undone(
    commits: list[LoggedOperation], foreign: ForeignCommit | None
) -> None:
    assert find_foreign_commit(commits, 10) == foreign


@pytest.mark.parametrize(
    ("recorded", "is_told"),
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
def test_only_a_position_says_how_far_a_table_is(recorded: list[str], is_told: bool) -> None:
    assert records_offset(recorded, TxnId("app")) is is_told
