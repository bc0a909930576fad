"""What the next apply would do: the changes that wait for each table, and each step with its price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console, Group
from rich.table import Table

from pipeline.apply.applier import Applier
from pipeline.apply.decision import Step
from pipeline.apply.planner import BatchPlan
from pipeline.bronze.table_input import InputStart
from pipeline.config.config import Config
from pipeline.delta.spark.session import start_session
from pipeline.errors import report_error
from pipeline.progress import NO_BRONZE
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.report.status_page import escape
from pipeline.silver.batch_writer import RangePlan
from pipeline.silver.schema_operations import CreateTable, NeedsRebuild, Operation, RenameColumn
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a table's evolution: where, what, what it costs, and what it loses, if anything."""

    lsn: LSN
    sentence: str
    cost: str
    loses: str | None = None
    sql: tuple[str, ...] = ()
    is_write: bool = False  # of rows; others change columns


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What waits for one table: changes by operation after an LSN, and steps in order."""

    name: TableName
    after: LSN
    counts: dict[str, int]
    steps: tuple[PlanStep, ...] = ()
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
            steps = table.steps or (PlanStep(table.after, table.failure or "rows only", "one write"),)
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
    shown = [
        name for name, table in pending.tables.items() if table.step.writes or table.decision.row == "guards"
    ]
    return Plan(config.pipeline, pending.end.lsn, tuple(_table(applier, pending, name) for name in shown))


def _table(applier: Applier, pending: BatchPlan, name: TableName) -> TablePlan:
    table = pending.tables[name]
    facts, counts = table.facts, dict(table.facts.counts or {})
    if table.step is not Step.START_FROM_COPY and facts.partial_copies:
        counts = {"R": sum(copy.row_count for copy in facts.partial_copies)}
    match table.step:
        case Step.HOLD:
            step = PlanStep(facts.offset, table.decision.sentence or "", "nothing is applied until then")
            return TablePlan(name, facts.offset, counts, (step,))
        case Step.START_FROM_COPY:
            assert facts.copy is not None
            rows = facts.copy.row_count
            cost = f"{rows} rows are written; readers see the rows from before until then"
            step = PlanStep(facts.copy.end_lsn, "the table begins with a copy of the source's rows", cost)
            return TablePlan(name, facts.copy.lsn, {"R": rows}, (step,))
        case Step.PARTIAL_RESYNC:
            steps = tuple(
                PlanStep(p.end_lsn, f"copied rows of {len(p.key_ranges)} key ranges", f"{p.row_count} rows")
                for p in facts.partial_copies
            )
            return TablePlan(name, facts.offset, counts, steps)
    try:
        writer = applier.writer(name, pending.history)
        surveys = [s.survey for s in table.surveys]
        registered, start = pending.registered.get(name), InputStart(facts.offset)
        planned = writer.plan(surveys, applier.relations, registered, start, pending.end.lsn)
        rows = writer.table.frame().count() if writer.table.exists() else 0
        changes = writer.bronze.count_of(name, pending.end.lsn) if planned.rebuild else 0
    except Exception as error:  # the others are planned all the same
        return TablePlan(name, facts.offset, counts, failure=report_error(error))
    return TablePlan(name, facts.offset, counts, _steps(planned, writer.table.identifier, rows, changes))


def _steps(planned: RangePlan, table: str, rows: int, changes: int) -> tuple[PlanStep, ...]:
    """Return the steps of a range: how the columns change, the writes, and where it stops."""
    operations = planned.evolution.operations if planned.evolution else ()
    steps = [
        PlanStep(lsn, _describe(each), each.cost(rows, changes), each.loses, tuple(each.statements(table)))
        for lsn, each in operations
    ]
    steps += [
        PlanStep(write.commit.lsn, write.kind.value, "one write", None, (write.sql,), is_write=True)
        for write in planned.writes
    ]
    if planned.stop:
        steps.append(PlanStep(planned.end_lsn, planned.stop.sentence, "nothing is applied from there on"))
    return tuple(steps)


def _describe(operation: Operation) -> str:
    match operation:
        case CreateTable():
            return f"The table is created: {operation.ddl}"
        case RenameColumn(sentence=None):
            return f"Column {operation.name} is called {operation.to} for the moment."
        case NeedsRebuild():
            return f"{operation.sentence}: the table is rebuilt from bronze"
    return operation.sentence or ""
