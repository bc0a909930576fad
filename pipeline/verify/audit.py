"""Audit bronze with its own Delta log: up to which LSNs it is complete, by which commits, and what is wrong.

Reads the commits of `bronze/changes` from the log, and counts the rows that each of them recorded. Changes
nothing and does not read the source. The rules are in `commit_chain`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from pipeline.bronze.changes_scan import MAX_LSN
from pipeline.bronze.copy_states import COMPLETE
from pipeline.bronze.erasures import ErasureLog, Erasures
from pipeline.bronze.log import Bronze, count_copied_rows
from pipeline.bronze.surveys import number_of_interval
from pipeline.config.config import Config
from pipeline.delta.log import changes_rows, commit_info, user_metadata_of
from pipeline.delta.sql import from_microseconds
from pipeline.delta.table import Lake
from pipeline.errors import LakeError
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.terminal import print_lines, print_list, print_paragraph
from pipeline.units import format_count
from pipeline.verify import commit_chain


class LoggedChanges:
    """`bronze/changes` as of one version: the commits up to it, and its rows."""

    def __init__(self, bronze: Bronze, version: int) -> None:
        self._bronze = bronze
        self._version = version
        self.erasures = Erasures()  # of the commits that were read

    def commits(self) -> Iterator[commit_chain.LoggedCommit]:
        """Yield the commits that the log still has, in the order of their versions."""
        for version, actions in self._bronze.changes.actions_after(-1, is_whole=False):
            if version > self._version:
                return
            information = commit_info(actions) or {}
            operation = str(information.get("operation", "commit without a name"))
            metadata = user_metadata_of(information)
            self.erasures.add_commit(metadata)
            milliseconds = information.get("inCommitTimestamp") or information.get("timestamp")
            yield commit_chain.LoggedCommit(
                version,
                operation,
                changes_rows(actions),
                metadata,
                None if milliseconds is None else from_microseconds(1000 * int(milliseconds)),
            )

    def count(self, bounds: Sequence[LSN]) -> list[int]:
        """Return how many changes that commits count end in each (bound, next], erased ones too."""
        sql = f"""
            SELECT {number_of_interval(bounds)} AS number, count(*) FROM {{changes}} WHERE gid IS NULL
            GROUP BY 1
        """
        counts = {row[0]: row[1] for row in self._select(sql, bounds[0], bounds[-1])}
        erased = self.erasures
        return [
            counts.get(number, 0) + erased.count(bounds[number], bounds[number + 1])
            for number in range(len(bounds) - 1)
        ]

    def prepared_rows(self) -> int:
        """Return how many changes of prepared transactions there are."""
        return sum(row[0] for row in self._select("SELECT count_if(gid IS NOT NULL) FROM {changes}"))

    def copied_rows(self) -> Counter[int]:
        """Return how many rows of each copy there are, by its id, erased ones too."""
        found = count_copied_rows(self._bronze.changes, self._bronze.changes.snapshot(self._version))
        found.update(ErasureLog(self._bronze.lake).add_to(self.erasures).copies)
        return found

    def _select(self, sql: str, start: LSN = INVALID, end: LSN = MAX_LSN) -> list[tuple[int, ...]]:
        columns = ("end_lsn", "gid")
        return [tuple(row) for row in self._bronze.select(sql, columns, start, end, version=self._version)]


@dataclass(frozen=True, slots=True)
class Audit:
    """The chain of commits of one pipeline, compared with the rows of bronze.

    `counted` is how many changes were compared, None if the chain does not record how many there should be;
    `prepared_rows` are changes that no commit counts, `copies` the complete table copies that were compared.
    `erased` are changes and copied rows that `pgdelta forget` erased. Up to `base_lsn` they were compacted
    and cannot be counted.
    """

    pipeline: str
    chain: commit_chain.CommitChain
    differences: tuple[commit_chain.Finding, ...] = ()
    counted: int | None = None
    prepared_rows: int = 0
    copies: int = 0
    erased: int = 0
    base_lsn: LSN = INVALID

    @property
    def findings(self) -> tuple[commit_chain.Finding, ...]:
        """Everything that breaks the chain, or does not agree with it."""
        return self.chain.findings + self.differences

    def exit_code(self, strict: bool) -> int:
        """Return 1 if bronze is not complete; `strict` counts a gap that was crossed by policy too."""
        return int(bool(self.findings) or (strict and bool(self.chain.crossed_gaps)))

    def as_json(self) -> dict[str, Any]:
        chain = self.chain
        segments = chain.segments
        return {
            "pipeline": self.pipeline,
            "whole": not self.findings,
            "from_lsn": str(segments[0].start),
            "to_lsn": str(segments[-1].end),
            "from_the_beginning": chain.is_from_the_beginning,
            "versions": [chain.oldest, chain.newest],
            "commits": sum(segment.commits for segment in segments),
            "transactions": sum(segment.transactions for segment in segments),
            "changes": sum(segment.changes for segment in segments),
            "copy_commits": chain.copy_commits,
            "prepared_commits": chain.prepared_commits,
            "segments": [segment.as_json() for segment in segments],
            "findings": [finding.as_json() for finding in self.findings],
            "crossed_gaps": [
                {
                    "version": link.version,
                    "from_lsn": str(link.start),
                    "to_lsn": str(link.end),
                    "sentence": link.gap,
                    "committed_at": link.committed_at and link.committed_at.isoformat(),
                }
                for link in chain.crossed_gaps
            ],
            "rows": {
                "changes": self.counted,
                "of_prepared_transactions": self.prepared_rows,
                "complete_copies": self.copies,
                "erased": self.erased,
                "counted_from_lsn": str(max(self.base_lsn, segments[0].start)),
            },
        }

    def print(self, console: Console) -> None:
        """Print what breaks the chain, its segments by origin, and what was counted."""
        segments = self.chain.segments
        state = "is NOT complete" if self.findings else "is complete"
        title = f"{self.pipeline}: bronze {state} from {segments[0].start} to {segments[-1].end}"
        print_paragraph(console, title)
        if self.findings:
            print_lines(console, (f"  {finding.kind}: {finding.sentence}" for finding in self.findings))
        console.print()
        counts = ("commits", "transactions", "changes")
        rows = [
            (
                str(segment.start),
                str(segment.end),
                *(f"{count:,}" for count in (segment.commits, segment.transactions, segment.changes)),
            )
            for segment in segments
        ]
        print_list(console, ("from", "to", *counts), rows, right=counts)
        print_lines(console, (f"from {segment.start}: {_origin(segment)}" for segment in segments))
        console.print()
        print_lines(console, self.notes())

    def lines(self) -> list[str]:
        """Return everything below the title as lines: findings first."""
        return [f"{finding.kind}: {finding.sentence}" for finding in self.findings] + self.notes()

    def notes(self) -> list[str]:
        """Return further facts: where the log begins, crossed gaps, what was counted."""
        chain = self.chain
        lines = []
        if not chain.is_from_the_beginning:
            lines.append(
                f"the log begins at version {chain.oldest}, with what was committed after "
                f"{chain.segments[0].start}: Delta's retention (delta.logRetentionDuration) removed older "
                "commits"
            )
        lines += [
            f"gap from {link.start} to {link.end}, crossed at version {link.version}: {link.gap}"
            for link in chain.crossed_gaps
        ]
        if self.counted is None:
            lines.append("rows were not counted: the chain does not record how many there should be")
            return lines
        agree = "differ, see above" if self.differences else "agree with what the commits recorded"
        copies = f"{self.copies:,} complete table {'copy' if self.copies == 1 else 'copies'}"
        lines.append(f"rows {agree}: {format_count(self.counted, 'change')} and {copies} were compared")
        if self.base_lsn > INVALID:
            lines.append(
                f"changes up to {self.base_lsn} were compacted by bronze.retention, and are not compared"
            )
        if self.erased:
            lines.append(f"changes and copied rows that pgdelta forget erased, counted: {self.erased:,}")
        if self.prepared_rows:
            lines.append(
                f"not compared: {format_count(self.prepared_rows, 'change')} of prepared "
                "transactions and logical messages"
            )
        return lines


def _origin(segment: commit_chain.ChainSegment) -> str:
    origin = segment.origin
    return (
        f"versions {segment.first_version}–{segment.last_version}, slot {origin.slot}, timeline "
        f"{origin.timeline}, system {origin.system_identifier}, database {origin.database}"
    )


def run_audit(config: Config) -> Audit:
    """Walk the commits of bronze and count its rows. Raise LakeError if bronze holds no offset."""
    lake = Lake(config.storage, application=f"pgdelta audit {config.pipeline}")
    bronze = Bronze(lake, config.pipeline)
    bronze.require_tables()
    captured = bronze.require_offset()
    changes = LoggedChanges(bronze, captured.version)
    chain = commit_chain.read_chain(changes.commits(), bronze.txn, captured.lsn)
    if not chain.segments:
        raise LakeError(
            f"Versions {chain.oldest} to {chain.newest} of {bronze.changes.path}, which is what Delta's log "
            "still has, record no offset. The next ingest records one."
        )
    bases = bronze.bases.read()
    intervals = commit_chain.intervals_of(chain)
    if intervals is not None:
        intervals = tuple(interval for interval in intervals if interval.start >= bases.lsn)
    complete = [
        state
        for states in bronze.copies.read().states.values()
        for state in states
        if state.state == COMPLETE
    ]
    recorded = {state.id: (str(state.name), state.row_count) for state in complete}
    compacted = {state.id for state in complete if bases.may_lack_rows(state)}
    differences = (
        commit_chain.row_findings(commit_chain.compare_counts(intervals, changes.count)) if intervals else []
    )
    differences += commit_chain.copy_findings(recorded, changes.copied_rows(), compacted) if recorded else []
    counted = None if intervals is None else sum(interval.changes for interval in intervals)
    erased = sum(changes.erasures.changes.values()) + sum(changes.erasures.copies.values())
    prepared = changes.prepared_rows()
    return Audit(
        config.pipeline, chain, tuple(differences), counted, prepared, len(recorded), erased, bases.lsn
    )
