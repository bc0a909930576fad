"""Account for every value of the source: equal in silver, or a misfit of its column under a policy.

The comparison is that of reconcile: rows are equal at one LSN in a form in which a misfit is what its policy
makes of it. One more scan of the source under the same snapshot counts the values and the misfits of each
column. For a table whose rows are equal, every value that is no misfit is therefore equal in silver. For any
other table the number of equal values is not known, and none is given.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.config.config import Config
from pipeline.metadata.reconciliations import DIFFERENT, EQUAL, UNPROVEN, Reconciliation
from pipeline.metadata.registry import Records
from pipeline.postgres.snapshot.hashed_rows import ValueCount
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName, match_tables
from pipeline.terminal import print_list, print_paragraph
from pipeline.verify.reconcile import WAIT_SECONDS, Reconciler
from pipeline.verify.reconcile_report import what_differs

_COLOURS = {DIFFERENT: "red", UNPROVEN: "yellow", EQUAL: "green"}
_ORDER = tuple(_COLOURS)


@dataclass(frozen=True, slots=True)
class ColumnFidelity:
    """The values of a column: `values` = `equal` + `misfits`.

    `equal` is None if the rows of the table are not equal. `recorded` counts the misfits since the start, by
    policy, also of values that are gone. A column that was not compared has a `reason` and no counts.
    """

    name: str
    policy: str
    values: int | None = None
    misfits: int | None = None
    equal: int | None = None
    recorded: Mapping[str, int] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TableFidelity:
    """The columns of a table, and the verdict about its rows."""

    name: TableName
    verdict: str
    lsn: LSN
    rows: int
    columns: tuple[ColumnFidelity, ...]
    sentence: str

    def total(self, what: str) -> int | None:
        """Return the sum of `values`, `equal` or `misfits` over the columns that were compared."""
        found = [getattr(column, what) for column in self.columns if column.reason is None]
        return None if None in found or not self.columns else sum(found)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The account of a run, table by table; `has_columns` is whether a page shows every column."""

    pipeline: str
    tables: tuple[TableFidelity, ...]
    has_columns: bool = False

    def exit_code(self, strict: bool) -> int:
        """Return 1 if a table is not equal, or under `strict` if a column was not compared."""
        has_rest = any(column.reason for table in self.tables for column in table.columns)
        return int(any(table.verdict != EQUAL for table in self.tables) or (strict and has_rest))

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "ok": self.exit_code(strict=False) == 0,
            "tables": [_json(table) for table in self.tables],
        }

    def print(self, console: Console) -> None:
        """Print a line a table, lines for its columns if they are shown, and where misfits are."""
        counts = Counter(table.verdict for table in self.tables)
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _ORDER if counts[verdict])
        print_paragraph(console, f"{self.pipeline}: values compared with the source: {words}")
        console.print()
        headings = ("table", "verdict", "values", "equal", "misfits", "policy")
        ordered = sorted(self.tables, key=lambda found: (_ORDER.index(found.verdict), found.name))
        rows: list[tuple[str | Text, ...]] = []
        for table in ordered:
            totals = (_number(table.total(what)) for what in ("values", "equal", "misfits"))
            rows.append((str(table.name), Text(table.verdict, _COLOURS[table.verdict]), *totals, ""))
            rows += [
                (
                    f"  {column.name}",
                    "" if column.reason is None else "not compared",
                    _number(column.values),
                    _number(column.equal),
                    _number(column.misfits),
                    column.policy if column.misfits else "",
                )
                for column in table.columns
                if self.has_columns or column.misfits
            ]
        print_list(console, headings, rows, right=("values", "equal", "misfits"))
        for line in self._notes(ordered):
            print_paragraph(console, line)

    def _notes(self, ordered: Sequence[TableFidelity]) -> Iterator[str]:
        for table in ordered:
            if table.verdict != EQUAL:
                yield f"{table.name}: {table.sentence}"
            for column in table.columns:
                if column.reason:
                    yield f"not compared: {table.name}.{column.name}: {column.reason}"
        if lossy := [table.name for table in ordered if table.total("misfits")]:
            yield (
                "To keep a misfit in silver, give its column another type in tables[].types, such as STRING,"
                f" and run {lossy[0].command('rebuild')}. Bronze has every text."
            )


def run_fidelity(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    wait: float = WAIT_SECONDS,
    runs: bool = False,
    stop: threading.Event | None = None,
) -> Fidelity:
    """Account for the values of the tables that globs match, or of all.

    `runs` captures what the comparison needs. The results of the comparison are recorded as reconcile's are.
    """
    matches = match_tables(globs)
    stop = stop or threading.Event()
    reconciler = Reconciler(config, wait=wait, runs=runs, stop=stop, command="fidelity", counts_values=True)
    found = reconciler.run(matches, globs)
    recorded = Records(reconciler.lake).misfits.counts_by_policy()
    tables = tuple(
        account(config, verdict, reconciler.values.get(verdict.name, {}), recorded.get(verdict.name, {}))
        for verdict in found.verdicts
    )
    return Fidelity(config.pipeline, tables, bool(globs))


def account(
    config: Config,
    verdict: Reconciliation,
    counts: Mapping[str, ValueCount],
    recorded: Mapping[str, Mapping[str, int]],
) -> TableFidelity:
    """Return the account of a table, given its verdict, the counts of its columns and recorded misfits."""
    rule = config.rule_for(verdict.name)
    assert rule is not None
    is_equal = verdict.verdict == EQUAL
    columns = [
        ColumnFidelity(
            name,
            rule.misfit_of(name),
            count.values,
            count.misfits,
            count.values - count.misfits if is_equal else None,
            recorded.get(name, {}),
        )
        for name, count in counts.items()
    ]
    columns += [
        ColumnFidelity(name, rule.misfit_of(name), reason=reason, recorded=recorded.get(name, {}))
        for name, reason in verdict.left_out.items()
    ]
    return TableFidelity(
        verdict.name, verdict.verdict, verdict.lsn, verdict.source_rows, tuple(columns), what_differs(verdict)
    )


def _json(table: TableFidelity) -> dict[str, Any]:
    return {
        **table.name._asdict(),
        "verdict": table.verdict,
        "lsn": str(table.lsn) if table.lsn else None,
        "rows": table.rows,
        "values": table.total("values"),
        "equal": table.total("equal"),
        "misfits": table.total("misfits"),
        "columns": [
            {
                "column": column.name,
                "policy": column.policy,
                "values": column.values,
                "equal": column.equal,
                "misfits": column.misfits,
                "recorded_misfits": dict(column.recorded or {}),
                "not_compared": column.reason,
            }
            for column in table.columns
        ],
        "sentence": table.sentence or None,
    }


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
