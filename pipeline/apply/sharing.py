"""Outcomes of a batch's work on tables, and holds of those that their shared table cannot show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pipeline.errors import report_error
from pipeline.metadata.events import Event, EventLog
from pipeline.metadata.manifests import ManifestEntry
from pipeline.progress import ApplySummary, TableState
from pipeline.protocol.lsn import LSN
from pipeline.silver.write.shared_tables import SharedTables
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the work of a batch on a table ended; `end_lsn` is the batch's.

    A conflict means that foreign commits preceded one of ours: the table can be written again at once. One
    that `is_unshown` was written, and its shared table could not show it then.
    """

    state: TableState
    entry: ManifestEntry
    end_lsn: LSN
    is_conflict: bool = False
    is_unshown: bool = False


class Sharing:
    """Holds tables that their shared table cannot show once the other tables of a batch are written.

    Where all sources change a type in one batch, their tables agree only then.
    """

    def __init__(
        self, shared: SharedTables, events: EventLog, summary: ApplySummary, path: Callable[[TableName], str]
    ) -> None:
        self._shared = shared
        self._events = events
        self._summary = summary
        self._path = path

    def settle(self, outcomes: Mapping[TableName, Outcome]) -> dict[TableName, Outcome]:
        """Return the outcomes of tables that are not being written any more, held where they are unshown."""
        return {name: self._settled(name, outcome) for name, outcome in outcomes.items()}

    def _settled(self, name: TableName, outcome: Outcome) -> Outcome:
        if not outcome.is_unshown:
            return outcome
        try:
            state = self.share(name, outcome.state)
        except Exception as error:
            return replace(outcome, state=replace(outcome.state, failure=report_error(error)))
        return replace(outcome, state=state, entry=replace(outcome.entry, is_behind=state.is_behind))

    def share(self, name: TableName, state: TableState) -> TableState:
        """Let the shared table of a silver table, if it has one, show what was written, or hold it."""
        if (reason := self._shared.show(name, self._path(name))) is None:
            return state
        shown = self._summary.tables.get(name)
        if shown is None or shown.held != reason:
            self._events.record([Event(*name, state.applied, "held", reason)])
        return replace(state, held=state.held or reason)
