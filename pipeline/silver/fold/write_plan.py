"""Plan the write steps of one table's input, and how each folds its changes. Pure.

A survey counts what each relation version has between the table's offset and the end of the batch. Each
*step* is one write to silver. There are several only if the identification of rows changes in between:
another replica identity, another key, a table created again under its name. A TRUNCATE makes everything
before it irrelevant.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.source_relations import Relations, SourceColumn, SourceRelation
from pipeline.bronze.table_input import SequenceKey, Survey, TruncatedAt, survey_of
from pipeline.config.tables import TableRule
from pipeline.errors import LakeError
from pipeline.key_ranges import KeyRange
from pipeline.protocol.lsn import LSN
from pipeline.protocol.pg_types import PgType
from pipeline.silver.fold.fold import Fold, FoldColumn
from pipeline.silver.schema.column_mapping import present_sidecars, sidecars
from pipeline.silver.types.text_parsers import NO_MISFIT, SilverType
from pipeline.silver.types.types import (
    are_printed_for,
    column_type,
    is_widened_real,
    silver_type,
    widened_text,
)

_MAX_TRUNCATES = 100  # of one fold, in modes that keep the rows that are gone
# several of their texts may be one value of silver's type
_COMPARED_BY_VALUE = {
    PgType.INT8,
    PgType.INT2,
    PgType.INT4,
    PgType.DATE,
    PgType.TIMESTAMP,
    PgType.TIMESTAMPTZ,
    PgType.NUMERIC,
}


class Identity(Enum):
    """How silver finds the row of a change."""

    KEY = "key"
    WHOLE_ROW = "whole row"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive changes that can be folded together."""

    versions: tuple[int, ...]
    first: SequenceKey
    last: SequenceKey


@dataclass(frozen=True, slots=True)
class WriteStep:
    """One write: the changes after `start` and up to `end`, merged into the table or replacing its rows.

    `end_lsn` is the LSN up to which the table is complete afterwards. `part` counts the steps within the
    transaction that ends there; 0 means that the step ends between transactions. For copied rows that changes
    follow, `end_lsn` is the LSN of the copy, under a separate id; for copied keys it is the id of the copy.
    """

    identity: Identity
    versions: tuple[int, ...]
    start: SequenceKey
    end: SequenceKey
    replaces: bool
    end_lsn: LSN
    part: int = 0
    copy_id: int | None = None  # its rows are copied, and have distinct keys
    key_ranges: tuple[KeyRange, ...] = ()  # of copied keys
    key_types: tuple[int, ...] = ()  # the oids of the key's types at the source
    truncates: tuple[TruncatedAt, ...] = ()  # that mark rows, in modes that keep those
    micros: int = 0  # the time of a later copy


@dataclass(frozen=True, slots=True)
class TableInput:
    """The surveyed changes of one table between two LSNs."""

    surveys: tuple[Survey, ...]
    relations: Relations
    end_lsn: LSN
    runs: tuple[Run, ...] = ()
    copy: CompleteCopy | None = None

    def relation(self, version: int) -> SourceRelation:
        """Return a relation version."""
        return self.relations[version]


def identity_of(relation: SourceRelation) -> Identity:
    """Return how rows of a version are found; see PostgreSQL's REPLICA IDENTITY."""
    if relation.replica_identity == "f":
        return Identity.WHOLE_ROW
    return Identity.KEY if relation.key else Identity.NONE


def fold_signature(relation: SourceRelation) -> tuple[object, ...]:
    """Return what must be equal for all versions of one fold."""
    identity = identity_of(relation)
    if identity is Identity.WHOLE_ROW:
        return (relation.oid, identity, relation.version)
    return (relation.oid, identity, relation.key)


def surveys_of_newest(surveys: Sequence[Survey], relations: Relations) -> list[Survey]:
    """Return the surveys of the newest source table that had the name, in order."""
    if not surveys:
        raise ValueError("a table's input names at least one relation version")
    # Columns that were changed back are the same version again, which may be both first and last.
    last = max(surveys, key=lambda s: s.last)
    oid = relations[last.version].oid
    others = (s for s in surveys if s is not last and relations[s.version].oid == oid)
    return [*sorted(others, key=lambda s: s.first), last]


def plain_runs(surveys: Sequence[Survey], relations: Relations) -> tuple[Run, ...] | None:
    """Group the versions into runs; return None if versions of different signatures interleave."""
    runs: list[Run] = []
    previous: tuple[object, ...] | None = None
    for survey in sorted(surveys, key=lambda s: s.first):
        current = fold_signature(relations[survey.version])
        if runs and current == previous:
            last = runs[-1]
            versions = tuple(dict.fromkeys((*last.versions, survey.version)))
            runs[-1] = Run(versions, last.first, max(last.last, survey.last))
        elif runs and survey.first < runs[-1].last:
            return None
        else:
            runs.append(Run((survey.version,), survey.first, survey.last))
        previous = current
    return tuple(runs)


