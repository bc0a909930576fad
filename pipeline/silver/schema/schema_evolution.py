"""Plan the operations that give silver the columns of a relation version, or hold the table. Pure.

Renames are planned first (`column_mapping`). If silver cannot follow a change exactly, for example to a type
that does not hold all values, the table is held, rebuilt or copied again, as configured. If the stream does
not carry a schema change completely, silver may differ from the source; `schema_note` returns the event to
record, of kind `resync` or `diverged`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.config.tables import TableRule
from pipeline.delta.features import needs_column_mapping
from pipeline.delta.partitions import may_be_partition_column
from pipeline.partition_folders import name_fits
from pipeline.silver.schema.column_mapping import SUFFIX, SilverColumns, sidecars
from pipeline.silver.schema.protection_changes import changed_rule, retyped_columns, rule_notes
from pipeline.silver.schema.schema_notes import (
    default_is_gone,
    default_may_vary,
    may_be_renamed,
    type_changed,
    was_unpublished,
)
from pipeline.silver.schema.schema_operations import (
    CHANGE_FEED,
    COMMENT,
    AddColumn,
    CreateTable,
    DropColumn,
    Hold,
    NeedsRebuild,
    NeedsResync,
    RenameColumn,
    RuleNote,
    SchemaNote,
    SchemaOperation,
    SetProperties,
    WidenColumn,
)
from pipeline.silver.types.text_parsers import STRING, SilverType
from pipeline.silver.types.types import (
    column_type,
    holds,
    keeps_keys_apart,
    keeps_texts,
    keeps_values,
    reader_of,
    silver_type,
    wide_enough,
)
from pipeline.table_name import TableName


def schema_note(recorded: SilverColumns, column: SourceColumn, present: str | None) -> SchemaNote | None:
    """Return the note about a column that silver has already, with a type, None if nothing can differ."""
    before = recorded.types.get(column.name)
    if before is None:
        return was_unpublished(column.name) if recorded.types and column.name in recorded.numbers else None
    keeps = keeps_texts if present == STRING.ddl else keeps_values
    if not column.is_type_known or keeps(before, column.type):
        return None
    return type_changed(column.name)


def refused_default(relation: SourceRelation, name: str) -> Hold:
    """Return the Hold for a column whose default the silver type cannot hold and its policy refuses."""
    return _hold(
        relation,
        f"column {name} was added with a default that its silver type cannot hold, and its policy is error",
        "Give the column another policy or type in `tables`, then run pgdelta apply.",
        kind="refused",
    )


def plan_evolution(
    recorded: SilverColumns | None,
    relation: SourceRelation,
    silver: Mapping[str, str] | None,
    rule: TableRule,
    *,
    is_certain: bool = True,
    later: Sequence[SourceRelation] = (),
) -> list[SchemaOperation]:
    """Plan what lets silver (column → DDL; None if there is no table) hold the rows of `relation`.

    The columns of `relation` and `recorded` have silver's names. `is_certain` is whether the columns of
    this version and of the one before are certain. A column that is in silver but not in
    `recorded` was added by a run that ended before it could register it. The table is created with
    partition columns that only `later` versions have.
    """
    texts = sidecars(relation, rule)
    # A table that was created again under its name has new attribute numbers.
    before = recorded if recorded is not None and recorded.relation_id == relation.oid else None
    names = {column.name for column in relation.columns}
    # columns of the last version, with unknown numbers, that this one does not have under their names
    has_lost = recorded is not None and any(
        recorded.numbers[name] is None for name in recorded.types if name not in names
    )
    may_rename = has_lost or not is_certain
    change = _Change(relation, before, silver or {}, rule, texts, later, may_rename)
    if stop := _first(_NEVER, change):
        return [stop]
    if silver is None:
        return _creation(change)
    if before is not None and (stop := _first(_UNLESS_NEW, change)):
        return [stop]
    known = before.protected if before is not None else ()
    operations: list[SchemaOperation] = [*rule_notes(known, relation.name, relation.protected)]
    if before is not None:
        operations += _drops(change, before)
        retyped = retyped_columns(before.protected, relation)
        operations += [type_changed(str(column.name)) for column, _ in retyped]
    for column in relation.columns:
        widening = _widening(change, column)
        if isinstance(widening, (Hold, NeedsRebuild, NeedsResync)):
            return [widening]
        if widening is not None:
            operations.append(widening)
        if before is not None and (note := schema_note(before, column, silver.get(column.name))):
            operations.append(note)
        operations += _additions(change, column)
    operations += [AddColumn(name, STRING) for name in texts if name not in silver]
    if rule.mode == "append":
        # Rows are changes: they stay as they are, so only what may be in the wrong column is noted.
        operations = [e for e in operations if not isinstance(e, SchemaNote) or e.kind == "diverged"]
        return [replace(each, backfill=None) if isinstance(each, AddColumn) else each for each in operations]
    return operations


@dataclass(frozen=True, slots=True)
class _Change:
    """A relation version, and the table that is to hold its rows; `before` is what its rows are of.

    `texts` are the columns for texts that do not fit. With `may_rename` a new column may be a renamed one.
    """

    relation: SourceRelation
    before: SilverColumns | None
    silver: Mapping[str, str]
    rule: TableRule
    texts: Mapping[str, str]
    later: Sequence[SourceRelation]
    may_rename: bool


_Stop: TypeAlias = Hold | NeedsRebuild | NeedsResync
_Condition: TypeAlias = Callable[[_Change], _Stop | None]


def _first(conditions: Sequence[_Condition], change: _Change) -> _Stop | None:
    """Return what the first condition that holds says."""
    for condition in conditions:
        if (stop := condition(change)) is not None:
            return stop
    return None


def _has_other_rule(change: _Change) -> Hold | None:
    relation, before = change.relation, change.before
    assert before is not None
    fault = changed_rule(before.protected, before.numbers, relation)
    action = f"Run {relation.name.command('resync')}, which copies all rows under the new rules."
    return _hold(relation, fault, action, kind="resync") if fault else None


def _has_retyped_key(change: _Change) -> Hold | None:
    assert change.before is not None
    retyped = retyped_columns(change.before.protected, change.relation)
    hashed = [str(column.name) for column, is_key in retyped if is_key]
    return _has_other_hashes(change.relation, hashed) if hashed and change.rule.mode != "append" else None


def _has_other_key(change: _Change) -> Hold | None:
    assert change.before is not None
    is_other = _is_other_key(change.before, change.relation, change.rule)
    return _has_another_key(change.relation, change.before.key) if is_other else None


def _takes_sidecar(change: _Change) -> Hold | None:
    """Return a Hold if a column has the name of one that earlier versions need for texts."""
    assert change.before is not None
    for name in (column.name for column in change.relation.columns):
        if name.endswith(SUFFIX) and name in change.silver and name not in change.before.numbers:
            reason = (
                f"silver has texts of {name.removesuffix(SUFFIX)} in {name}, which the source has now, too"
            )
            return _hold(change.relation, reason, "Run pgdelta apply, which gives that column another name.")
    return None


def _taken_sidecar(change: _Change) -> Hold | None:
    """Return a Hold if a column of another writer has the name of one for texts, and cannot hold them."""
    names = {name.lower(): name for name in change.silver}
    known = change.before.numbers if change.before is not None else ()
    for name in change.texts:
        theirs = names.get(name.lower(), name)
        if theirs not in known and (theirs != name or change.silver.get(name, STRING.ddl) != STRING.ddl):
            return column_of_others(change.relation, theirs, name)
    return None


# The first one that holds stops the table, whether silver has it or not …
_NEVER: tuple[_Condition, ...] = (
    lambda c: _lacks_key(c.relation, c.rule) if c.rule.needs_key and not c.relation.key else None,
    lambda c: _collision(c),
    _taken_sidecar,
    lambda c: _merged_keys([c.relation, *c.later][-1], c.rule),
    lambda c: _needs_mapping(c.relation) if c.rule.readers == "widest" else None,
)
# … and if silver has rows of this relation.
_UNLESS_NEW: tuple[_Condition, ...] = (_has_other_rule, _has_retyped_key, _has_other_key, _takes_sidecar)


def _creation(change: _Change) -> list[SchemaOperation]:
    """Return what creates the table."""
    relation, rule = change.relation, change.rule
    found = [*relation.columns, *_partition_columns_of(change.later, relation, rule)]
    columns = [(c.name, column_type(c, rule)) for c in found]
    if hold := _refused_partitions(relation, columns, rule):
        return [hold]
    notes = rule_notes((), relation.name, relation.protected)
    columns += [(name, STRING) for name in change.texts]
    return [CreateTable(tuple(columns), partition_by=rule.partition_by), *notes]


def _drops(change: _Change, before: SilverColumns) -> list[SchemaOperation]:
    """Return what removes the columns that the source dropped, if the rule says so."""
    relation, rule, silver = change.relation, change.rule, change.silver
    if not relation.is_in_catalog or rule.dropped_columns != "drop":
        return []
    dropped = before.numbers.keys() - {column.name for column in relation.columns}
    kept = sorted(dropped.intersection(rule.partition_by))
    notes = [_keeps_partition_column(name) for name in kept if name in before.types]
    gone = [name for name in before.numbers if name in dropped.difference(kept)]
    texts = [name + SUFFIX for name in gone if name + SUFFIX not in before.numbers]
    return [*notes, *(DropColumn(name) for name in (*gone, *texts) if name in silver)]


def _widening(change: _Change, column: SourceColumn) -> WidenColumn | _Stop | None:
    """Return what lets a column of silver hold the source's values, None if it does."""
    relation, rule, present = change.relation, change.rule, change.silver.get(column.name)
    target = column_type(column, rule, present)
    if present is None or holds(present, target.ddl):
        return None
    wide = target if holds(target.ddl, present) else wide_enough(present, target.ddl)
    if column.name in rule.partition_by and wide and not may_be_partition_column(wide.ddl):
        wide = None
    if wide is not None and column.name not in rule.types:
        return WidenColumn(column.name, wide, present)
    fault = f"{column.name} changed from {present} to {target.ddl}"
    if rule.type_changes == "rebuild":
        return NeedsRebuild(f"Column {fault}.")
    if rule.type_changes == "resync":
        return _await_copy(relation, fault)
    if change.before is not None and column.name not in change.before.numbers:
        return column_of_others(relation, column.name, column.name)
    action = f"Set type_changes to rebuild or resync, or run {relation.name.command('rebuild')}."
    return _hold(relation, f"column {fault}", action)


