"""The first change that silver must not follow: a value that the policy `error` refuses, or a blind update.

It does not matter whether the value would still be there after later changes: where a table stops does not
depend on how its changes are cut into batches. Only a TRUNCATE makes what lies before it irrelevant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.protocol.lsn import LSN
from pipeline.rules import TableRule, command_for
from pipeline.silver.fold import literal
from pipeline.silver.plan import Identity, Survey, identity_of
from pipeline.silver.relation import SourceRelation
from pipeline.silver.types import silver_type


@dataclass(frozen=True, slots=True)
class Refusal:
    """The place of the change that is refused, and why, for people."""

    before: LSN
    sentence: str
    kind: str  # of the event that says why


def refused_column(
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


def blind_update(surveys: Sequence[Survey], relations: Mapping[int, SourceRelation]) -> str | None:
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


def refusal(name: tuple[str, str], commit_lsn: int, column: str | None) -> Refusal:
    """Say of a table what it is held before: a column's value, which is not shown; None: a blind update."""
    lsn = LSN(commit_lsn)
    if column is None:
        return Refusal(
            lsn,
            f"{'.'.join(name)} is held: an update in the transaction at {lsn} does not say which row it "
            "changed, although the table has REPLICA IDENTITY FULL: a partition of it has another. Run ALTER "
            "TABLE … REPLICA IDENTITY FULL for each partition (that of the partitioned table does not reach "
            f"them), then {command_for(name, 'resync')}",
            "held",
        )
    return Refusal(
        lsn,
        f"{'.'.join(name)} is held: the transaction at {lsn} has a value of column {column} that its silver "
        "type cannot hold, and the policy for it is error; bronze keeps the changes: give the column another "
        "policy or type in `tables`, and apply goes on from there",
        "refused",
    )
