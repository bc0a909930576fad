"""Plan the next apply for people: the pending changes of each table, and the cost of each step.

The decisions are those of `apply`; nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pipeline.apply.applier import Applier
from pipeline.apply.catalog_registrar import SilverPlace, targets
from pipeline.apply.catalogs import open_catalog
from pipeline.apply.planner import BatchPlan, TablePlan
from pipeline.bronze.log import Bronze
from pipeline.bronze.source_relations import Relations, versions_by_oid
from pipeline.bronze.table_input import InputStart, Survey, survey_at_rest, survey_of
from pipeline.config.config import Config
from pipeline.delta.store.looks import one_look
from pipeline.delta.table_log import look_at
from pipeline.errors import LakeError, report_error
from pipeline.metadata.catalog_entries import CatalogEntries
from pipeline.metadata.registry import RegisteredTable
from pipeline.operate.plan_report import Plan, PlannedTable, PlanStep
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.compare.comparable_columns import shown_relation
from pipeline.silver.decision import STOPPED, Decision, Step, TableFacts
from pipeline.silver.lake_facts import no_longer_followed, why_detached
from pipeline.silver.schema.protection_changes import rule_to_come
from pipeline.silver.schema.schema_operations import (
    CreateTable,
    NeedsRebuild,
    NeedsResync,
    RenameColumn,
    RuleNote,
    SchemaOperation,
    SetProperties,
)
from pipeline.silver.schema.table_partitions import partitions_to_come
from pipeline.silver.write.range_plan import RangePlan
from pipeline.silver.write.table import SilverTable
from pipeline.table_name import TableName, match_tables
from pipeline.units import format_count, format_size

_MAX_CHARACTERS = 100  # of a property's value or a comment
_UNWRITTEN = "no data is written until then"
_REBUILD, _RESYNC = NeedsRebuild(""), NeedsResync("")


@one_look()
def make_plan(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    shows_sql: bool = False,
) -> Plan:
    """Return what the next apply does to the tables that globs name, or to all; changes nothing."""
    matches = match_tables(globs)
    has_details = shows_sql or bool(globs)
    applier = Applier(None, config)
    pending = applier.plan()
    found: list[PlannedTable] = []
    for name, table in applier.planner.tables.items():
        if not matches(name):
            continue
        if table.step in STOPPED:
            stopped = stopped_table(table.facts, table.decision)
            if table.decision.row == "other mode":
                lsn = _captured_lsn(applier)
                cost = _cost_until(stopped.steps[0].cost, applier, name, lsn, _REBUILD)
                stopped = replace(stopped, steps=(replace(stopped.steps[0], cost=cost),))
            found.append(stopped)
        elif table.step.writes and pending is not None:
            found.append(_table(applier, pending, name, has_sql=shows_sql))
    found = _with_rules_to_come(config, applier, found, matches)
    found = _with_partitions_to_come(config, applier, found, matches)
    found = _with_resting_tables(config, applier, found, matches)
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
    lsn = _captured_lsn(applier)
    relations = applier.bronze.source_relations().values() if has_rules else ()
    for name, registered in applier.records.tables.read().items():
        if not matches(name) or config.rule_for(name) is None:
            continue
        if (sentence := rule_to_come(config, registered, relations)) is not None:
            plan = found.get(name, PlannedTable(name, lsn, {}))
            if not any(step.holds for step in plan.steps):
                cost = _cost_until(_UNWRITTEN, applier, name, lsn, _RESYNC)
                step = PlanStep(plan.after, sentence, cost)
                found[name] = replace(plan, steps=(step, *plan.steps))
    return list(found.values())


def _with_partitions_to_come(
    config: Config, applier: Applier, planned: Sequence[PlannedTable], matches: Callable[[TableName], bool]
) -> list[PlannedTable]:
    """Return the plans with the tables whose partitions differ from those of their rules."""
    found = {table.name: table for table in planned}
    registered, lsn = applier.records.tables.read(), _captured_lsn(applier)
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
            plan = found.get(name, PlannedTable(name, lsn, {}))
            cost = _cost_until(_UNWRITTEN, applier, name, lsn, _REBUILD)
            step = PlanStep(plan.after, sentence, cost)
            found[name] = replace(plan, steps=(step, *plan.steps))
    return list(found.values())


def _cost_until(
    cost: str, applier: Applier, name: TableName, lsn: LSN, remedy: NeedsRebuild | NeedsResync
) -> str:
    """Return what a table costs until its remedy, and the remedy: in changes of bronze, rows and bytes."""
    try:
        snapshot = applier.lake.table_at(applier.planner.path(name)).snapshot()
        changes = _stored_changes(applier.bronze, name, lsn) if remedy is _REBUILD else 0
    except LakeError:  # apply reports a log that cannot be read
        return cost
    size = format_size(sum(int(file["size"]) for file in snapshot.files.values()))
    word = "rebuild" if remedy is _REBUILD else "resync"
    return f"{cost}; the {word} {remedy.cost(snapshot.row_count or 0, changes)}, {size}"


def _stored_changes(bronze: Bronze, name: TableName, lsn: LSN) -> int:
    """Return how many changes of a table, and rows of its last copy, bronze has up to an LSN."""
    copy = bronze.copies.read().last(name)
    return bronze.count_of(name, lsn) + (copy.row_count if copy is not None else 0)


def _with_resting_tables(
    config: Config, applier: Applier, planned: Sequence[PlannedTable], matches: Callable[[TableName], bool]
) -> list[PlannedTable]:
    """Return the plans with the tables that have no changes, and whose rules were edited or removed."""
    manifest, end = applier.shown.manifests.last(), applier.bronze.captured_offset()
    if manifest is None or end is None:
        return list(planned)
    relations, history = applier.bronze.source_relations(), applier.bronze.copies.read()
    registered, versions = applier.records.tables.read(), versions_by_oid(relations.values())
    known = {table.name for table in planned}
    resting = [e.name for e in manifest.entries if e.name in registered and e.name not in known]
    found = [*planned]
    for name in filter(matches, resting):
        if (reason := why_detached(config, history, name, end)) is not None:
            rule = config.rule_for(name)
            keeps = (config.silver if rule is None else rule).detached_tables == "keep"
            cost = "its rows stay where they are" if keeps else "its rows are moved to the archive"
            step = PlanStep(end.lsn, no_longer_followed(reason), cost)
            found.append(PlannedTable(name, manifest.lsn, {}, (step,)))
        # On other storage each log takes a Spark job.
        elif applier.lake.table_at(applier.planner.path(name)).local_path is None:
            continue
        else:
            table = registered[name]
            if (version := shown_relation(table, versions.get(table.relation_id, ()))) is not None:
                make_writer = partial(applier.tables.writer, name, history)
                found += _at_rest(make_writer, table, relations, version.version, manifest.lsn)
    return found


def _at_rest(
    make_writer: Callable[[], SilverTable],
    table: RegisteredTable,
    relations: Relations,
    version: int,
    lsn: LSN,
) -> list[PlannedTable]:
    """Return what the next change of a table does to its columns and properties, no plan if nothing.

    `version` is the relation version that silver shows.
    """
    name, survey = table.name, survey_at_rest(lsn, version).survey
    try:
        writer = make_writer()
        planned = writer.batch.plan([survey], relations, table, InputStart(lsn), lsn)
        if planned.evolution is not None:
            operations = [o for o in planned.evolution.operations if not isinstance(o.operation, RuleNote)]
            planned = replace(planned, evolution=replace(planned.evolution, operations=operations))
        steps = _planned_steps(writer, replace(planned, writes=()), lsn)
    except Exception as error:  # the other tables are planned
        return [PlannedTable(name, lsn, {}, failure=report_error(error))]
    held = "nothing is applied from its next change on"
    costs = [held if step.holds else f"{step.cost}; with the table's next change" for step in steps]
    steps = tuple(replace(step, cost=cost) for step, cost in zip(steps, costs, strict=True))
    return [PlannedTable(name, lsn, {}, steps)] if steps else []


def _with_catalog(
    config: Config, applier: Applier, planned: Sequence[PlannedTable], matches: Callable[[TableName], bool]
) -> list[PlannedTable]:
    """Return the plans with the names that tables get in catalogs."""
    if config.catalog.schema is None:
        return list(planned)
    manifest = applier.shown.manifests.last()
    shown = {entry.name for entry in manifest.entries if entry.version >= 0} if manifest else set()
    found = {table.name: table for table in planned}
    written = {name for name, table in applier.planner.tables.items() if table.step.writes}
    for service in config.catalog.targets:
        label = open_catalog(service, config.pipeline, applier.lake.sessions).label
        recorded = CatalogEntries(applier.lake, service.recorded_type).read()
        places = {name: SilverPlace(entry.path) for name, entry in recorded.items()}
        places |= {name: SilverPlace(applier.planner.path(name)) for name in shown | written}
        for name, target in sorted(targets(config, places, recorded).items()):
            entry = recorded.get(name)
            if not matches(name) or target.is_done(entry, None):
                continue
            plan = found.get(name, PlannedTable(name, INVALID, {}))
            sentence = f"The table is registered in {label} as {target.catalog_name}."
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
    try:
        writer = applier.tables.writer(name, pending.history)
        registered, start = pending.registered.get(name), InputStart(facts.offset)
        parts = [([each.survey for each in table.surveys], start, pending.end.lsn)]
        if table.step is Step.PARTIAL_RESYNC:
            parts = _parts_with_copies(applier, facts, start)
        for surveys, start, end_lsn in parts:
            planned = writer.batch.plan(surveys, applier.planner.relations, registered, start, end_lsn)
            if planned.stop is not None or table.step is not Step.PARTIAL_RESYNC:
                return PlannedTable(name, facts.offset, counts, _planned_steps(writer, planned, end_lsn))
        steps = tuple(
            PlanStep(
                p.end_lsn,
                f"The copied rows of {format_count(len(p.key_ranges), 'key range')} replace silver's.",
                format_count(p.row_count, "row"),
            )
            for p in facts.partial_copies
        )
        return PlannedTable(name, facts.offset, counts, steps)
    except Exception as error:  # the other tables are planned
        return PlannedTable(name, facts.offset, counts, failure=report_error(error))


def _parts_with_copies(
    applier: Applier, facts: TableFacts, start: InputStart
) -> list[tuple[list[Survey], InputStart, LSN]]:
    """Return the changes before the first partial copy, and each copy, as a table's writer plans them."""
    first = facts.partial_copies[0].lsn
    before = applier.bronze.survey_table(facts.name, start, first) if start.offset < first else []
    copied = [([survey_of(copy)], InputStart(copy=copy), copy.lsn) for copy in facts.partial_copies]
    return [(before, start, first), *copied] if before else copied


