"""The chain of bronze commits, and the rows that they recorded. Pure.

A commit that records offsets contains the changes that end in (start, end]. In the order of versions, each
such commit must start where the previous one ended: if it starts after that LSN, changes are missing; if it
starts before, some may be in bronze twice. A gap that a run recorded by policy is part of the chain. Table
copies and prepared transactions have their own commits, which record no offset of the stream.

The changes of a commit are its rows of op I, U, D and T. One query counts the rows of many commits together,
and only those that differ are counted commit by commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pipeline.delta.txn import OURS, TxnId, TxnKind
from pipeline.errors import ProtocolError
from pipeline.protocol.lsn import LSN
from pipeline.units import format_count

# kinds of findings
GAP, OVERLAP, SOURCE, OFFSET = "gap", "overlap", "source", "offset"
UNREADABLE, FOREIGN, LOG = "unreadable", "foreign", "log"
ROWS, COPY = "rows", "copy"


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """One commit of Delta's log; `metadata` is empty if pgdelta did not make it.

    `moves_rows` is false for maintenance, which leaves every row as it was.
    """

    version: int
    operation: str
    moves_rows: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)
    committed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ChainOrigin:
    """The source of a commit's changes."""

    slot: str
    system_identifier: str
    timeline: int
    database: str
    database_oid: int | None = field(default=None, compare=False)  # earlier commits do not have it

    def is_database_of(self, other: ChainOrigin) -> bool:
        """Return whether both are the same database, whatever its name."""
        is_same = self.database == other.database
        if None not in (self.database_oid, other.database_oid):
            is_same = is_same or self.database_oid == other.database_oid
        return is_same and self.system_identifier == other.system_identifier


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One commit that records offsets: bronze was complete up to `start`, and is up to `end`.

    `gap` is the reason why the changes in between were not captured. `moved_from` is the system identifier of
    the source before, if it moved to another server here.
    """

    version: int
    start: LSN
    end: LSN
    origin: ChainOrigin
    transactions: int = 0
    changes: int = 0
    gap: str | None = None
    committed_at: datetime | None = None
    moved_from: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of the chain: its kind, the versions that it lies between, the LSNs, and a sentence."""

    kind: str
    sentence: str
    versions: tuple[int, ...] = ()
    start: LSN | None = None
    end: LSN | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "versions": list(self.versions),
            "from_lsn": None if self.start is None else str(self.start),
            "to_lsn": None if self.end is None else str(self.end),
            "sentence": self.sentence,
        }


@dataclass(frozen=True, slots=True)
class ChainSegment:
    """Commits that follow one another, of one origin."""

    origin: ChainOrigin
    start: LSN
    end: LSN
    first_version: int
    last_version: int
    commits: int = 0
    transactions: int = 0
    changes: int = 0

    def then(self, link: ChainLink) -> ChainSegment:
        """Return the segment with one more commit."""
        return replace(
            self,
            end=link.end,
            last_version=link.version,
            commits=self.commits + 1,
            transactions=self.transactions + link.transactions,
            changes=self.changes + link.changes,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "from_lsn": str(self.start),
            "to_lsn": str(self.end),
            "versions": [self.first_version, self.last_version],
            "commits": self.commits,
            "transactions": self.transactions,
            "changes": self.changes,
            "slot": self.origin.slot,
            "system_identifier": self.origin.system_identifier,
            "timeline": self.origin.timeline,
            "database": self.origin.database,
        }


@dataclass(frozen=True, slots=True)
class CommitChain:
    """The commits that record offsets, in order, and the findings between them.

    `oldest` and `newest` are the versions that the log still has; the log is complete if the oldest is 0.
    `crossed_gaps` are the links that record a gap.
    """

    links: tuple[ChainLink, ...] = ()
    segments: tuple[ChainSegment, ...] = ()
    findings: tuple[Finding, ...] = ()
    crossed_gaps: tuple[ChainLink, ...] = ()
    oldest: int | None = None
    newest: int | None = None
    copy_commits: int = 0
    prepared_commits: int = 0

    @property
    def is_from_the_beginning(self) -> bool:
        """Return whether the log still has the first commit of the pipeline."""
        return self.oldest == 0


