"""The commit chain of bronze: a whole chain is whole, and every hole is a finding, with versions and LSNs."""

import random
from dataclasses import replace
from typing import Any

import pytest

from pipeline.protocol.lsn import LSN
from pipeline.verify.commit_chain import (
    FOREIGN,
    GAP,
    LOG,
    OFFSET,
    OVERLAP,
    SOURCE,
    UNREADABLE,
    CommitChain,
    LoggedCommit,
    read_chain,
)
from tests.support.commit_chains import APP, CREATED, FACTS, WHOLE, chain, link


def ours(version: int, app_id: str) -> LoggedCommit:
    return LoggedCommit(version, "WRITE", metadata={"pgdelta": 1, "app_id": app_id, "lsn": "0/3"})


def kinds(result: CommitChain) -> list[str]:
    return [finding.kind for finding in result.findings]


def test_a_whole_chain_is_whole() -> None:
    result = read_chain(WHOLE, APP, LSN(190))
    assert not result.findings
    assert result.is_from_the_beginning
    [segment] = result.segments
    assert (segment.start, segment.end) == (LSN(100), LSN(190))
    assert (segment.first_version, segment.last_version) == (1, 4)
    assert (segment.commits, segment.transactions, segment.changes) == (4, 3, 90)
    assert segment.as_json()["from_lsn"] == "0/64"


def test_no_commits_are_an_empty_chain() -> None:
    result = read_chain([], APP)
    assert (result.segments, result.findings, result.oldest) == ((), (), None)
    assert not result.is_from_the_beginning


def test_what_is_no_link_leaves_the_chain_whole() -> None:
    others = [
        ours(5, f"{APP}#copy/17"),
        ours(6, f"{APP}#prepared"),
        LoggedCommit(7, "OPTIMIZE", moves_rows=False),
        link(8, 190, 200),
    ]
    result = read_chain([*WHOLE, *others], APP, LSN(200))
    assert not result.findings
    assert (result.copy_commits, result.prepared_commits, len(result.links)) == (1, 1, 5)
    assert result.segments[0].changes == 90


def test_a_commit_that_is_removed_is_a_gap_between_its_neighbours() -> None:
    for missing in (2, 3):
        commits = [commit for commit in WHOLE if commit.version != missing]
        before, after = read_chain(WHOLE, APP).links[missing - 2], read_chain(WHOLE, APP).links[missing]
        # the log may lack it, or have another operation at that version
        for extra in ([], [LoggedCommit(missing, "OPTIMIZE", moves_rows=False)]):
            result = read_chain(sorted([*commits, *extra], key=lambda c: c.version), APP, LSN(190))
            gap = result.findings[-1]
            assert (gap.kind, gap.start, gap.end) == (GAP, before.end, after.start)
            assert gap.versions == (missing - 1, missing + 1)
            assert str(before.end) in gap.sentence
            assert str(after.start) in gap.sentence
            assert kinds(result)[:-1] == ([] if extra else [LOG])
            assert len(result.segments) == 2


def test_a_commit_that_begins_too_early_is_an_overlap() -> None:
    result = read_chain([*WHOLE[:-1], link(4, 140, 190)], APP)
    [finding] = result.findings
    assert (finding.kind, finding.versions) == (OVERLAP, (3, 4))
    assert (finding.start, finding.end) == (LSN(140), LSN(150))


def test_a_commit_that_goes_back_is_an_overlap() -> None:
    result = read_chain([*WHOLE, link(5, 190, 180)], APP)
    assert kinds(result) == [OVERLAP]
    assert "goes back from 0/BE to 0/B4" in result.findings[0].sentence


def test_a_crossed_gap_is_named_and_breaks_nothing() -> None:
    result = read_chain([*WHOLE, link(5, 190, 900, gap="the slot was lost"), link(6, 900, 950)], APP)
    assert not result.findings
    assert [(link.version, link.start, link.end, link.gap) for link in result.crossed_gaps] == [
        (5, LSN(190), LSN(900), "the slot was lost")
    ]


@pytest.mark.parametrize(
    ("facts", "is_broken"),
    [
        ({"slot": "other"}, False),
        ({"timeline": 2}, False),
        ({"system_identifier": "8"}, True),
        ({"database": "other"}, True),
    ],
)
def test_another_origin_is_another_stretch(facts: dict[str, Any], is_broken: bool) -> None:
    result = read_chain([*WHOLE, link(5, 190, 200, **facts), link(6, 200, 210, **facts)], APP)
    assert kinds(result) == ([SOURCE] if is_broken else [])
    assert [(s.first_version, s.last_version) for s in result.segments] == [(1, 4), (5, 6)]