def column_of_others(relation: SourceRelation, theirs: str, name: str) -> Hold:
    """Return the Hold for a column of another writer whose name a column of the source needs."""
    return _hold(
        relation,
        f"silver has a column {theirs} that another writer added, and needs that name for column {name}",
        f"Rename or drop it in silver, or run {relation.name.command('resync')}, which drops it.",
    )


def _additions(change: _Change, column: SourceColumn) -> list[SchemaOperation]:
    """Return what adds a column that silver lacks, and what is to be said of older rows."""
    before, rule, present = change.before, change.rule, change.silver.get(column.name)
    target = column_type(column, rule, present)
    if before is None:
        return [AddColumn(column.name, target)] if present is None else []
    if column.name in before.numbers:
        return []
    number = column.attribute_number
    reader = reader_of(column, target)  # of its default
    if rule.misfit_of(column.name) == "clamp" and column.name not in change.relation.key:
        reader = reader.clamped
    operations: list[SchemaOperation] = [AddColumn(column.name, reader, column.missing_value, number)]
    if number is not None and number < max(n or 0 for n in before.numbers.values()):
        operations.append(was_unpublished(column.name))
    elif column.missing_value is None and column.has_default:
        operations.append(default_may_vary(column.name))
    elif column.missing_value is None and column.is_not_null:
        operations.append(default_is_gone(column.name))
    if change.may_rename:
        operations.append(may_be_renamed(column.name))
    return operations


