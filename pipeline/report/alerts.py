"""Tables that a run holds, that fail, or that go on again: each told once for each sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pipeline.progress import TableState
    from pipeline.protocol.lsn import LSN

Kind = Literal["held", "failed", "resumed"]


class Alert(NamedTuple):
    """What began of a table, or ended: where it stands, and the sentence of what began."""

    kind: Kind
    name: TableName
    applied: LSN
    sentence: str | None = None

    @property
    def line(self) -> str:
        """Return it for people; the sentence of a table that is held names it."""
        table = str(self.name)
        match self.kind:
            case "held":
                return f"held: {self.sentence}"
            case "failed":
                return f"failed: {table}: {self.sentence}"
        return f"resumed: {table}"


class Alerts:
    """Knows what was told of each table."""

    def __init__(self) -> None:
        self._told: dict[TableName, tuple[Kind, str]] = {}

    def update(self, tables: Mapping[TableName, TableState]) -> list[Alert]:
        """Return what is new since the last time, by table."""
        found = []
        for name, state in sorted(tables.items()):
            kind: Kind = "failed" if state.failure else "held"
            sentence = state.failure or state.held
            if sentence and (kind, sentence) != self._told.get(name):
                self._told[name] = kind, sentence
                found.append(Alert(kind, name, state.applied, sentence))
            elif not sentence and self._told.pop(name, None) is not None:
                found.append(Alert("resumed", name, state.applied))
        return found