@pytest.mark.parametrize(("moved_from", "is_broken"), [("7", False), ("6", True)])
def test_a_move_from_the_source_before_breaks_nothing(moved_from: str, is_broken: bool) -> None:
    facts = {"system_identifier": "8", "timeline": 1}
    move = link(5, 190, 900, gap="the source moved", moved_from=moved_from, **facts)
    result = read_chain([*WHOLE, move, link(6, 900, 950, **facts)], APP)
    assert kinds(result) == ([SOURCE] if is_broken else [])


def test_a_timeline_that_goes_back_is_found() -> None:
    result = read_chain([*WHOLE, link(5, 190, 200, timeline=2), link(6, 200, 210)], APP)
    assert kinds(result) == [SOURCE]
    assert result.findings[0].versions == (5, 6)


@pytest.mark.parametrize("operation", ["DELETE", "MERGE", "RESTORE", "WRITE"])
def test_rows_that_another_writer_moved_are_found(operation: str) -> None:
    result = read_chain([*WHOLE, LoggedCommit(5, operation), link(6, 190, 200)], APP)
    [finding] = result.findings
    assert (finding.kind, finding.versions) == (FOREIGN, (5,))
    assert f"a {operation} by another writer" in finding.sentence


@pytest.mark.parametrize("app_id", ["pgdelta:other:1", "pgdelta:shop:11", "pgdelta:shop:1x#copy/1"])
def test_another_pipeline_is_another_writer(app_id: str) -> None:
    result = read_chain([*WHOLE, ours(5, app_id)], APP)
    assert kinds(result) == [FOREIGN]
    assert app_id in result.findings[0].sentence


@pytest.mark.parametrize(
    "broken",
    [
        {"from_lsn": None},
        {"to_lsn": "soon"},
        {"timeline": "one"},
        {"transactions": "many"},
        {"changes": None},
    ],
)
def test_a_commit_that_cannot_be_read_is_found_and_the_next_one_not_blamed(broken: dict[str, Any]) -> None:
    result = read_chain([*WHOLE, link(5, 190, 200, **broken), link(6, 200, 210)], APP)
    assert [(f.kind, f.versions) for f in result.findings] == [(UNREADABLE, (5,))]
    assert len(result.segments) == 2


def test_a_commit_without_its_facts_cannot_be_read() -> None:
    for name in ("from_lsn", "to_lsn", *FACTS):
        commit = link(5, 190, 200)
        facts = {key: value for key, value in commit.metadata.items() if key != name}
        assert kinds(read_chain([*WHOLE, replace(commit, metadata=facts)], APP)) == [UNREADABLE]


def test_a_log_that_was_shortened_begins_at_what_is_left() -> None:
    result = read_chain(WHOLE[3:], APP, LSN(190))
    assert not result.findings
    assert not result.is_from_the_beginning
    assert (result.oldest, result.newest, result.segments[0].start) == (3, 4, LSN(130))


def test_a_log_from_the_beginning_begins_where_a_pipeline_does() -> None:
    result = read_chain([CREATED, *chain(100, 130, 150)], APP)
    assert [(f.kind, f.versions) for f in result.findings] == [(LOG, (1,))]


def test_the_next_run_has_to_continue_where_the_chain_ends() -> None:
    result = read_chain(WHOLE, APP, LSN(195))
    [finding] = result.findings
    assert (finding.kind, finding.versions) == (OFFSET, (4,))
    assert (finding.start, finding.end) == (LSN(190), LSN(195))


@pytest.mark.promise("the audit finds every hole")
@pytest.mark.parametrize("seed", range(30))
def test_every_hole_of_a_random_chain_is_found_and_nothing_else(seed: int) -> None:
    random_ = random.Random(seed)
    ends = [100, 100]
    ends += [ends[0] + (n + 1) * 10 for n in range(random_.randrange(5, 60))]
    commits = [CREATED, *chain(*ends)]
    holes = sorted(random_.sample(range(2, len(commits) - 1), random_.randrange(0, 4)))
    kept = [c if c.version not in holes else LoggedCommit(c.version, "VACUUM END", False) for c in commits]
    result = read_chain(kept, APP, LSN(ends[-1]))
    lost = {
        (int(commit.metadata["from_lsn"].rpartition("/")[2], 16))
        for commit in commits
        if commit.version in holes
    }
    found: set[int] = set()
    for finding in result.findings:
        assert finding.kind == GAP
        assert finding.start is not None
        assert finding.end is not None
        found |= set(range(finding.start, finding.end, 10))
    assert found == lost
    assert sum(segment.commits for segment in result.segments) == len(commits) - 1 - len(holes)