def _planned_steps(writer: SilverTable, planned: RangePlan, end_lsn: LSN) -> tuple[PlanStep, ...]:
    rows = writer.table.row_count() if planned.evolution and planned.evolution.operations else 0
    changes = _stored_changes(writer.bronze, writer.name, end_lsn) if planned.rebuild else 0
    if ends := writer.batch.part_ends(planned):
        parts = f"{format_count(len(ends) + 1, 'part')}, each a write without Spark"
        return _steps(planned, rows, changes, [parts for _ in planned.writes])
    choices = [writer.batch.choose_writer(write, planned) for write in planned.writes]
    return _steps(planned, rows, changes, [f"one write {choice}" for choice in choices])


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


def _steps(planned: RangePlan, rows: int, changes: int, costs: Sequence[str]) -> tuple[PlanStep, ...]:
    """Return the steps of a range: how the columns change, the writes, and the stop if there is one.

    `costs` are those of the writes.
    """
    operations = planned.evolution.operations if planned.evolution else ()
    steps = [
        PlanStep(
            each.lsn,
            _describe(each.operation),
            each.cost(rows, changes),
            each.operation.loses,
            () if planned.rebuild else each.sql,  # a rebuild replaces the table instead
        )
        for each in operations
    ]
    steps += [
        PlanStep(write.commit.lsn, write.kind.value, cost, None, (write.sql,), is_write=True)
        for write, cost in zip(planned.writes, costs, strict=True)
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
