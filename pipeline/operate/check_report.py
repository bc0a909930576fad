"""What `pgdelta check` found: failures first, each with what to do, then advice, then what passed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pipeline.postgres.checks.table_checks import Check
from pipeline.terminal import plain, print_pairs, print_paragraph


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The checks of one configuration file, in the order in which a start would meet them."""

    pipeline: str
    path: str
    checks: tuple[Check, ...]

    @property
    def failure_count(self) -> int:
        """How many checks failed."""
        return sum(not check.ok for check in self.checks)

    def exit_code(self, strict: bool) -> int:
        """Return 1 if a check failed."""
        del strict
        return int(self.failure_count > 0)

    def as_json(self) -> dict[str, Any]:
        """Return the checks as data."""
        rows = [{"name": c.name, "ok": c.ok, "sentence": c.sentence, "fix": c.fix} for c in self.checks]
        return {"ok": not self.failure_count, "checks": rows}

    def print(self, console: Console) -> None:
        """Print each check with its sentence, and below it what to do."""
        print_paragraph(console, f"{self.pipeline}: {self.path}")
        console.print()
        print_pairs(console, self._pairs(console.width))
        console.print()
        count = len(self.checks)
        verdict = f"{self.failure_count} of {count} checks failed" if self.failure_count else "ready"
        print_paragraph(console, f"{self.pipeline}: {verdict}")

    def _pairs(self, width: int) -> Iterator[tuple[str | Text, str | Text]]:
        ordered = sorted(self.checks, key=lambda check: (check.ok, not check.fix))
        longest = max((cell_len(check.name) for check in ordered), default=0) + len("✔ ")
        for check in ordered:
            mark = Text("✔", "green") if check.ok else Text("✘", "red")
            label = Text.assemble(mark, " ", plain(check.name))
            if not check.fix:
                yield label, check.sentence
            elif cell_len(f"{check.sentence} → {check.fix}") + longest + 2 <= width:
                yield label, f"{check.sentence} → {check.fix}"
            else:
                yield label, check.sentence
                yield "", f"→ {check.fix}"
