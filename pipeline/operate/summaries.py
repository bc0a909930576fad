"""What runs report: closing lines for people, the same as data, and exit codes for schedulers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipeline.lake.bronze import TableName
from pipeline.protocol.lsn import INVALID, LSN


@dataclass(slots=True)
class IngestSummary:
    """What a run captured so far; `position` is what bronze holds and the slot was told."""

    pipeline: str
    slot: str
    position: LSN = INVALID
    transactions: int = 0
    changes: int = 0
    commits: int = 0
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """Return the closing lines for people."""
        rate = self.changes / self.seconds if self.seconds else 0.0
        return [
            f"ingest {self.pipeline}: {self.changes} changes of {self.transactions} transactions in "
            f"{self.commits} commits, {self.seconds:.1f} s ({rate:.0f} changes/s)",
            f"bronze is complete up to {self.position}, acknowledged to slot {self.slot}",
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the same as data."""
        return {
            "pipeline": self.pipeline,
            "slot": self.slot,
            "position": str(self.position),
            "transactions": self.transactions,
            "changes": self.changes,
            "commits": self.commits,
            "seconds": round(self.seconds, 3),
        }

    def exit_code(self, strict: bool) -> int:
        """Return 0: an ingest that could not go on raises."""
        del strict
        return 0


@dataclass(slots=True)
class TableState:
    """One silver table as apply left it."""

    applied: LSN = INVALID
    changes: int = 0
    misfits: int = 0
    held: str | None = None
    failure: str | None = None


@dataclass(slots=True)
class ApplySummary:
    """What a run applied so far, by table."""

    pipeline: str
    position: LSN = INVALID
    tables: dict[TableName, TableState] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the closing lines for people."""
        changes = sum(state.changes for state in self.tables.values())
        misfits = sum(state.misfits for state in self.tables.values())
        lines = [
            f"apply {self.pipeline}: {changes} changes to {len(self.tables)} tables; "
            f"silver shows {self.position}"
        ]
        if misfits:
            lines.append(
                f"{misfits} values did not fit their silver type and are NULL there: see _pgdelta/misfits"
            )
        for name, state in sorted(self.tables.items()):
            if state.held:
                lines.append(f"held: {state.held}")
            if state.failure:
                lines.append(f"failed: {'.'.join(name)}: {state.failure}")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return the same as data."""
        return {
            "pipeline": self.pipeline,
            "position": str(self.position),
            "tables": [
                {
                    "schema": name[0],
                    "table": name[1],
                    "applied": str(state.applied),
                    "changes": state.changes,
                    "misfits": state.misfits,
                    "held": state.held,
                    "failure": state.failure,
                }
                for name, state in sorted(self.tables.items())
            ],
        }

    def exit_code(self, strict: bool) -> int:
        """Return 1 where a table failed, or under `strict` where one is held."""
        states = self.tables.values()
        return int(any(s.failure for s in states) or (strict and any(s.held for s in states)))


IngestProgress = Callable[[IngestSummary], None]
ApplyProgress = Callable[[ApplySummary], None]