def plan_write_steps(
    table: TableInput, shown_oid: int | None = None, truncates: Sequence[TruncatedAt] = ()
) -> list[WriteStep]:
    """Return the write steps in order; the last one completes the table up to `table.end_lsn`.

    `shown_oid` is the oid of the source table whose rows silver shows. `truncates` are those that mark rows,
    in modes that keep those. Raises LakeError if updates or deletes cannot identify their rows.
    """
    steps = _plan_steps(table, shown_oid)
    if not truncates:
        return steps
    found: list[WriteStep] = []
    for step in steps:
        for each in _with_truncates(step, [t for t in truncates if step.start < t.key <= step.end]):
            same = sum(other.part > 0 and other.end_lsn == each.end_lsn for other in found)
            found.append(replace(each, part=1 + same) if each.part else each)
    return found


def _with_truncates(step: WriteStep, truncates: Sequence[TruncatedAt]) -> Iterator[WriteStep]:
    """Yield a step with its truncates; too many for one fold divide it."""
    while len(truncates) > _MAX_TRUNCATES:
        first, truncates = tuple(truncates[:_MAX_TRUNCATES]), truncates[_MAX_TRUNCATES:]
        last = first[-1]
        yield replace(step, end=last.key, end_lsn=LSN(last.commit_lsn), part=1, truncates=first)
        step = replace(step, start=last.key, replaces=False)
    yield replace(step, truncates=tuple(truncates))


def _plan_steps(table: TableInput, shown_oid: int | None) -> list[WriteStep]:
    if table.copy and table.copy.key_ranges:
        return [_key_range_step(table.copy, table.relation(table.copy.version))]
    truncates = [s.last_truncate for s in table.surveys if s.last_truncate]
    start: SequenceKey = max(truncates, default=(0, -1))
    replaces = bool(truncates)
    runs = [run for run in table.runs if run.last >= start]
    for run in runs:
        oid = table.relation(run.versions[0]).oid
        if shown_oid is not None and oid != shown_oid:
            # Created again under its name: the old table's rows are not this one's.
            start, replaces = max(start, (run.first[0], run.first[1] - 1)), True
        shown_oid = oid
    runs = [run for run in runs if run.last > start or (replaces and run.last == start)]
    steps: list[WriteStep] = []
    for number, run in enumerate(runs):
        _require_identity(table, run)
        following = runs[number + 1] if number + 1 < len(runs) else None
        end_lsn, part = table.end_lsn, 0
        if following:
            end_lsn = LSN(following.first[0])
            if following.first[0] == run.last[0]:
                part = 1 + sum(step.part > 0 and step.end_lsn == end_lsn for step in steps)
        steps.append(
            WriteStep(
                identity=identity_of(table.relation(run.versions[0])),
                versions=run.versions,
                start=start,
                end=run.last,
                replaces=replaces,
                end_lsn=end_lsn,
                part=part,
            )
        )
        start, replaces = run.last, False
    return _with_copied_rows(steps, table.copy) if table.copy and steps else steps


def _key_range_step(copy: CompleteCopy, relation: SourceRelation) -> WriteStep:
    """Return the step that replaces silver's rows of copied keys."""
    return WriteStep(
        identity=Identity.KEY,
        versions=(copy.version,),
        start=(0, -1),
        end=survey_of(copy).last,
        replaces=False,
        end_lsn=LSN(copy.id),
        copy_id=copy.id,
        key_ranges=copy.key_ranges,
        key_types=relation.key_types,
    )


def _with_copied_rows(steps: list[WriteStep], copy: CompleteCopy) -> list[WriteStep]:
    """Return the steps with the rows of a copy first: they replace the table's rows."""
    first = steps[0]
    rows = survey_of(copy)
    if first.replaces or first.start >= rows.last:
        return steps  # a TRUNCATE removed them
    first = replace(first, replaces=True)
    if not copy.is_whole:
        return [first, *steps[1:]]
    if first.end == rows.last:
        return [replace(first, copy_id=copy.id), *steps[1:]]
    copied = replace(first, end=rows.last, end_lsn=copy.lsn, part=0, copy_id=copy.id)
    return [copied, replace(first, start=rows.last, replaces=False), *steps[1:]]


def _require_identity(table: TableInput, run: Run) -> None:
    """Raise LakeError for updates and deletes without identity: a partition may have one, its root none."""
    relation = table.relation(run.versions[0])
    if identity_of(relation) is Identity.NONE and any(
        s.updates or s.deletes for s in table.surveys if s.version in run.versions
    ):
        raise LakeError(
            f"Table {relation.name} has no replica identity, but has updates or deletes. Give the "
            "partitioned table the primary key of its partitions, or publish them without "
            "publish_via_partition_root."
        )


