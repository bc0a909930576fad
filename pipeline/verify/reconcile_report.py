"""The result of comparing silver with its source: for people, as data, and as an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.metadata.reconciliations import DIFFERENT, EQUAL, UNPROVEN, Reconciliation
from pipeline.operate.run import RunSummary
from pipeline.protocol.lsn import LSN
from pipeline.silver.compare.file_fingerprints import FileCounts
from pipeline.table_name import TableName
from pipeline.terminal import WIDE, print_lines, print_list, print_paragraph

_COLOURS = {DIFFERENT: "red", UNPROVEN: "yellow", EQUAL: "green"}
_ORDER = tuple(_COLOURS)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The verdicts of a run, table by table; the repairs that it requested, and the run that made them.

    `files` are those of a proof. `partial` says of tables which of the rows that SELECT on the source shows
    were compared, `by_spark` why only Spark could read them.
    """

    pipeline: str
    run_id: str
    verdicts: tuple[Reconciliation, ...]
    repairs: Mapping[TableName, str] = field(default_factory=dict)
    run: RunSummary | None = None
    partial: Mapping[TableName, str] = field(default_factory=dict)
    by_spark: Mapping[TableName, str] = field(default_factory=dict)
    files: FileCounts | None = None

    def __add__(self, other: Reconciled) -> Reconciled:
        """Return the result of two proofs of different tables as one."""
        assert self.files is not None
        assert other.files is not None
        return replace(
            other,
            verdicts=(*self.verdicts, *other.verdicts),
            repairs={**self.repairs, **other.repairs},
            partial={**self.partial, **other.partial},
            by_spark={**self.by_spark, **other.by_spark},
            files=FileCounts(*map(add, self.files, other.files)),
        )

    def exit_code(self, strict: bool) -> int:
        """Return 0 if every table was compared and is equal, else 1, also if the run was stopped."""
        return int(any(verdict.verdict != EQUAL for verdict in self.verdicts))

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "run": self.run_id,
            "ok": self.exit_code(strict=False) == 0,
            "tables": [
                {
                    **_json(verdict, self.repairs.get(verdict.name)),
                    "partial": self.partial.get(verdict.name),
                }
                for verdict in self.verdicts
            ],
            "run_of_repair": self.run and self.run.as_json(),
            "files": self.files and self.files._asdict(),
        }

    def print(self, console: Console) -> None:
        """Print one line a table, differences first, then each sentence, and what was not compared."""
        if not self.verdicts:
            print_paragraph(console, f"{self.pipeline}: no table is due")
            return
        counts = Counter(verdict.verdict for verdict in self.verdicts)
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _ORDER if counts[verdict])
        done = "compared with" if self.files is None else "proved against"
        print_paragraph(console, f"{self.pipeline}: silver {done} the source: {words}")
        console.print()
        ordered = sorted(self.verdicts, key=lambda found: (_ORDER.index(found.verdict), found.name))
        is_wide = console.width >= WIDE
        headings = ("table", "verdict", *(("LSN",) if is_wide else ()), "source", "silver", "differences")
        rows = [
            (
                str(found.name),
                Text(found.verdict, _COLOURS[found.verdict]),
                *((_lsn(found.lsn) or "",) if is_wide else ()),
                *((f"{found.source_rows:,}", f"{found.silver_rows:,}") if found.lsn else ("", "")),
                what_differs(found),
            )
            for found in ordered
        ]
        print_list(console, headings, rows, right=("source", "silver"))
        notes = list(self._notes(ordered))
        if notes:
            console.print()
            print_lines(console, notes)
        for line in self.run.lines() if self.run else ():
            print_paragraph(console, line)

    def _notes(self, ordered: Sequence[Reconciliation]) -> Iterator[str]:
        for found in ordered:
            if found.verdict != EQUAL:
                repair = self.repairs.get(found.name)
                yield f"{found.name}: {what_differs(found)}" + (f"; {repair}" if repair else "")
        for name, sentence in sorted(self.partial.items()):
            yield f"compared without other rows: {name}: {sentence}"
        for found in ordered:
            for column, reason in found.left_out.items():
                yield f"not compared: {found.name}.{column}: {reason}"
        for name, reason in sorted(self.by_spark.items()):
            yield f"compared by Spark: {name}: {reason}"
        if self.files is not None:
            yield f"files of silver: {self.files.read:,} read, {self.files.recorded:,} fingerprinted before"
        if any(verdict.rows for verdict in self.verdicts):
            yield f"The keys of rows that differ are in _pgdelta/differences, run {self.run_id}."


def what_differs(found: Reconciliation) -> str:
    """Return in words what differs, or why the table was not compared."""
    if found.verdict != DIFFERENT:
        return found.sentence or ""
    counts = {"missing": found.missing, "too many": found.surplus, "with other values": found.changed}
    words = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    columns = f" ({', '.join(found.columns)})" if found.columns else ""
    return f"{'' if found.is_whole else 'at least '}{words}{columns}"


def _json(found: Reconciliation, repair: str | None) -> dict[str, Any]:
    return {
        **found.name._asdict(),
        "verdict": found.verdict,
        "lsn": _lsn(found.lsn),
        "silver_version": found.silver_version,
        "applied": _lsn(found.applied_lsn),
        "pending": found.pending,
        "source_rows": found.source_rows,
        "silver_rows": found.silver_rows,
        "missing": found.missing,
        "surplus": found.surplus,
        "changed": found.changed,
        "is_whole": found.is_whole,
        "columns": list(found.columns),
        "not_compared": dict(found.left_out),
        "misfits": dict(found.misfits),
        "sentence": found.sentence,
        "fingerprint": found.fingerprint,
        "repair": repair,
        "seconds": round(found.seconds, 3),
    }


def _lsn(lsn: LSN) -> str | None:
    return str(lsn) if lsn else None
