"""What one table's input needs: in which order its changes are cut, folded and written.

The survey says per relation version what lies between the table's position and the point that bronze has
reached. Planning is pure: it turns that into *cuts*, each of which is one write to silver. There is more than
one only where the way rows are identified changes under way (another replica identity, another key, a table
created again under its name). A TRUNCATE makes everything before it irrelevant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pipeline.bronze.copied_rows import CompleteCopy
from pipeline.bronze.relations import SourceRelation
from pipeline.bronze.survey import SequenceKey, Survey, survey_of
from pipeline.config.tables import TableRule
from pipeline.errors import LakeError
from pipeline.key_ranges import KeyRange
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold import Fold, FoldColumn
from pipeline.silver.sidecars import sidecars
from pipeline.silver.text_parsers import SilverType
from pipeline.silver.types import silver_type

# int8, int2, int4, date, timestamp, numeric: two of their texts may be one value of silver's type
_COMPARED_BY_VALUE = {20, 21, 23, 1082, 1114, 1700}


class Identity(Enum):
    """How silver finds the row that a change speaks of."""

    KEY = "key"
    WHOLE_ROW = "whole row"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive changes under one identity."""

    versions: tuple[int, ...]
    first: SequenceKey
    last: SequenceKey


@dataclass(frozen=True, slots=True)
class WriteStep:
    """One write: the changes in (after, upto], replacing the table's rows or merged into them.

    `through` is the LSN up to which the table is complete once it is written. `part` counts the cuts inside
    the transaction that ends there; 0 means that the cut ends between transactions. Of a copy that others
    follow, `through` is its place, under a count of its own.
    """

    identity: Identity
    versions: tuple[int, ...]
    start: SequenceKey
    end: SequenceKey
    replaces: bool
    end_lsn: LSN
    part: int = 0
    copy_id: int | None = None  # its rows are those of a copy, and all have keys of their own
    key_ranges: tuple[KeyRange, ...] = ()  # of a patch, whose `through` is its id
    key_types: tuple[int, ...] = ()  # of a patch: the oids of the key's types at the source


@dataclass(frozen=True, slots=True)
class TableInput:
    """One table's changes between two LSNs, surveyed."""

    surveys: tuple[Survey, ...]
    relations: Mapping[int, SourceRelation]
    end_lsn: LSN
    runs: tuple[Run, ...] = ()
    copy: CompleteCopy | None = None

    def relation(self, version: int) -> SourceRelation:
        """Return the relation of a version."""
        return self.relations[version]

    @property
    def in_order(self) -> list[SourceRelation]:
        """Return the relations in the order of their first change."""
        return [self.relations[s.version] for s in sorted(self.surveys, key=lambda s: s.first)]


def identity_of(relation: SourceRelation) -> Identity:
    """Say how rows of this version are found; see PostgreSQL's REPLICA IDENTITY."""
    if relation.replica_identity == "f":
        return Identity.WHOLE_ROW
    return Identity.KEY if relation.key else Identity.NONE


def fold_signature(relation: SourceRelation) -> tuple[object, ...]:
    """Return what must stay the same within one fold."""
    identity = identity_of(relation)
    if identity is Identity.WHOLE_ROW:
        return (relation.oid, identity, relation.version)
    return (relation.oid, identity, relation.key)


def surveys_of_newest(surveys: Sequence[Survey], relations: Mapping[int, SourceRelation]) -> list[Survey]:
    """Return the versions of the newest table under the name, in order."""
    if not surveys:
        raise ValueError("a table's input names at least one relation version")
    # A shape that came back is the same version, and may be the last as well as the first.
    last = max(surveys, key=lambda s: s.last)
    oid = relations[last.version].oid
    others = (s for s in surveys if s is not last and relations[s.version].oid == oid)
    return [*sorted(others, key=lambda s: s.first), last]


def plain_runs(surveys: Sequence[Survey], relations: Mapping[int, SourceRelation]) -> tuple[Run, ...] | None:
    """Group the versions into runs; None where versions of different signatures interleave."""
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


