"""Plan the next apply for people: the pending changes of each table, and the cost of each step.

The decisions are those of `apply`; nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.apply.applier import Applier
from pipeline.apply.catalog_registrar import targets
from pipeline.apply.planner import BatchPlan, TablePlan
from pipeline.bronze.table_input import InputStart
from pipeline.config.config import Config
from pipeline.delta.store.looks import one_look
from pipeline.delta.table_log import look_at
from pipeline.errors import LakeError, report_error
from pipeline.metadata.catalog_entries import CatalogEntries
from pipeline.operate.plan_report import Plan, PlannedTable, PlanStep
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.decision import STOPPED, Decision, Step, TableFacts
from pipeline.silver.schema.protection_changes import rule_to_come
from pipeline.silver.schema.schema_operations import (
    CreateTable,
    NeedsRebuild,
    RenameColumn,
    SchemaOperation,
    SetProperties,
)
from pipeline.silver.schema.table_partitions import partitions_to_come
from pipeline.silver.write.range_plan import RangePlan
from pipeline.silver.write.writer_choice import Choice
from pipeline.table_name import TableName, match_tables
from pipeline.units import format_count

_MAX_CHARACTERS = 100  # of a property's value or a comment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@one_look()
def make_plan(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    shows_sql: bool = False,
    spark: SparkSession | None = None,
) -> Plan:
    """Return what the next apply does to the tables that globs name, or to all; changes nothing."""
    matches = match_tables(globs)
    has_details = shows_sql or bool(globs)
    applier = Applier(spark, config)
    pending = applier.plan()
    found: list[PlannedTable] = []
    for name, table in applier.planner.tables.items():
        if not matches(name):
            continue
        if table.step in STOPPED:
            found.append(stopped_table(table.facts, table.decision))
        elif table.step.writes and pending is not None:
            found.append(_table(applier, pending, name, has_sql=shows_sql))
    found = _with_rules_to_come(config, applier, found, matches)
    found = _with_partitions_to_come(config, applier, found, matches)
    found = _with_catalog(config, applier, found, matches)
    captured_offset = pending.end.lsn if pending is not None else _captured_lsn(applier)
    return Plan(config.pipeline, captured_offset, tuple(found), has_details, shows_sql)


def _with_rules_to_come(
    config: Config, applier: Applier, planned: Sequence[PlannedTable], matches: Callable[[TableName], bool]
) -> list[PlannedTable]:
    """Return the plans with the rules for columns that the configuration changes."""
    found = {table.name: table for table in planned}
    has_rules = any(rule.columns for rule in config.tables)
    has_rules = has_rules and applier.bronze.relations.exists()
    relations = applier.bronze.source_relations().values() if has_rules else ()
    for name, registered in applier.records.tables.read().items():
        if not matches(name) or config.rule_for(name) is None:
            continue
        if (sentence := rule_to_come(config, registered, relations)) is not None:
            plan = found.get(name, PlannedTable(name, INVALID, {}))
            if not any(step.holds for step in plan.steps):
                step = PlanStep(plan.after, sentence, "no data is written until then")
                found[name] = replace(plan, steps=(step, *plan.steps))
    return list(found.values())


def _with_partitions_to_come(
    config: Config, applier: Applier, planned: Sequence[PlannedTable], matches: Callable[[TableName], bool]
) -> list[PlannedTable]:
    """Return the plans with the tables whose partitions differ from those of their rules."""
    found = {table.name: table for table in planned}
    registered = applier.records.tables.read()
    look_at(map(applier.planner.path, registered))
    for name, each in registered.items():
        rule = config.rule_for(name)
        table = applier.lake.table_at(applier.planner.path(name))
        # On other storage each log takes a Spark job.
        if not matches(name) or rule is None or (table.local_path is None and not rule.partition_by):
            continue
        try:
            sentence = partitions_to_come(name, rule, table.snapshot(), each.columns)
        except LakeError:  # apply reports a log that cannot be read
            continue
        if sentence is not None:
            plan = found.get(name, PlannedTable(name, INVALID, {}))
            step = PlanStep(plan.after, sentence, "no data is written until then")
            found[name] = replace(plan, steps=(step, *plan.steps))
    return list(found.values())


def _with_catalog(
    config: Config, applier: Applier, planned: Sequence[PlannedTable], matches: Callable[[TableName], bool]
) -> list[PlannedTable]:
    """Return the plans with the names that tables get in the catalog of Spark."""
    if config.catalog.schema is None:
        return list(planned)
    recorded = CatalogEntries(applier.lake).read()
    manifest = applier.shown.manifests.last()
    shown = {entry.name for entry in manifest.entries if entry.version >= 0} if manifest else set()
    found = {table.name: table for table in planned}
    written = {name for name, table in applier.planner.tables.items() if table.step.writes}
    paths = {name: entry.path for name, entry in recorded.items()}
    paths |= {name: applier.planner.path(name) for name in shown | written}
    for name, target in sorted(targets(config, paths, recorded).items()):
        entry = recorded.get(name)
        if not matches(name) or target.is_done(entry, None):
            continue
        plan = found.get(name, PlannedTable(name, INVALID, {}))
        sentence = f"The table is registered in the catalog of Spark as {target.catalog_name}."
        if entry is not None and target.is_entry(entry) and entry.sentence is not None:
            sentence += f" The last attempt failed: {entry.sentence}"
        step = PlanStep(plan.after, sentence, "an entry in the metastore; no data is written")
        found[name] = replace(plan, steps=(*plan.steps, step))
    return list(found.values())


def _captured_lsn(applier: Applier) -> LSN:
    point = applier.bronze.captured_offset()
    return point.lsn if point else INVALID


def stopped_table(facts: TableFacts, decision: Decision) -> PlannedTable:
    """Return the plan of a table that waits, is held or fails: why, and no statement."""
    counts = dict(facts.counts or {})
    if facts.partial_copies:
        counts = _copied_keys(facts)
    if decision.step is Step.FAIL:
        return PlannedTable(facts.name, facts.offset, counts, failure=decision.sentence or "")
    step = PlanStep(facts.offset, decision.sentence or "", "nothing is applied until then", holds=True)
    return PlannedTable(facts.name, facts.offset, counts, (step,))


def _copied_keys(facts: TableFacts) -> dict[str, int]:
    return {"R": sum(copy.row_count for copy in facts.partial_copies)}


def _table(applier: Applier, pending: BatchPlan, name: TableName, *, has_sql: bool) -> PlannedTable:
    table = pending.tables[name]
    facts, counts = table.facts, dict(table.facts.counts or {})
    if table.step is not Step.START_FROM_COPY and facts.partial_copies:
        counts = _copied_keys(facts)
    match table.step:
        case Step.START_FROM_COPY:
            assert facts.copy is not None
            rows = facts.copy.row_count
            cost = f"writes {format_count(rows, 'row')}; readers see the previous rows until then"
            step = PlanStep(facts.copy.end_lsn, "The table starts from a copy of the source's rows.", cost)
            try:
                sql = _copy_sql(applier, pending, table) if has_sql else ()
            except Exception as error:  # the other tables are planned
                return PlannedTable(name, facts.copy.lsn, {"R": rows}, failure=report_error(error))
            return PlannedTable(name, facts.copy.lsn, {"R": rows}, (replace(step, sql=sql),))
        case Step.PARTIAL_RESYNC:
            steps = tuple(
                PlanStep(
                    p.end_lsn,
                    f"The copied rows of {format_count(len(p.key_ranges), 'key range')} replace silver's.",
                    format_count(p.row_count, "row"),
                )
                for p in facts.partial_copies
            )
            return PlannedTable(name, facts.offset, counts, steps)
    try:
        writer = applier.tables.writer(name, pending.history)
        surveys = [s.survey for s in table.surveys]
        registered, start = pending.registered.get(name), InputStart(facts.offset)
        planned = writer.plan(surveys, applier.planner.relations, registered, start, pending.end.lsn)
        rows = writer.table.row_count() if planned.evolution and planned.evolution.operations else 0
        changes = writer.bronze.count_of(name, pending.end.lsn) if planned.rebuild else 0
        choices = [writer.choose_writer(write, planned) for write in planned.writes]
    except Exception as error:  # the other tables are planned
        return PlannedTable(name, facts.offset, counts, failure=report_error(error))
    return PlannedTable(name, facts.offset, counts, _steps(planned, rows, changes, choices))


def _copy_sql(applier: Applier, pending: BatchPlan, table: TablePlan) -> tuple[str, ...]:
    """Return the SQL by which a new table starts from its copy; none for a table that is swapped in."""
    facts = table.facts
    assert facts.copy is not None
    writer = applier.tables.writer(facts.name, pending.history)
    planned = writer.plan_from_copy(facts.copy, applier.planner.relations, pending.end.lsn)
    if planned is None or planned.evolution is None or planned.rebuild:
        return ()
    operations = (statement for each in planned.evolution.operations for statement in each.sql)
    return (*operations, *planned.statements)


def _steps(planned: RangePlan, rows: int, changes: int, choices: Sequence[Choice]) -> tuple[PlanStep, ...]:
    """Return the steps of a range: how the columns change, the writes, and the stop if there is one."""
    operations = planned.evolution.operations if planned.evolution else ()
    steps = [
        PlanStep(
            each.lsn,
            _describe(each.operation),
            each.operation.cost(rows, changes),
            each.operation.loses,
            () if planned.rebuild else each.sql,  # a rebuild replaces the table instead
        )
        for each in operations
    ]
    steps += [
        PlanStep(write.commit.lsn, write.kind.value, f"one write {choice}", None, (write.sql,), is_write=True)
        for write, choice in zip(planned.writes, choices, strict=True)
    ]
    if planned.stop:
        steps.append(
            PlanStep(planned.end_lsn, planned.stop.sentence, "nothing is applied from there on", holds=True)
        )
    return tuple(steps)


def _describe(operation: SchemaOperation) -> str:
    match operation:
        case CreateTable():
            return f"The table is created: {operation.ddl}"
        case SetProperties():
            return _describe_layout(operation)
        case RenameColumn(sentence=None):
            return f"Column {operation.name} is renamed to {operation.to} temporarily."
        case NeedsRebuild():
            return f"{operation.sentence} The table is rebuilt from bronze."
    return operation.sentence or ""


def _describe_layout(operation: SetProperties) -> str:
    pairs = ", ".join(f"{name} = {_shortened(value)}" for name, value in operation.properties)
    sentences = [f"The table's properties are set: {pairs}"] if pairs else []
    if operation.comments:
        names = ", ".join(name for name, _ in operation.comments)
        sentences.append(f"Comments of columns are set: {names}")
    return ". ".join(sentences)


def _shortened(text: str) -> str:
    """Return a text as one line of at most `_MAX_CHARACTERS`."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARACTERS else line[:_MAX_CHARACTERS] + "…"
