"""The ledger of bronze: each commit says from which LSN to which it is complete, and follows another.

What Delta's log keeps of `bronze/changes` is read in the order of versions. Commits that record positions
have to follow one another without a hole: where one begins behind the end of the one before, changes are
missing; where it begins before that end, they may be there twice. A gap that a run crossed by policy is in
the ledger itself. Counts of a commit are those of its transactions and changes; copies have commits of their
own, which record no position of the stream.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pipeline.delta.txn import OURS, TxnId, TxnKind
from pipeline.errors import ProtocolError
from pipeline.protocol.lsn import LSN

# kinds of findings
GAP, OVERLAP, SOURCE, POSITION = "gap", "overlap", "source", "position"
UNREADABLE, FOREIGN, LOG = "unreadable", "foreign", "log"
ROWS, COPY = "rows", "copy"


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """One commit as Delta's log has it; `metadata` is empty where it is not ours.

    `moves_rows` is false for maintenance, which leaves every row as it was.
    """

    version: int
    operation: str
    moves_rows: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)
    committed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ChainOrigin:
    """Where a commit's changes came from."""

    slot: str
    system_identifier: str
    timeline: int
    database: str


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One commit that records positions: bronze was complete up to `start`, and is up to `end`.

    `gap` says why nothing of what lies between was captured.
    """

    version: int
    start: LSN
    end: LSN
    origin: ChainOrigin
    transactions: int = 0
    changes: int = 0
    gap: str | None = None
    committed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Where the ledger is broken: `kind`, the versions that it lies between, the LSNs, and a sentence."""

    kind: str
    sentence: str
    versions: tuple[int, ...] = ()
    start: LSN | None = None
    end: LSN | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the finding as data."""
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

    def then(self, link: ChainLink) -> "ChainSegment":
        """Return the stretch with one more commit."""
        return replace(
            self,
            end=link.end,
            last_version=link.version,
            commits=self.commits + 1,
            transactions=self.transactions + link.transactions,
            changes=self.changes + link.changes,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the stretch as data."""
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
    """What the log says of bronze: the commits with positions in order, and where they do not fit together.

    `oldest` and `newest` are the versions that the log still has; it is whole where the oldest is 0.
    `crossed` are the commits that record a gap, `copies` counts those of copies and `prepared` those of
    prepared transactions.
    """

    links: tuple[ChainLink, ...] = ()
    stretches: tuple[ChainSegment, ...] = ()
    findings: tuple[Finding, ...] = ()
    crossed: tuple[ChainLink, ...] = ()
    oldest: int | None = None
    newest: int | None = None
    copies: int = 0
    prepared: int = 0

    @property
    def is_from_the_beginning(self) -> bool:
        """Say whether the log still has the commit that the pipeline began with."""
        return self.oldest == 0