def _partition_columns_of(
    versions: Sequence[SourceRelation], relation: SourceRelation, rule: TableRule
) -> list[SourceColumn]:
    """Return the partition columns that a version lacks, as the first of other versions has them."""
    names = {column.name for column in relation.columns}
    found: dict[str, SourceColumn] = {}
    for column in (column for version in versions for column in version.columns):
        if column.name in rule.partition_by and column.name not in names:
            found.setdefault(column.name, column)
    return [*found.values()]


def _refused_partitions(
    relation: SourceRelation, columns: Sequence[tuple[str, SilverType]], rule: TableRule
) -> Hold | None:
    """Return a Hold if a new table cannot have the partition columns of its rule."""
    types = {name: kind.ddl for name, kind in columns}
    for name in rule.partition_by:
        fault = None
        if name not in types:
            fault = "which the table does not have"
        elif not may_be_partition_column(types[name]):
            fault = f"whose type {types[name]} has values that cannot be those of partitions"
        elif not name_fits(name):
            fault = "whose name is too long for folders"
        elif len(types) == len(rule.partition_by):
            fault = "and the table has no other column"
        if fault is not None:
            return _hold(
                relation,
                f"partition_by in its rule names column {name}, {fault}",
                "Correct partition_by, then run pgdelta apply.",
            )
    return None