def plan_write_steps(table: TableInput, known_oid: int | None = None) -> list[WriteStep]:
    """Return the writes in order; the last one completes the table up to `table.through`.

    `known_oid` is the oid of the source table whose rows silver holds. Raises LakeError where updates or
    deletes do not say which row they mean.
    """
    if table.copy and table.copy.key_ranges:
        return [_patch(table.copy, table.relation(table.copy.version))]
    truncates = [s.last_truncate for s in table.surveys if s.last_truncate]
    after: SequenceKey = max(truncates, default=(0, -1))
    replaces = bool(truncates)
    runs = [run for run in table.runs if run.last >= after]
    for run in runs:
        oid = table.relation(run.versions[0]).oid
        if known_oid is not None and oid != known_oid:
            # Created again under its name: the old table's rows are not this one's.
            after, replaces = max(after, (run.first[0], run.first[1] - 1)), True
        known_oid = oid
    runs = [run for run in runs if run.last > after or (replaces and run.last == after)]
    cuts: list[WriteStep] = []
    for number, run in enumerate(runs):
        _require_identity(table, run)
        following = runs[number + 1] if number + 1 < len(runs) else None
        through, part = table.end_lsn, 0
        if following:
            through = LSN(following.first[0])
            if following.first[0] == run.last[0]:
                part = 1 + sum(cut.part > 0 and cut.end_lsn == through for cut in cuts)
        cuts.append(
            WriteStep(
                identity=identity_of(table.relation(run.versions[0])),
                versions=run.versions,
                start=after,
                end=run.last,
                replaces=replaces,
                end_lsn=through,
                part=part,
            )
        )
        after, replaces = run.last, False
    return _apart(cuts, table.copy) if table.copy and cuts else cuts


def _patch(copy: CompleteCopy, relation: SourceRelation) -> WriteStep:
    """Return the write that puts rows of some keys in the place of those that silver has."""
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


def _apart(cuts: list[WriteStep], copy: CompleteCopy) -> list[WriteStep]:
    """Put the rows of a copy before all else: they take the place of the table's rows as they are."""
    first = cuts[0]
    rows = survey_of(copy)
    if first.replaces or first.start >= rows.last:
        return cuts  # a TRUNCATE took them away
    first = replace(first, replaces=True)
    if not copy.is_whole:
        return [first, *cuts[1:]]
    if first.end == rows.last:
        return [replace(first, copy_id=copy.id), *cuts[1:]]
    copied = replace(first, end=rows.last, end_lsn=copy.lsn, part=0, copy_id=copy.id)
    return [copied, replace(first, start=rows.last, replaces=False), *cuts[1:]]


def _require_identity(table: TableInput, run: Run) -> None:
    """Refuse what would otherwise be lost: a partition may have an identity where its root has none."""
    relation = table.relation(run.versions[0])
    if identity_of(relation) is Identity.NONE and any(
        s.updates or s.deletes for s in table.surveys if s.version in run.versions
    ):
        raise LakeError(
            f"{relation.schema_name}.{relation.table_name} has no replica identity, but updates or deletes "
            "came: give the partitioned table the primary key that its partitions have, or publish them "
            "without publish_via_partition_root"
        )


def plan_fold(table: TableInput, cut: WriteStep, silver: Mapping[str, SilverType], rule: TableRule) -> Fold:
    """Return the fold of one cut onto silver's columns (name → type as the Delta table has it)."""
    surveys = [s for s in table.surveys if s.version in cut.versions]
    relations = [table.relation(s.version) for s in surveys]
    key = relations[0].key
    texts = {sidecar: name for r in relations for sidecar, name in sidecars(r, rule).items()}
    columns = []
    for name, kind in silver.items():
        of = texts.get(name, name)
        column = _fold_column(of, silver.get(of, kind), surveys, relations, rule)
        # The default of an ADD COLUMN that comes after the cut is that of the cut's rows as well.
        column = replace(column, missing_value=_missing_value(of, table.in_order))
        if name in texts:
            column = replace(
                column, name=name, type=column.type.text_of_misfit, missing_value=None, is_sidecar=True
            )
        elif column.misfit == "clamp" and name not in key:  # two keys could be clamped to one
            column = replace(column, type=column.type.clamped)
        columns.append(column)
    names = [column.name for column in columns]
    return Fold(
        columns=tuple(columns),
        key=tuple(names.index(name) for name in key),
        versions=cut.versions,
        has_key_changes=any(s.key_tuples for s in surveys),
    )


def _fold_column(
    name: str,
    kind: SilverType,
    surveys: Sequence[Survey],
    relations: Sequence[SourceRelation],
    rule: TableRule,
) -> FoldColumn:
    positions: dict[int, int] = {}
    is_unsent = is_respelled = False
    for survey, relation in zip(surveys, relations, strict=True):
        position = relation.index_of(name)
        if position is not None:
            positions[relation.version] = position
            is_unsent |= position in survey.unchanged_toast
            column = relation.columns[position]
            sent = silver_type(column, rule.types.get(name), kind.ddl)
            is_other = name in rule.types or sent.ddl != kind.ddl
            is_respelled |= is_other and column.base_oid in _COMPARED_BY_VALUE
            kind = sent if sent.ddl == kind.ddl else kind  # silver may hold a wider type
    is_partial = is_unsent or len(positions) < len(relations)
    return FoldColumn(
        name, kind, positions, is_partial, misfit=rule.misfit_of(name), has_many_spellings=is_respelled
    )


def _missing_value(name: str, relations: Sequence[SourceRelation]) -> str | None:
    """Return what rows from before a column hold for it."""
    columns = (c for relation in relations for c in relation.columns if c.name == name)
    return next((c.missing_value for c in columns if c.missing_value is not None), None)
