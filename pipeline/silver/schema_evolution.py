"""From the shape silver has to the shape a relation version says: a list of operations, or a refusal.

Renames come first (`renames`). What is planned here changes nothing; the operations say what they do as SQL
and as a sentence. What cannot be followed exactly yet (a type that its new one does not hold) holds the table
with a sentence instead of a guess.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.bronze.relations import SourceRelation
from pipeline.config.tables import TableRule
from pipeline.silver.column_mapping import SilverColumns
from pipeline.silver.schema_notes import (
    default_is_gone,
    default_may_vary,
    may_be_renamed,
    schema_note,
    was_unpublished,
)
from pipeline.silver.schema_operations import (
    AddColumn,
    CreateTable,
    DropColumn,
    Hold,
    NeedsRebuild,
    Operation,
    RenameColumn,
    WidenColumn,
)
from pipeline.silver.sidecars import SUFFIX, sidecars
from pipeline.silver.text_parsers import STRING
from pipeline.silver.types import holds, silver_type, wide_enough


def plan_evolution(
    known: SilverColumns | None,
    relation: SourceRelation,
    silver: Mapping[str, str] | None,
    rule: TableRule,
    *,
    is_certain: bool = True,
) -> list[Operation]:
    """Plan what makes silver (column → DDL; None where there is no table) hold `relation`'s rows.

    `is_certain` says whether it is known which columns this version and the one before it have.

    The relation's columns and `known` are named as silver names them. A column that is in silver but not in
    `known` was added by a run that ended before it could record it.
    """
    beside = sidecars(relation, rule)
    if held := _collision(relation, silver or {}, beside):
        return [held]
    if silver is None:
        columns = [(c.name, silver_type(c, rule.types.get(c.name))) for c in relation.columns]
        return [CreateTable((*columns, *((name, STRING) for name in beside)))]
    # A table created again under its name numbers its columns anew.
    is_same_table = known is not None and known.relation_id == relation.oid
    operations: list[Operation] = []
    if known is not None and is_same_table and relation.is_in_catalog and rule.dropped_columns == "drop":
        gone = known.numbers.keys() - {column.name for column in relation.columns}
        operations += [DropColumn(name) for name in known.numbers if name in gone and name in silver]
        operations += [
            DropColumn(name + SUFFIX) for name in known.numbers if name in gone and name + SUFFIX in silver
        ]
    names = {column.name for column in relation.columns}
    # columns of the last version that are not here under their names, and whose numbers nobody knew
    lost = known is not None and any(known.numbers[n] is None for n in known.types if n not in names)
    for column in relation.columns:
        wanted = silver_type(column, rule.types.get(column.name), silver.get(column.name))
        present = silver.get(column.name)
        if present is not None and not holds(present, wanted.ddl):
            wide = wanted if holds(wanted.ddl, present) else wide_enough(present, wanted.ddl)
            if wide is None or column.name in rule.types:
                sentence = f"column {column.name} changed from {present} to {wanted.ddl}"
                if rule.type_changes == "rewrite":
                    return [NeedsRebuild(sentence)]
                rewrite = relation.name.command("retry --rewrite")
                way_out = f": set type_changes to rewrite, or run {rewrite}"
                return [_held(relation, sentence, way_out)]
            operations.append(WidenColumn(column.name, wide, present))
        if known is not None and is_same_table and (note := schema_note(known, column)):
            operations.append(note)
        if known is None or not is_same_table:
            if present is None:
                operations.append(AddColumn(column.name, wanted))
        elif column.name not in known.numbers:
            number = column.attribute_number
            operations.append(AddColumn(column.name, wanted, column.missing_value, number))
            if number is not None and number < max(n or 0 for n in known.numbers.values()):
                operations.append(was_unpublished(column.name))
            elif column.missing_value is None and (column.has_default or column.is_not_null):
                operations.append(
                    default_may_vary(column.name) if column.has_default else default_is_gone(column.name)
                )
            if not is_certain or lost:
                operations.append(may_be_renamed(column.name))
    operations += [AddColumn(name, STRING) for name in beside if name not in silver]
    return operations


def columns_after(silver: Mapping[str, str] | None, operations: Sequence[Operation]) -> dict[str, str]:
    """Return silver's columns (name → DDL) once the operations are done."""
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
    """Return the rule that reads versions, in order and named alike, into the type each column had last."""
    types = dict(rule.types)
    for column in (column for relation in relations for column in relation.columns):
        override = rule.types.get(column.name)
        types[column.name] = silver_type(column, override, types.get(column.name)).ddl
    return replace(rule, types=types, type_changes="hold")


def _collision(relation: SourceRelation, silver: Mapping[str, str], beside: Mapping[str, str]) -> Hold | None:
    """Delta takes names for equal that differ only in case."""
    for name, of in beside.items():
        if any(column.name.lower() == name.lower() for column in relation.columns):
            return _held(
                relation,
                f"column {name} stands where silver keeps the texts of {of} that do not fit",
                ": rename one of the two at the source",
            )
    seen = {name.lower(): name for name in silver}
    for column in relation.columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name:
            sentence = f"columns {other} and {column.name} differ only in case, which Delta cannot hold"
            return _held(relation, sentence)
    return None


def _held(relation: SourceRelation, what: str, way_out: str = "") -> Hold:
    return Hold(
        f"{relation.schema_name}.{relation.table_name} is held: {what}; "
        f"bronze keeps its changes, and silver shows the table as of before that{way_out}"
    )