def _keeps_partition_column(name: str) -> RuleNote:
    return RuleNote(
        f"Column {name} was dropped at the source. Silver keeps it, because the table is partitioned by it."
    )


def continues(before: SilverColumns, relation: SourceRelation, rule: TableRule) -> bool:
    """Return whether rows that silver keeps from before a version stay as they are after it."""
    if rule.needs_key and not before.key:
        return False
    if rule.mode != "append" and any(is_key for _, is_key in retyped_columns(before.protected, relation)):
        return False
    has_same_rules = changed_rule(before.protected, before.numbers, relation) is None
    return has_same_rules and not _is_other_key(before, relation, rule)


def _is_other_key(before: SilverColumns, relation: SourceRelation, rule: TableRule) -> bool:
    """Return whether several rows that are gone may have one new key."""
    return rule.keeps_rows_by_key and bool(relation.key) and not before.key <= {*relation.key}


def plan_properties(
    rule: TableRule,
    configuration: Mapping[str, str],
    comment: str | None,
    source_comment: str | None = None,
    column_comments: Mapping[str, str] | None = None,
) -> SetProperties | None:
    """Plan what gives the table the properties of its rule, and comments; None if it has them.

    `source_comment` is the comment on the source table, which that of the rule precedes; `column_comments`
    are those that columns do not have yet.
    """
    wanted = dict(rule.properties)
    if rule.change_feed is not None and (rule.change_feed or CHANGE_FEED in configuration):
        wanted[CHANGE_FEED] = str(rule.change_feed).lower()
    changed = {name: value for name, value in wanted.items() if configuration.get(name) != value}
    wanted_comment = source_comment if rule.comment is None else rule.comment
    if wanted_comment is not None and wanted_comment != (comment or ""):
        changed[COMMENT] = wanted_comment
    comments = tuple(sorted((column_comments or {}).items()))
    return SetProperties(tuple(sorted(changed.items())), comments) if changed or comments else None


def columns_after(silver: Mapping[str, str] | None, operations: Sequence[SchemaOperation]) -> dict[str, str]:
    """Return silver's columns (name → DDL) after the operations."""
    columns = dict(silver or {})
    for operation in operations:
        match operation:
            case CreateTable():
                columns = {name: kind.ddl for name, kind in operation.columns}
            case RenameColumn():
                columns[operation.to] = columns.pop(operation.name)
            case AddColumn() | WidenColumn():
                columns[operation.name] = operation.type.ddl
            case DropColumn():
                del columns[operation.name]
    return columns


def rule_for_rebuild(relations: Sequence[SourceRelation], rule: TableRule) -> TableRule:
    """Return the rule that reads aligned versions, in order, into the types of their last ones."""
    types = dict(rule.types)
    for column in (column for relation in relations for column in relation.columns):
        override = rule.types.get(column.name)
        types[column.name] = silver_type(column, override, types.get(column.name)).ddl
    return replace(rule, types=types, type_changes="hold")


