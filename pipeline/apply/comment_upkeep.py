"""Give silver tables the comments of the source also while none of their rows change.

A table that is written gets its comments before its rows. The others are compared when `_pgdelta/comments`
has changed, and once when a run starts.
"""

from __future__ import annotations

from collections.abc import Collection

from pipeline.apply.planner import Planner
from pipeline.apply.table_applier import TableApplier
from pipeline.delta.retry import is_conflict
from pipeline.errors import report_error
from pipeline.metadata.source_comments import Comments, changed_tables
from pipeline.progress import ApplySummary
from pipeline.silver.decision import STOPPED
from pipeline.table_name import TableName


class CommentUpkeep:
    """Sets comments for one run of apply."""

    def __init__(self, planner: Planner, tables: TableApplier) -> None:
        self._planner = planner
        self._records = planner.records
        self._tables = tables
        self._seen: Comments = {}
        self._due: set[TableName] = set()

    @property
    def is_due(self) -> bool:
        """Whether comments changed since they were read, or some are not set yet."""
        return bool(self._due) or self._records.comments.has_changed

    def set_comments(self, summary: ApplySummary, busy: Collection[TableName]) -> None:
        """Set the comments that changed, after a batch; those of busy tables follow with a later call.

        Tables that wait, are held or failed get them before their next write.
        """
        comments = self._records.comments.read()
        if comments is not self._seen:
            self._due |= {*changed_tables(self._seen, comments)}
            self._seen = comments
        if not self._due:
            return
        waiting = set()
        for name in sorted(self._due):
            if name in busy:
                waiting.add(name)
                continue
            plan, shown = self._planner.tables.get(name), summary.tables.get(name)
            if plan is None or plan.step in STOPPED or (shown is not None and shown.failure):
                continue
            try:
                self._set(name)
            except Exception as error:
                if is_conflict(error):
                    waiting.add(name)
                else:
                    report_error(error)
        self._due = waiting

    def _set(self, name: TableName) -> None:
        registered, rule = self._records.tables.read().get(name), self._planner.config.rule_for(name)
        if registered is None or rule is None or not rule.source_comments:
            return
        with self._tables.gate.writing(str(name)):
            self._planner.expected_versions.require(name)
            self._tables.writer(name, self._planner.bronze.copies.read()).batch.set_comments(registered)