class _ChainReader:
    """What was seen of the log up to some version."""

    def __init__(self, ours: TxnId) -> None:
        self.ours = ours
        self.links: list[ChainLink] = []
        self.stretches: list[ChainSegment] = []
        self.findings: list[Finding] = []
        self.versions: list[int] = []
        self.copies = self.prepared = 0
        self._last: ChainLink | None = None  # that the next one has to go on from

    def take(self, commit: LoggedCommit) -> None:
        if self.versions and commit.version > self.versions[-1] + 1:
            first, last = self.versions[-1] + 1, commit.version - 1
            sentence = f"Delta's log lacks the commits from version {first} to {last}"
            self.findings.append(Finding(LOG, sentence, (first, last)))
        self.versions.append(commit.version)
        text = str(commit.metadata.get("app_id", ""))
        txn = TxnId.parse(text)
        if OURS not in commit.metadata or (text and (txn is None or txn.offset_id != self.ours)):
            self._take_foreign(commit, text)
        elif txn is not None and txn.advances:
            self._take_position(commit)
        elif txn is not None:
            self.copies += txn.kind is TxnKind.CHUNKS
            self.prepared += txn.kind is TxnKind.PREPARED

    def _take_foreign(self, commit: LoggedCommit, app_id: str) -> None:
        if not commit.moves_rows:
            return
        who = f"the pipeline of {app_id}" if app_id else "somebody else"
        sentence = (
            f"version {commit.version} is a {commit.operation} by {who}: bronze is only ever appended to by "
            "its own pipeline, and rows may be gone or there twice"
        )
        self.findings.append(Finding(FOREIGN, sentence, (commit.version,)))

    def _take_position(self, commit: LoggedCommit) -> None:
        link = _link(commit)
        if link is None:
            sentence = f"version {commit.version} does not say from which LSN to which it is complete"
            self.findings.append(Finding(UNREADABLE, sentence, (commit.version,)))
            self._last = None  # nothing can be said of what comes next
            return
        before, self._last = self._last, link
        follows = before is not None and self._follows(before, link)
        if link.end < link.start:
            sentence = f"version {link.version} goes back from {link.start} to {link.end}"
            self.findings.append(Finding(OVERLAP, sentence, (link.version,), link.end, link.start))
        self.links.append(link)
        if follows and self.stretches[-1].origin == link.origin:
            self.stretches[-1] = self.stretches[-1].then(link)
        else:
            empty = ChainSegment(link.origin, link.start, link.end, link.version, link.version)
            self.stretches.append(empty.then(link))

    def _follows(self, before: ChainLink, link: ChainLink) -> bool:
        versions = before.version, link.version
        if (link.origin.system_identifier, link.origin.database) != (
            before.origin.system_identifier,
            before.origin.database,
        ):
            sentence = (
                f"version {link.version} came from another source than version {before.version}: system "
                f"identifier {link.origin.system_identifier} and database {link.origin.database}, before "
                f"{before.origin.system_identifier} and {before.origin.database}"
            )
            self.findings.append(Finding(SOURCE, sentence, versions))
        elif link.origin.timeline < before.origin.timeline:
            sentence = (
                f"version {link.version} came from timeline {link.origin.timeline}, version {before.version} "
                f"from timeline {before.origin.timeline}: the server was put back"
            )
            self.findings.append(Finding(SOURCE, sentence, versions))
        if link.start > before.end:
            sentence = (
                f"nothing says that bronze has what was committed from {before.end} to {link.start}: version "
                f"{before.version} ends at the one, and version {link.version} begins at the other"
            )
            self.findings.append(Finding(GAP, sentence, versions, before.end, link.start))
        elif link.start < before.end:
            sentence = (
                f"what was committed from {link.start} to {before.end} may be there twice: version "
                f"{before.version} ends at {before.end}, and version {link.version} begins before that"
            )
            self.findings.append(Finding(OVERLAP, sentence, versions, link.start, before.end))
        return link.start == before.end


def read_chain(commits: Iterable[LoggedCommit], ours: TxnId, position: LSN | None = None) -> CommitChain:
    """Return the ledger that commits of `bronze/changes` make, given in the order of their versions.

    `position` is where the next run goes on: the last commit has to end there.
    """
    reading = _ChainReader(ours)
    for commit in commits:
        reading.take(commit)
    findings = reading.findings
    if reading.links and position is not None and reading.links[-1].end != position:
        last = reading.links[-1]
        sentence = (
            f"the last commit, version {last.version}, ends at {last.end}, and the next run goes on from "
            f"{position}"
        )
        findings.append(Finding(POSITION, sentence, (last.version,), last.end, position))
    versions = reading.versions
    if versions and versions[0] == 0 and reading.links and reading.links[0].start != reading.links[0].end:
        first = reading.links[0]
        sentence = (
            f"the first commit that records positions, version {first.version}, is not the one that a "
            f"pipeline begins with: what came before {first.start} is not in the ledger"
        )
        findings.append(Finding(LOG, sentence, (first.version,)))
    return CommitChain(
        links=tuple(reading.links),
        stretches=tuple(reading.stretches),
        findings=tuple(findings),
        crossed=tuple(link for link in reading.links if link.gap is not None),
        oldest=versions[0] if versions else None,
        newest=versions[-1] if versions else None,
        copies=reading.copies,
        prepared=reading.prepared,
    )


def _link(commit: LoggedCommit) -> ChainLink | None:
    facts = commit.metadata
    try:
        start, end = LSN.parse(str(facts["from_lsn"])), LSN.parse(str(facts["to_lsn"]))
        slot, system = str(facts["slot"]), str(facts["system_identifier"])
        origin = ChainOrigin(slot, system, int(facts["timeline"]), str(facts["database"]))
        transactions, changes = int(facts.get("transactions", 0)), int(facts.get("changes", 0))
    except (KeyError, TypeError, ValueError, ProtocolError):
        return None
    if start == end:
        # It brings nothing: the first one, or one that records a position again with all that was said.
        return ChainLink(commit.version, start, end, origin, committed_at=commit.committed_at)
    gap = None if facts.get("gap") is None else str(facts["gap"])
    return ChainLink(commit.version, start, end, origin, transactions, changes, gap, commit.committed_at)