def _collision(change: _Change) -> Hold | None:
    """Return a Hold if two columns would have one name; Delta ignores case in names."""
    relation, silver, before = change.relation, change.silver, change.before
    for name, source in change.texts.items():
        if any(column.name.lower() == name.lower() for column in relation.columns):
            reason = f"silver needs the name of column {name} for the texts of {source} that do not fit"
            return _hold(relation, reason, "Rename one of the two at the source.")
    names = {name.lower(): name for name in silver}
    for column in relation.columns:
        other = names.setdefault(column.name.lower(), column.name)
        if other != column.name:
            if before is not None and other in silver and other not in before.numbers:
                return column_of_others(relation, other, column.name)
            reason = f"columns {other} and {column.name} differ only in case, which Delta cannot hold"
            return _hold(relation, reason, "Rename one of the two at the source.")
    return None


def _merged_keys(relation: SourceRelation, rule: TableRule) -> Hold | None:
    """Return a Hold if the rule gives a column of the key a type in which different keys may be equal."""
    for column in relation.columns:
        kind = rule.types.get(column.name)
        if column.name not in relation.key or kind is None or rule.mode == "append":
            continue
        ddl = column_type(column, rule).ddl
        if not keeps_keys_apart(column, ddl):
            reason = f"its rule has {ddl} for column {column.name} of the key, in which different keys may be"
            return _hold(relation, f"{reason} equal", "Remove the column from types, then run pgdelta apply.")
    return None


def _needs_mapping(relation: SourceRelation) -> Hold | None:
    """Return a Hold if a column has a name for which readers need column mapping."""
    for column in relation.columns:
        if needs_column_mapping([column.name]):
            reason = f"its rule has readers: widest, and column {column.name} has a name for column mapping"
            action = "Rename the column at the source, or write readers: spark, then run pgdelta apply."
            return _hold(relation, reason, action)
    return None


def _lacks_key(relation: SourceRelation, rule: TableRule) -> Hold:
    identity = "FULL" if relation.replica_identity == "f" else "without a key"
    return _hold(
        relation,
        f"mode {rule.mode} finds rows by a key, and its replica identity is {identity}",
        "Give it a primary key and REPLICA IDENTITY DEFAULT and run "
        f"{relation.name.command('resync')}, or set mode to mirror or append in its rule.",
    )


def _has_another_key(relation: SourceRelation, before: frozenset[str]) -> Hold:
    names = ", ".join(sorted(before))
    return _hold(
        relation,
        f"its key was ({names}) and is ({', '.join(relation.key)}), and silver keeps rows that the source"
        " deleted: several of them may have the same new key",
        f"Run {relation.name.command('resync')} and, once the copy is complete, "
        f"{relation.name.command('rebuild')} to begin with it.",
    )


def _has_other_hashes(relation: SourceRelation, names: Sequence[str]) -> Hold:
    return _hold(
        relation,
        f"the type of {', '.join(names)} changed, which may have given the same values other texts, and so"
        " other hashes or masked values, which identify rows",
        f"Run {relation.name.command('resync')}, which copies all rows.",
        kind="resync",
    )


def keeps_former_rows(name: TableName, rule: TableRule) -> Hold:
    """Return the Hold of a table that was created again while silver has rows that only it still has."""
    kept = f"mode is {rule.mode}" if rule.mode != "mirror" else "rule ignores deletes or truncates"
    return Hold(
        f"Table {name} is held: it was created again, or its name is another table's now, and its {kept}, so"
        f" silver has rows of the former table. Run {name.command('rebuild')} to begin with the new table."
        " Until then bronze keeps the changes."
    )


def _await_copy(relation: SourceRelation, change: str) -> NeedsResync:
    return NeedsResync(
        f"Table {relation.name} waits for a copy: column {change}. The next ingest copies it. Until then "
        "silver keeps the table as it was before this change."
    )


def _hold(relation: SourceRelation, reason: str, action: str, kind: str = "held") -> Hold:
    return Hold(
        f"Table {relation.name} is held: {reason}. {action} Until then silver keeps the table as it was "
        "before this change, and bronze keeps the changes that follow.",
        kind,
    )
