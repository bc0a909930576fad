"""What the next apply would do: the changes that wait for each table, and each step with its price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console, Group
from rich.table import Table

from pipeline.apply.applier import Applier
from pipeline.apply.planner import BatchPlan
from pipeline.bronze.copied_rows import InputStart
from pipeline.config.config import Config
from pipeline.delta.spark.session import start_session
from pipeline.errors import report_error
from pipeline.progress import NO_BRONZE
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.report.status_page import escape
from pipeline.silver.column_mapping import RenameColumn
from pipeline.silver.schema_evolution import (
    AddColumn,
    CreateTable,
    DropColumn,
    Hold,
    NeedsRebuild,
    Operation,
    WidenColumn,
)
from pipeline.silver.schema_notes import SchemaNote
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a table's evolution: where, what, what it costs, and what it loses, if anything."""

    lsn: LSN
    sentence: str
    cost: str
    loses: str | None = None


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What waits for one table: changes by operation after an LSN, and steps in order."""

    name: TableName
    after: LSN
    counts: dict[str, int]
    steps: tuple[Step, ...] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next apply would do up to an LSN."""

    pipeline: str
    upto: LSN
    tables: tuple[TablePlan, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the plan as data."""
        return {
            "pipeline": self.pipeline,
            "upto": str(self.upto),
            "tables": [
                {
                    "schema": table.name[0],
                    "table": table.name[1],
                    "after": str(table.after),
                    "changes": table.counts,
                    "steps": [
                        {"lsn": str(s.lsn), "sentence": s.sentence, "cost": s.cost, "loses": s.loses}
                        for s in table.steps
                    ],
                    "failure": table.failure,
                }
                for table in self.tables
            ],
        }

    def print(self, console: Console) -> None:
        """Print one row a table, and its steps below."""
        if not self.tables:
            at_rest = f"silver shows all that bronze holds (up to {self.upto})"
            console.print(f"{self.pipeline}: {NO_BRONZE if self.upto == INVALID else at_rest}")
            return
        shown = Table(title=f"{self.pipeline}: what apply does next, up to {self.upto}", title_justify="left")
        for heading in ("table", "changes", "step", "cost", "loses"):
            shown.add_column(heading, overflow="fold")
        for table in self.tables:
            changes = ", ".join(f"{count} {op}" for op, count in table.counts.items() if count)
            steps = table.steps or (Step(table.after, table.failure or "rows only", "one write"),)
            for number, step in enumerate(steps):
                cells = (str(table.name), changes) if number == 0 else ("", "")
                shown.add_row(*map(escape, (*cells, step.sentence, step.cost, step.loses or "")))
            shown.add_section()
        console.print(Group(shown))


def make_plan(config: Config, *, spark: SparkSession | None = None) -> Plan:
    """Look at bronze and silver, and return what the next apply would do; nothing is changed."""
    applier = Applier(spark or start_session(f"pgdelta plan {config.pipeline}"), config)
    pending = applier.plan()
    if pending is None:
        point = applier.bronze.captured_offset() if applier.bronze.changes.exists() else None
        return Plan(config.pipeline, point.lsn if point else INVALID, ())
    tables = tuple(_table(applier, pending, name) for name in pending.names)
    return Plan(config.pipeline, pending.end.lsn, tables)


def _table(applier: Applier, pending: BatchPlan, name: TableName) -> TablePlan:
    if copy := pending.copies.get(name):
        cost = f"{copy.row_count} rows are written; readers see the rows from before until then"
        step = Step(copy.end_lsn, "the table begins with a copy of the source's rows", cost)
        return TablePlan(name, copy.lsn, {"R": copy.row_count}, (step,))
    if patches := pending.partial_copies.get(name):
        steps = _held(applier, pending, name) or tuple(
            Step(p.lsn, f"the rows of {len(p.key_ranges)} ranges of keys are put", f"{p.row_count} rows")
            for p in patches
        )
        return TablePlan(name, pending.offset(name), {"R": sum(p.row_count for p in patches)}, steps)
    found, counts, after = pending.surveys[name], pending.counts[name], pending.offset(name)
    if steps := _held(applier, pending, name):
        return TablePlan(name, after, dict(counts), steps)
    try:
        writer = applier.writer(name, pending.history)
        registered = pending.registered.get(name)
        surveys = [s.survey for s in found]
        operations = writer.plan(surveys, applier.relations, registered, InputStart(after), pending.end.lsn)
        rows = writer.table.frame().count() if writer.table.exists() else 0
        recorded = writer.bronze.count_of(name, pending.end.lsn) if _is_rewritten(operations) else 0
    except Exception as error:  # the others are planned all the same
        return TablePlan(name, after, dict(counts), failure=report_error(error))
    steps = tuple(_step(lsn, operation, rows, recorded) for lsn, operation in operations)
    return TablePlan(name, after, dict(counts), steps)


def _held(applier: Applier, pending: BatchPlan, name: TableName) -> tuple[Step, ...]:
    excess = applier.excess(name, pending)
    return (Step(pending.offset(name), excess, "nothing is applied until then"),) if excess else ()


def _is_rewritten(operations: list[tuple[LSN, Operation]]) -> bool:
    return any(isinstance(operation, NeedsRebuild) for _, operation in operations)


def _step(lsn: LSN, operation: Operation, rows: int, recorded: int) -> Step:
    nothing = "no data is written"
    match operation:
        case CreateTable():
            columns = ", ".join(f"{name} {kind.ddl}" for name, kind in operation.columns)
            return Step(lsn, f"the table is created: {columns}", nothing)
        case AddColumn(backfill=str()):
            return Step(lsn, operation.sentence, f"{rows} rows get the default")
        case RenameColumn():
            sentence = (
                operation.sentence or f"column {operation.name} is called {operation.to} for the moment"
            )
            return Step(lsn, sentence, f"{nothing}; readers need column mapping")
        case WidenColumn():
            return Step(lsn, operation.sentence, f"{nothing}; readers need type widening")
        case DropColumn():
            return Step(
                lsn, operation.sentence, f"{nothing}; readers need column mapping", "the column's values"
            )
        case NeedsRebuild():
            cost = f"{recorded} changes are read again, {rows} rows are replaced"
            return Step(lsn, f"{operation.sentence}: the table is written anew from bronze", cost)
        case Hold():
            return Step(lsn, operation.sentence, "nothing is applied from there on")
        case SchemaNote():
            return Step(lsn, operation.sentence, nothing, "what only a resync brings")
    return Step(lsn, operation.sentence, nothing)