class _ChainReader:
    """The chain up to some version."""

    def __init__(self, ours: TxnId) -> None:
        self.ours = ours
        self.links: list[ChainLink] = []
        self.segments: list[ChainSegment] = []
        self.findings: list[Finding] = []
        self.versions: list[int] = []
        self.copy_commits = self.prepared_commits = 0
        self._last: ChainLink | None = None  # that the next one must follow

    def add(self, commit: LoggedCommit) -> None:
        if self.versions and commit.version > self.versions[-1] + 1:
            first, last = self.versions[-1] + 1, commit.version - 1
            sentence = f"Delta's log lacks the commits from version {first} to {last}."
            self.findings.append(Finding(LOG, sentence, (first, last)))
        self.versions.append(commit.version)
        text = str(commit.metadata.get("app_id", ""))
        txn = TxnId.parse(text)
        if OURS not in commit.metadata or (text and (txn is None or txn.offset_id != self.ours)):
            self._add_foreign(commit, text)
        elif txn is not None and txn.advances:
            self._add_link(commit)
        elif txn is not None:
            self.copy_commits += txn.kind in (TxnKind.CHUNKS, TxnKind.COPY_CHUNKS)
            self.prepared_commits += txn.kind is TxnKind.PREPARED

    def _add_foreign(self, commit: LoggedCommit, app_id: str) -> None:
        if not commit.moves_rows:
            return
        writer = f"the pipeline of {app_id}" if app_id else "another writer"
        sentence = (
            f"Version {commit.version} is a {commit.operation} by {writer}: rows may be missing or "
            "duplicated. Only the pipeline itself may write to bronze, and only by appending."
        )
        self.findings.append(Finding(FOREIGN, sentence, (commit.version,)))

    def _add_link(self, commit: LoggedCommit) -> None:
        link = _link(commit)
        if link is None:
            sentence = f"Version {commit.version} does not record from which LSN to which it is complete."
            self.findings.append(Finding(UNREADABLE, sentence, (commit.version,)))
            self._last = None  # whether the next one follows is unknown
            return
        before, self._last = self._last, link
        follows = before is not None and self._follows(before, link)
        if link.end < link.start:
            sentence = f"Version {link.version} goes back from {link.start} to {link.end}."
            self.findings.append(Finding(OVERLAP, sentence, (link.version,), link.end, link.start))
        self.links.append(link)
        if follows and self.segments[-1].origin == link.origin:
            self.segments[-1] = self.segments[-1].then(link)
        else:
            empty = ChainSegment(link.origin, link.start, link.end, link.version, link.version)
            self.segments.append(empty.then(link))

    def _follows(self, before: ChainLink, link: ChainLink) -> bool:
        versions = before.version, link.version
        now, earlier = link.origin, before.origin
        if link.moved_from == earlier.system_identifier:
            pass  # recorded by pgdelta move-source
        elif not now.is_database_of(earlier):
            sentence = (
                f"Version {link.version} has another source than version {before.version}: system "
                f"identifier {now.system_identifier} and database {now.database}, before "
                f"{earlier.system_identifier} and {earlier.database}."
            )
            self.findings.append(Finding(SOURCE, sentence, versions))
        elif now.timeline < earlier.timeline:
            sentence = (
                f"Version {link.version} has timeline {now.timeline}, and version {before.version} has "
                f"timeline {earlier.timeline}: the server was restored to an earlier state."
            )
            self.findings.append(Finding(SOURCE, sentence, versions))
        if link.start > before.end:
            sentence = (
                f"Changes committed from {before.end} to {link.start} are missing: version {before.version} "
                f"ends at {before.end}, and version {link.version} begins at {link.start}."
            )
            self.findings.append(Finding(GAP, sentence, versions, before.end, link.start))
        elif link.start < before.end:
            sentence = (
                f"Changes committed from {link.start} to {before.end} may be duplicated: version "
                f"{before.version} ends at {before.end}, and version {link.version} begins at {link.start}."
            )
            self.findings.append(Finding(OVERLAP, sentence, versions, link.start, before.end))
        return link.start == before.end


def read_chain(commits: Iterable[LoggedCommit], ours: TxnId, captured: LSN | None = None) -> CommitChain:
    """Return the chain that commits of `bronze/changes` make, given in the order of their versions.

    `captured` is the captured offset: the last commit must end there.
    """
    reader = _ChainReader(ours)
    for commit in commits:
        reader.add(commit)
    links, findings, versions = reader.links, reader.findings, reader.versions
    if links and captured is not None and links[-1].end != captured:
        last = links[-1]
        sentence = (
            f"The last commit, version {last.version}, ends at {last.end}, and the next run goes on from "
            f"{captured}."
        )
        findings.append(Finding(OFFSET, sentence, (last.version,), last.end, captured))
    if versions and versions[0] == 0 and links and links[0].start != links[0].end:
        first = links[0]
        sentence = (
            f"The first commit that records offsets, version {first.version}, is not the first one of a "
            f"pipeline: what came before {first.start} is not in the chain."
        )
        findings.append(Finding(LOG, sentence, (first.version,)))
    return CommitChain(
        links=tuple(links),
        segments=tuple(reader.segments),
        findings=tuple(findings),
        crossed_gaps=tuple(link for link in links if link.gap is not None),
        oldest=versions[0] if versions else None,
        newest=versions[-1] if versions else None,
        copy_commits=reader.copy_commits,
        prepared_commits=reader.prepared_commits,
    )


