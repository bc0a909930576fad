"""The first change that brings a value which its column must not have: the policy `error`.

It does not matter whether the value would still be there after later changes: where a table stops does not
depend on how its changes are cut into batches. Only a TRUNCATE makes what lies before it irrelevant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.protocol.lsn import LSN
from pipeline.rules import TableRule
from pipeline.silver.fold import literal
from pipeline.silver.plan import Survey
from pipeline.silver.relation import SourceRelation
from pipeline.silver.types import silver_type


@dataclass(frozen=True, slots=True)
class Refusal:
    """The place of the change that is refused, and why, for people."""

    before: LSN
    sentence: str


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


def refusal(name: tuple[str, str], commit_lsn: int, column: str) -> Refusal:
    """Say of a table which value it is held before; the value itself is not shown."""
    lsn = LSN(commit_lsn)
    return Refusal(
        lsn,
        f"{'.'.join(name)} is held: the transaction at {lsn} has a value of column {column} that its silver "
        "type cannot hold, and the policy for it is error; bronze keeps the changes: give the column another "
        "policy or type in `tables`, and apply goes on from there",
    )
