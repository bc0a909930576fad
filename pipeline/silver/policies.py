"""Policies that hold a table: guards, values that the policy `error` refuses, updates that identify no row.

Guards limit the deletes and truncates of one batch; a table with more is held until a person confirms. They
count the stream's messages between the table's offset and the batch's end. An update that changes a key is no
delete; a row that moves to another partition, or out of a row filter, is one. A table without rows has none
to lose, and copied rows are the source's, so neither is counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.bronze.table_input import Survey
from pipeline.config.tables import Guards, TableRule
from pipeline.engine import SPARK, Engine
from pipeline.protocol.lsn import LSN
from pipeline.silver.types import column_type
from pipeline.silver.write_plan import Identity, identity_of
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class Refusal:
    """The transaction of the first change that silver must not apply, and why."""

    commit_lsn: LSN
    sentence: str
    kind: str  # of the event


def refused_value(
    surveys: Sequence[Survey],
    relations: Mapping[int, SourceRelation],
    rule: TableRule,
    engine: Engine = SPARK,
) -> str | None:
    """Return SQL for the name of the column whose value a change's policy refuses, None if there is none."""
    cases = []
    for survey, index, column in _refusing_columns(surveys, relations, rule):
        kind = column_type(column, rule)
        text = engine.get("new", index)
        if misfit := kind.misfit(text, f"({kind.value(text, engine)})", engine):
            is_refused = f"relation_version = {survey.version} AND {misfit}"
            cases.append(f"CASE WHEN {is_refused} THEN {engine.literal(column.name)} END")
    return f"coalesce({', '.join(cases)})" if cases else None


def refuses_natively(
    surveys: Sequence[Survey], relations: Mapping[int, SourceRelation], rule: TableRule
) -> bool:
    """Return whether DuckDB can tell which values are refused."""
    found = _refusing_columns(surveys, relations, rule)
    return all(column_type(column, rule).is_native for _, _, column in found)


def _refusing_columns(
    surveys: Sequence[Survey], relations: Mapping[int, SourceRelation], rule: TableRule
) -> list[tuple[Survey, int, SourceColumn]]:
    return [
        (survey, index, column)
        for survey in surveys
        for index, column in enumerate(relations[survey.version].columns)
        if rule.misfit_of(column.name) == "error"
    ]


def update_without_row(surveys: Sequence[Survey], relations: Mapping[int, SourceRelation]) -> str | None:
    """Return SQL that is true for updates without an old row under REPLICA IDENTITY FULL, None if none is.

    A partition logs by its own replica identity, while the Relation message has the root's.
    """
    versions = [
        str(survey.version)
        for survey in surveys
        if survey.without_old_row and identity_of(relations[survey.version]) is Identity.WHOLE_ROW
    ]
    if not versions:
        return None
    return f"op = 'U' AND coalesce(old_kind, '') <> 'O' AND relation_version IN ({', '.join(versions)})"


def refusal_of(name: TableName, commit_lsn: int, column: str | None) -> Refusal:
    """Return the refusal of a column's value or, without a column, of an update that identifies no row."""
    lsn = LSN(commit_lsn)
    if column is None:
        return Refusal(
            lsn,
            f"Table {name} is held: an update in the transaction at {lsn} does not identify its row, "
            "because a partition does not have the table's REPLICA IDENTITY FULL. Run ALTER TABLE … "
            "REPLICA IDENTITY FULL for each partition (that of the partitioned table does not apply to "
            f"them), then {name.command('resync')}.",
            "held",
        )
    return Refusal(
        lsn,
        f"Table {name} is held: the transaction at {lsn} has a value of column {column} that its silver "
        "type cannot hold, and the column's policy is error. Give the column another policy or type in "
        "`tables`, then run pgdelta apply. Until then bronze keeps the changes.",
        "refused",
    )


def find_excess(name: TableName, counts: Mapping[str, int], guards: Guards) -> str | None:
    """Return why the guards hold a table with these changes by operation (`I U D T`), None if they do not."""
    limits = (("D", "deletes", guards.deletes), ("T", "truncates", guards.truncates))
    excess = [
        f"{counts[op]} {what} (guards.{what} is {limit})"
        for op, what, limit in limits
        if limit is not None and counts.get(op, 0) > limit
    ]
    if not excess:
        return None
    return (
        f"Table {name} is held by its guards: {' and '.join(excess)} are pending. If they are intended, run "
        f"{confirm_command(name)}. Until then bronze keeps the changes."
    )


def confirm_command(name: TableName) -> str:
    """Return the command that applies the pending changes of a table despite its guards."""
    return name.command("apply --confirm")
