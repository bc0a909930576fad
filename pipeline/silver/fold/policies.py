"""Policies that hold a table: guards, values that the policy `error` refuses, updates that identify no row.

Guards limit the deletes and truncates of one batch; a table with more is held until a person confirms. They
count the stream's messages between the table's offset and the batch's end. An update that changes a key is no
delete; a row that moves to another partition, or out of a row filter, is one. A table without rows has none
to lose, and copied rows are the source's, so neither is counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.bronze.source_relations import Relations, SourceColumn, SourceRelation
from pipeline.bronze.table_input import Survey
from pipeline.config.tables import Guards, TableRule
from pipeline.engine import SPARK, Engine
from pipeline.postgres.sql_text import quote_identifier
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold.write_plan import Identity, identity_of
from pipeline.silver.types.types import column_type
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class Refusal:
    """The transaction of the first change that silver must not apply, and why."""

    commit_lsn: LSN
    sentence: str
    kind: str  # of the event
    copy_lsn: LSN | None = None  # the same, if the cause is gone and only a copy is left to be done


def refused_value(
    surveys: Sequence[Survey], relations: Relations, rule: TableRule, engine: Engine = SPARK
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


def refuses_natively(surveys: Sequence[Survey], relations: Relations, rule: TableRule) -> bool:
    """Return whether DuckDB can tell which values are refused."""
    found = _refusing_columns(surveys, relations, rule)
    return all(column_type(column, rule).is_native for _, _, column in found)


def _refusing_columns(
    surveys: Sequence[Survey], relations: Relations, rule: TableRule
) -> list[tuple[Survey, int, SourceColumn]]:
    return [
        (survey, index, column)
        for survey in surveys
        for index, column in enumerate(relations[survey.version].columns)
        if rule.misfit_of(column.name) == "error"
    ]


def change_without_row(surveys: Sequence[Survey], relations: Relations) -> str | None:
    """Return SQL for the relation version of a change that identifies no row, None if each identifies one.

    A partition logs by its own replica identity, while the Relation message has the root's: updates have no
    old row, though that is FULL, or what they have is no key of the root, which has no identity at all.
    """
    found: dict[str, list[str]] = {}
    for survey in surveys:
        identity = identity_of(relations[survey.version])
        if identity is Identity.WHOLE_ROW and survey.without_old_row:
            found.setdefault("op = 'U' AND coalesce(old_kind, '') <> 'O'", []).append(str(survey.version))
        elif identity is Identity.NONE and (survey.updates or survey.deletes):
            found.setdefault("op IN ('U', 'D')", []).append(str(survey.version))
    if not found:
        return None
    cases = (
        f"WHEN {what} AND relation_version IN ({', '.join(versions)}) THEN relation_version"
        for what, versions in found.items()
    )
    return f"CASE {' '.join(cases)} END"


def refusal_of(
    name: TableName, commit_lsn: int, column: str | None, version: int | None, relations: Relations
) -> Refusal:
    """Return the refusal of a column's value or, without a column, of a change that identifies no row.

    `version` is the relation version of that change. A table that has an identity by now is not held by what
    it logged before: it waits for a copy.
    """
    lsn = LSN(commit_lsn)
    if column is None:
        assert version is not None
        relation = relations[version]
        if identity_of(relation) is Identity.WHOLE_ROW:
            return Refusal(
                lsn,
                f"Table {name} is held: an update in the transaction at {lsn} does not identify its row, "
                "because a partition does not have the table's REPLICA IDENTITY FULL. Run ALTER TABLE … "
                "REPLICA IDENTITY FULL for each partition (that of the partitioned table does not apply to "
                f"them), then {name.command('resync')}.",
                "held",
            )
        newest = max((r for r in relations.values() if r.oid == relation.oid), key=lambda r: r.lsn)
        is_mended = identity_of(newest) is not Identity.NONE
        sentence = (
            f"Table {name} is held: an update or delete in the transaction at {lsn} does not identify its "
            f"row, because {_why_bare(relation)}"
        )
        if is_mended:
            sentence = (
                f"Table {name} waits for a copy: at {lsn} it had no replica identity, so that updates and "
                "deletes did not identify their rows. The next ingest copies it."
            )
        return Refusal(lsn, sentence, "resync" if is_mended else "held", lsn if is_mended else None)
    return Refusal(
        lsn,
        f"Table {name} is held: the transaction at {lsn} has a value of column {column} that its silver "
        "type cannot hold, and the column's policy is error. Give the column another policy or type in "
        "`tables`, then run pgdelta apply. Until then bronze keeps the changes.",
        "refused",
    )


def _why_bare(relation: SourceRelation) -> str:
    """Return why a relation has no identity, and what to do."""
    if relation.replica_identity == "n" and relation.protected:
        why = "a rule leaves out or masks a column of its key. Hash the column instead, or remove the rule."
    else:
        table = quote_identifier(*relation.name)
        why = (
            "the table has no replica identity, while a partition has one. Run ALTER TABLE "
            f"{table} ADD PRIMARY KEY (…) with the key of its partitions, or ALTER TABLE {table} REPLICA "
            "IDENTITY FULL, and the same for each partition."
        )
    return f"{why} Then the table is copied after its next change."


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
