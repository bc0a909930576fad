"""The partition columns of a silver table: those that the table has, else those of its rule. Pure.

A table keeps its partition columns until it is rebuilt or copied again, whatever its rule says meanwhile. So
what its columns can hold follows from the table. `SchemaWriter` and `BatchWriter` get a rule with the
columns of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pipeline.bronze.source_relations import SourceRelation
from pipeline.config.tables import TableRule
from pipeline.delta.table_log import Snapshot
from pipeline.metadata.registry import RegisteredColumn, RegisteredTable
from pipeline.silver.schema.schema_operations import RenameColumn
from pipeline.silver.types.text_parsers import SilverType
from pipeline.silver.types.types import of_partition, stored
from pipeline.table_name import TableName


def rule_of_table(rule: TableRule, snapshot: Snapshot) -> TableRule:
    """Return the rule with the partition columns that a table has; without a table with its own."""
    return replace(rule, partition_by=snapshot.partition_columns) if snapshot.exists else rule


def with_renamed_partitions(rule: TableRule, renames: Sequence[RenameColumn]) -> TableRule:
    """Return the rule with its partition columns under the names that they have after renames."""
    names = list(rule.partition_by)
    for rename in renames:
        names = [rename.to if name == rename.name else name for name in names]
    return replace(rule, partition_by=tuple(names))


def rule_with_names(
    rule: TableRule,
    snapshot: Snapshot,
    registered: RegisteredTable | None,
    relations: Iterable[SourceRelation],
) -> TableRule:
    """Return the rule of a table with its partition columns, also under their names in relation versions."""
    rule = rule_of_table(rule, snapshot)
    if registered is None or not rule.partition_by:
        return rule
    numbers = {c.attribute_number for c in registered.columns if c.silver_name in rule.partition_by} - {None}
    versions = (each for each in relations if each.oid == registered.relation_id)
    names = [c.name for version in versions for c in version.columns if c.attribute_number in numbers]
    return replace(rule, partition_by=tuple(dict.fromkeys((*rule.partition_by, *names))))


def columns_to_fold(columns: Mapping[str, str], rule: TableRule) -> dict[str, SilverType]:
    """Return the types of silver's columns (name → DDL), with the partition columns of a rule."""
    types = {name: stored(ddl) for name, ddl in columns.items()}
    return types | {name: of_partition(types[name]) for name in rule.partition_by if name in types}


def partitions_to_come(
    name: TableName, rule: TableRule, snapshot: Snapshot, columns: Iterable[RegisteredColumn] = ()
) -> str | None:
    """Return that a rebuild divides a table otherwise, as a sentence; None if it does not."""
    names = {column.name: column.silver_name for column in columns if column.type_oid is not None}
    present, wanted = snapshot.partition_columns, tuple(names.get(each, each) for each in rule.partition_by)
    if not snapshot.exists or rule.is_shared or present == wanted:
        return None
    before = f"by {', '.join(present)}" if present else "into no partitions"
    after = f"by {', '.join(wanted)}" if wanted else "without partitions"
    return (
        f"The table is divided {before}, and its rule has it {after}. It stays as it is, and follows the "
        f"source as before. Run {name.command('rebuild')} to divide it as its rule says."
    )