def plan_fold(
    table: TableInput,
    step: WriteStep,
    silver: Mapping[str, SilverType],
    rule: TableRule,
    numbers: Collection[str] = (),
) -> Fold:
    """Return the fold of one step onto silver's columns (name → type in the Delta table).

    `numbers` are the registered columns of the source. A sidecar that an earlier policy left follows its
    column too, as NULL. Whole rows are compared without it, and those that are written have NULL.
    """
    surveys = [s for s in table.surveys if s.version in step.versions]
    relations = [table.relation(s.version) for s in surveys]
    key = relations[0].key
    texts = {sidecar: name for r in relations for sidecar, name in sidecars(r, rule).items()}
    left = present_sidecars(silver, numbers) if step.identity is not Identity.WHOLE_ROW else {}
    left = {sidecar: name for sidecar, name in left.items() if sidecar not in texts}
    in_order = sorted(table.surveys, key=lambda s: s.first)
    versions = [(s, r) for s in in_order if (r := table.relation(s.version)).oid == relations[0].oid]
    columns = []
    for name, kind in silver.items():
        source = texts.get(name) or left.get(name, name)
        column = _fold_column(source, silver.get(source, kind), surveys, relations, rule)
        if name in texts:
            column = replace(column, name=name, type=column.type.text_of_misfit, is_sidecar=True)
        elif name in left:
            column = replace(column, name=name, type=NO_MISFIT, is_sidecar=True)
        elif column.misfit == "clamp" and name not in key:  # clamping could make two keys equal
            column = replace(column, type=column.type.clamped)
        if rule.mode != "append" and not column.is_sidecar:
            column = _with_default(column, versions)
        columns.append(column)
    names = [column.name for column in columns]
    return Fold(
        columns=tuple(columns),
        key=tuple(names.index(name) for name in key),
        versions=step.versions,
        has_key_changes=any(s.key_tuples for s in surveys),
        mode=rule.mode,
        ignores_deletes=rule.ignores_deletes,
        has_intermediate=rule.has_intermediate,
        truncates=step.truncates,
    )


def _fold_column(
    name: str,
    kind: SilverType,
    surveys: Sequence[Survey],
    relations: Sequence[SourceRelation],
    rule: TableRule,
) -> FoldColumn:
    indexes: dict[int, int] = {}
    widened: set[int] = set()
    may_be_unsent = has_many_spellings = has_other_types = False
    sent_columns: list[SourceColumn] = []
    for survey, relation in zip(surveys, relations, strict=True):
        index = relation.index_of(name)
        if index is not None:
            indexes[relation.version] = index
            may_be_unsent |= index in survey.unchanged_toast
            column = relation.columns[index]
            sent = column_type(column, rule, kind.ddl)
            differs = name in rule.types or sent.ddl != kind.ddl
            has_many_spellings |= differs and column.base_oid in _COMPARED_BY_VALUE
            has_other_types |= column.is_type_known and silver_type(column).ddl != kind.ddl
            sent_columns.append(column)
            if is_widened_real(column, kind.ddl):
                widened.add(relation.version)
            kind = sent if sent.ddl == kind.ddl else kind  # silver may have a wider type
    if kind.ddl == "STRING":  # silver's key is spelled as the source spells it
        has_many_spellings = has_other_types = False
    if all(are_printed_for(column, kind, rule.types.get(name)) for column in sent_columns):
        kind = kind.of_printed
    is_partial = may_be_unsent or len(indexes) < len(relations)
    return FoldColumn(
        name,
        kind,
        indexes,
        is_partial,
        misfit=rule.misfit_of(name),
        has_many_spellings=has_many_spellings or bool(widened),
        has_other_types=has_other_types,
        widened=frozenset(widened),
    )


def _with_default(column: FoldColumn, versions: Sequence[tuple[Survey, SourceRelation]]) -> FoldColumn:
    """Return a column with the default of its ADD COLUMN, which may come after the step, in older rows.

    A version without the column is older than it, or follows its DROP COLUMN. It can be the same version
    before and after, so only the order of changes distinguishes them.
    """
    value = missing_value(column.name, [relation for _, relation in versions], column.type.ddl)
    if value is None:
        return column
    added = min(survey.first for survey, relation in versions if _has_default(relation, column.name))
    lacking = (survey for survey, relation in versions if relation.index_of(column.name) is None)
    is_dropped = any(survey.last > added for survey in lacking)
    return replace(column, missing_value=value, missing_before=added if is_dropped else None)


def _has_default(relation: SourceRelation, name: str) -> bool:
    return any(column.name == name and column.missing_value is not None for column in relation.columns)


def missing_value(name: str, relations: Sequence[SourceRelation], ddl: str = "STRING") -> str | None:
    """Return the text of a column, which silver has with a type, in rows that are older than the column."""
    columns = (c for relation in relations for c in relation.columns if c.name == name)
    column = next((column for column in columns if column.missing_value is not None), None)
    if column is None or column.missing_value is None:
        return None
    return widened_text(column.missing_value) if is_widened_real(column, ddl) else column.missing_value
