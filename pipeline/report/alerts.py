"""Alerts of a run: tables that are held, that fail, or that resume; each once for each sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pipeline.progress import TableState
    from pipeline.protocol.lsn import LSN

Kind = Literal["held", "failed", "resumed"]


class Alert(NamedTuple):
    """A table's change of state, the LSN that it is applied up to, and why it is held or failed."""

    kind: Kind
    name: TableName
    applied: LSN
    sentence: str | None = None

    @property
    def line(self) -> str:
        """The alert for people; the sentence of a held table names it."""
        match self.kind:
            case "held":
                return f"held: {self.sentence}"
            case "failed":
                return f"failed: {self.name}: {self.sentence}"
        return f"resumed: {self.name}"


class Alerts:
    """Remembers the last alert of each table."""

    def __init__(self) -> None:
        self._last: dict[TableName, tuple[Kind, str]] = {}

    def update(self, tables: Mapping[TableName, TableState]) -> list[Alert]:
        """Return the alerts that are new since the last call, by table."""
        alerts = []
        for name, state in sorted(tables.items()):
            kind: Kind = "failed" if state.failure else "held"
            sentence = state.failure or state.held
            if sentence and (kind, sentence) != self._last.get(name):
                self._last[name] = kind, sentence
                alerts.append(Alert(kind, name, state.applied, sentence))
            elif not sentence and self._last.pop(name, None) is not None:
                alerts.append(Alert("resumed", name, state.applied))
        return alerts
