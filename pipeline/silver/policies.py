"""Limits on what one pass of apply may take from a table: more than that holds it until somebody confirms.

Counted are the stream's own messages between the table's position and the point of the pass. A held table
keeps its position, so what waits for it only grows. An update that changes a key is no delete; a row that
moves to another partition, or out of a row filter, comes as one. What begins a table shows no row yet that
could be lost, and rows that were copied are those of the source: neither is counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.bronze.relations import SourceRelation
from pipeline.bronze.survey import Survey
from pipeline.config.tables import Guards, TableRule
from pipeline.delta.sql import literal
from pipeline.protocol.lsn import LSN
from pipeline.silver.types import silver_type
from pipeline.silver.write_plan import Identity, identity_of
from pipeline.table_name import TableName


# The first change that silver must not follow: a value that the policy `error` refuses, or a blind update.
@dataclass(frozen=True, slots=True)
class Refusal:
    """The place of the change that is refused, and why, for people."""

    commit_lsn: LSN
    sentence: str
    kind: str  # of the event that says why


def refused_value(
    surveys: Sequence[Survey], relations: Mapping[int, SourceRelation], rule: TableRule
) -> str | None:
    """Return SQL for the name of the column whose value is refused in a change; None where none can be."""
    cases = []
    for survey in surveys:
        for position, column in enumerate(relations[survey.version].columns):
            if rule.misfit_of(column.name) != "error":
                continue
            kind = silver_type(column, rule.types.get(column.name))
            text = f"get(new, {position})"
            if misfit := kind.misfit(text, f"({kind.value(text)})"):
                is_refused = f"relation_version = {survey.version} AND {misfit}"
                cases.append(f"CASE WHEN {is_refused} THEN {literal(column.name)} END")
    return f"coalesce({', '.join(cases)})" if cases else None


def update_without_row(surveys: Sequence[Survey], relations: Mapping[int, SourceRelation]) -> str | None:
    """Return SQL that is true for an update which names no row under REPLICA IDENTITY FULL; None without any.

    What a partition logs follows its own identity, what the message says of it that of the root.
    """
    versions = [
        str(survey.version)
        for survey in surveys
        if survey.without_old_row and identity_of(relations[survey.version]) is Identity.WHOLE_ROW
    ]
    if not versions:
        return None
    return f"op = 'U' AND NOT old_kind <=> 'O' AND relation_version IN ({', '.join(versions)})"


def refusal_of(name: TableName, commit_lsn: int, column: str | None) -> Refusal:
    """Say of a table what it is held before: a column's value, which is not shown; None: a blind update."""
    lsn = LSN(commit_lsn)
    if column is None:
        return Refusal(
            lsn,
            f"{name} is held: an update in the transaction at {lsn} does not say which row it "
            "changed, although the table has REPLICA IDENTITY FULL: a partition of it has another. Run ALTER "
            "TABLE … REPLICA IDENTITY FULL for each partition (that of the partitioned table does not reach "
            f"them), then {name.command('resync')}",
            "held",
        )
    return Refusal(
        lsn,
        f"{name} is held: the transaction at {lsn} has a value of column {column} that its silver "
        "type cannot hold, and the policy for it is error; bronze keeps the changes: give the column another "
        "policy or type in `tables`, and apply goes on from there",
        "refused",
    )


def find_excess(name: TableName, counts: Mapping[str, int], guards: Guards) -> str | None:
    """Return why the guards hold a table with so many changes by operation (`I U D T`), or None."""
    limits = (("D", "deletes", guards.deletes), ("T", "truncates", guards.truncates))
    excess = [
        f"{counts[op]} {what} (guards.{what} is {limit})"
        for op, what, limit in limits
        if limit is not None and counts.get(op, 0) > limit
    ]
    if not excess:
        return None
    return (
        f"{name} is held by its guards: what waits for it has {' and '.join(excess)}; bronze keeps "
        f"the changes: where they are meant, apply them with {confirm_command(name)}"
    )


def confirm_command(name: TableName) -> str:
    """Return the command that applies what waits for a table whatever its guards say."""
    return name.command("retry --confirm")