def _link(commit: LoggedCommit) -> ChainLink | None:
    recorded = commit.metadata
    try:
        slot, system = str(recorded["slot"]), str(recorded["system_identifier"])
        return ChainLink(
            commit.version,
            LSN.parse(str(recorded["from_lsn"])),
            LSN.parse(str(recorded["to_lsn"])),
            ChainOrigin(
                slot,
                system,
                int(recorded["timeline"]),
                str(recorded["database"]),
                None if recorded.get("database_oid") is None else int(recorded["database_oid"]),
            ),
            int(recorded.get("transactions", 0)),
            int(recorded.get("changes", 0)),
            None if recorded.get("gap") is None else str(recorded["gap"]),
            commit.committed_at,
            None if recorded.get("moved_from") is None else str(recorded["moved_from"]),
        )
    except (KeyError, TypeError, ValueError, ProtocolError):
        return None


AT_ONCE = 512  # intervals that one query counts
MOST = 20  # differences that are named
_NO_END = LSN(2**63 - 1)  # no row ends after it: LSNs are BIGINT

Count = Callable[[Sequence[LSN]], Sequence[int]]
"""Given n + 1 LSNs in ascending order, return how many rows end in each (lsn, next]."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The LSNs in (start, end], how many changes are recorded there, and by which version."""

    start: LSN
    end: LSN
    changes: int
    version: int | None = None


@dataclass(frozen=True, slots=True)
class CountDifference:
    """An interval whose rows are not as many as recorded."""

    interval: Interval
    rows: int


def intervals_of(chain: CommitChain) -> tuple[Interval, ...] | None:
    """Return what was recorded as adjacent intervals; None if the commits of the chain overlap.

    In gaps, and after the last commit, there should be no row.
    """
    if any(finding.kind in (OVERLAP, SOURCE) for finding in chain.findings):
        return None
    found: list[Interval] = []
    for link in chain.links:
        if found and link.start > found[-1].end:
            found.append(Interval(found[-1].end, link.start, 0))
        elif found and link.start < found[-1].end:
            return None
        if link.end > link.start:
            found.append(Interval(link.start, link.end, 0 if link.gap else link.changes, link.version))
    if found:
        found.append(Interval(found[-1].end, _NO_END, 0))
    return tuple(found)


def compare_counts(
    intervals: Sequence[Interval], count: Count, *, at_once: int = AT_ONCE, most: int = MOST
) -> list[CountDifference]:
    """Return the intervals whose rows are not as many as recorded, at most the first `most`."""
    found: list[CountDifference] = []
    waiting: list[list[Interval] | CountDifference] = [list(intervals)] if intervals else []
    while waiting and len(found) < most:
        group = waiting.pop(0)
        if isinstance(group, CountDifference):
            found.append(group)
            continue
        size = -(-len(group) // at_once)
        parts = [group[i : i + size] for i in range(0, len(group), size)]
        counts = count([parts[0][0].start, *(part[-1].end for part in parts)])
        differing = [
            CountDifference(part[0], rows) if len(part) == 1 else part
            for part, rows in zip(parts, counts, strict=True)
            if rows != sum(interval.changes for interval in part)
        ]
        waiting = [*differing, *waiting]
    return found


def row_findings(differences: Iterable[CountDifference]) -> list[Finding]:
    """Return the findings for intervals whose rows are not as many as recorded."""
    found = []
    for interval, rows in ((each.interval, each.rows) for each in differences):
        where = f"from {interval.start} to {interval.end}"
        if interval.version is None:
            where = f"after {interval.start}" if interval.end == _NO_END else where
            sentence = f"Bronze has {format_count(rows, 'change')} {where} that no commit recorded."
        else:
            sentence = (
                f"Bronze has {format_count(rows, 'change')} {where}, and version {interval.version} recorded "
                f"{interval.changes}."
            )
        versions = () if interval.version is None else (interval.version,)
        end = None if interval.end == _NO_END else interval.end
        found.append(Finding(ROWS, sentence, versions, interval.start, end))
    return found


def copy_findings(
    recorded: Mapping[int, tuple[str, int]], rows: Mapping[int, int], compacted: Collection[int] = ()
) -> list[Finding]:
    """Return the findings for complete copies, by id as (table, rows), whose rows are not as many.

    Those that are `compacted` may still have rows that are to be removed.
    """
    return [
        Finding(
            COPY,
            f"Bronze has {format_count(rows.get(id_, 0), 'row')} of a copy of {table}, which had {count}.",
        )
        for id_, (table, count) in recorded.items()
        if (rows.get(id_, 0) < count if id_ in compacted else rows.get(id_, 0) != count)
    ]
