"""Audit bronze by its own log (`pgdelta audit`): the chain of its commits, and the rows they recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from pipeline.bronze.copy_states import COMPLETE
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.spark.session import start_session
from pipeline.delta.table import Lake
from pipeline.errors import LakeError, one_line
from pipeline.report.status_page import escape
from pipeline.verify.commit_chain import CommitChain, Finding, read_chain
from pipeline.verify.commit_log import LoggedChanges
from pipeline.verify.row_counts import compare_counts, copy_findings, intervals_of, row_findings


@dataclass(frozen=True, slots=True)
class Audit:
    """The chain of one pipeline, and where the rows of bronze differ from it.

    `counted` is how many changes were compared, None if the chain does not say how many there should be;
    `prepared_rows` are changes that no commit counts, `copies` the complete copies that were counted.
    """

    pipeline: str
    chain: CommitChain
    differences: tuple[Finding, ...] = ()
    counted: int | None = None
    prepared_rows: int = 0
    copies: int = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return all faults of the chain, and of the rows."""
        return self.chain.findings + self.differences

    def exit_code(self, strict: bool) -> int:
        """Return 1 if there are findings; `strict` counts a gap that was crossed by policy too."""
        return int(bool(self.findings) or (strict and bool(self.chain.crossed_gaps)))

    def as_json(self) -> dict[str, Any]:
        """Return the audit as data."""
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
            },
        }

    def print(self, console: Console) -> None:
        """Print the chain by segments, then the findings."""
        data = self.as_json()
        state = "is whole" if data["whole"] else "is BROKEN"
        title = f"{self.pipeline}: the chain from {data['from_lsn']} to {data['to_lsn']} {state}"
        shown = Table(title=escape(title), title_justify="left")
        headings = ("from", "to", "versions", "commits", "transactions", "changes", "slot", "timeline")
        for heading in (*headings, "system identifier", "database"):
            shown.add_column(heading, overflow="fold")
        for segment in data["segments"]:
            first, last = segment["versions"]
            cells = (segment["from_lsn"], segment["to_lsn"], f"{first}–{last}")
            names = (*headings[3:], "system_identifier", "database")
            shown.add_row(*cells, *(escape(str(segment[name])) for name in names))
        console.print(shown)
        for line in self.lines():
            console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)

    def lines(self) -> list[str]:
        """Return what is to be said beside the table."""
        chain = self.chain
        lines = []
        if not chain.is_from_the_beginning:
            lines.append(
                f"the log begins at version {chain.oldest}, with what was committed after "
                f"{chain.segments[0].start}: Delta's retention took older commits "
                "(delta.logRetentionDuration)"
            )
        lines += [
            f"gap from {link.start} to {link.end}, crossed at version {link.version}: {link.gap}"
            for link in chain.crossed_gaps
        ]
        lines += [f"{finding.kind}: {finding.sentence}" for finding in self.findings]
        if self.counted is None:
            lines.append("rows were not counted: the ledger does not say how many there should be")
        else:
            agree = "differ, see above" if self.differences else "are as many as was recorded"
            lines.append(
                f"rows {agree}: {self.counted} changes and {self.copies} complete copies were compared; "
                f"{self.prepared_rows} changes of prepared transactions and logical messages are not counted "
                "by commits"
            )
        return lines


def run_audit(config: Config, *, spark: SparkSession | None = None) -> Audit:
    """Audit the commits of bronze; nothing is changed, and the source is not read.

    Raises LakeError if bronze records no offset.
    """
    lake = Lake(spark or start_session(f"pgdelta audit {config.pipeline}"), config.storage.root)
    bronze = Bronze(lake, config.pipeline)
    captured = bronze.captured_offset() if bronze.changes.exists() else None
    if captured is None:
        raise LakeError(
            f"{bronze.changes.path} records no offset of the pipeline {config.pipeline}. Run pgdelta ingest "
            "first."
        )
    changes = LoggedChanges(bronze.changes, captured.version)
    chain = read_chain(changes.commits(), bronze.txn, captured.lsn)
    if not chain.segments:
        raise LakeError(
            f"Delta's log of {bronze.changes.path}, versions {chain.oldest} to {chain.newest}, has no commit "
            "that records an offset any more. Run pgdelta ingest, which adds one."
        )
    intervals = intervals_of(chain)
    recorded = {
        state.id: (str(state.name), state.row_count)
        for states in bronze.copies.read().states.values()
        for state in states
        if state.state == COMPLETE
    }
    differences = row_findings(compare_counts(intervals, changes.count)) if intervals else []
    differences += copy_findings(recorded, changes.copied_rows()) if recorded else []
    counted = None if intervals is None else sum(interval.changes for interval in intervals)
    return Audit(config.pipeline, chain, tuple(differences), counted, changes.prepared_rows(), len(recorded))
