"""Plan the later copies of a table in a mode that keeps the rows that are gone. Pure.

Such a table begins with the rows of its first copy, or with its first change. Each later copy is compared
with the rows that the table has at the LSN of the copy, after the changes up to there. So the rows depend on
nothing but bronze: not on when a copy was applied, and not on how its rows were read.

The rows of a copy are folded with the changes that its snapshots did not see, up to the LSN of the last one.
That gives the rows of the source there. In mode `append` the rows of the copy are appended as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pipeline.bronze.bases import Base
from pipeline.bronze.copy_states import CompleteCopy, CopyHistory
from pipeline.bronze.source_relations import SourceRelation
from pipeline.bronze.table_input import survey_of
from pipeline.config.tables import TableRule
from pipeline.delta.txn import TableCommit
from pipeline.errors import LakeError
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.fold.merge import merge_by_key
from pipeline.silver.fold.modes import MARKINGS, MetadataNames
from pipeline.silver.fold.write import Write, WriteKind, all_sent, plan_write
from pipeline.silver.fold.write_plan import Identity, TableInput, WriteStep, fold_signature, plan_fold
from pipeline.silver.schema.column_mapping import SilverColumns, align_versions
from pipeline.silver.schema.schema_evolution import continues
from pipeline.silver.types.text_parsers import SilverType
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """The copies of a table's input, in order: it begins with the rows of `first`, if there is one."""

    first: CompleteCopy | None = None
    later: tuple[CompleteCopy, ...] = ()


def order_copies(
    name: TableName,
    rule: TableRule,
    history: CopyHistory,
    relations: Collection[SourceRelation],
    last: CompleteCopy | None,
    *,
    is_copied: bool,
    base: Base | None = None,
) -> CopyOrder:
    """Return the copies from which a table is built, up to the last one.

    Tables of a source that `is_copied` have no rows before their first copy. Without the rows that are gone
    only the last copy matters. Otherwise it is the first one after which silver can keep those rows: the
    name had no other table since, no column has another rule, and the key finds the same rows. Copies before
    the base of the table are not in bronze any more.
    """
    if last is None or rule.mode == "mirror":
        return CopyOrder(last)
    oids = {relation.version: relation.oid for relation in relations}
    copies = history.whole_copies(name, last)
    others = [n for n, copy in enumerate(copies) if oids.get(copy.version) != oids.get(last.version)]
    copies = copies[others[-1] + 1 :] if others else copies
    begin = _last_break(name, rule, relations, last)
    if begin > INVALID:
        copies = [copy for copy in copies if copy.end_lsn >= begin] or [last]
    if base is not None:
        copies = [copy for copy in copies if copy.id >= (base.copy_id or 0)] or [last]
        if base.copy_id is None:
            return CopyOrder(None, tuple(copy for copy in copies if copy.end_lsn > base.lsn))
    elif not is_copied and begin == INVALID:
        return CopyOrder(None, tuple(copies))
    return CopyOrder(copies[0], tuple(copies[1:]))


def _last_break(
    name: TableName, rule: TableRule, relations: Collection[SourceRelation], last: CompleteCopy
) -> LSN:
    """Return the LSN up to `last` from which on a table has no rows from before, INVALID if there is none."""
    own = sorted((r for r in relations if r.name == name and r.lsn <= last.end_lsn), key=lambda r: r.lsn)
    oid = next((r.oid for r in relations if r.version == last.version), None)
    found = LSN(INVALID)
    versions = [relation for relation in own if relation.oid == oid]
    if not versions:
        return found
    if others := [relation.lsn for relation in own if relation.oid != oid]:
        after = max(others)  # which may have had the name in between only
        found = LSN(next((each.lsn for each in versions if each.lsn > after), after + 1))
    recorded = None
    for relation in align_versions(None, versions).relations:
        if recorded is not None and not continues(recorded, relation, rule):
            found = max(found, LSN(relation.lsn))
        recorded = (recorded or SilverColumns(relation.oid, {})).after(relation)
    return found


def plan_later_copy(
    table: TableInput,
    columns: Mapping[str, SilverType],
    numbers: Collection[str],
    rule: TableRule,
    commit: TableCommit,
    metadata: MetadataNames,
    identifier: str,
) -> Write:
    """Plan the write of a later copy; `table` has its rows and the changes that its snapshots did not see.

    `columns` are silver's, by name, and `numbers` the registered ones of the source. Raises LakeError if the
    table got another key meanwhile.
    """
    copy = table.copy
    assert copy is not None
    if rule.mode == "append":
        step = WriteStep(
            Identity.NONE,
            (copy.version,),
            (0, -1),
            survey_of(copy).last,
            False,
            copy.end_lsn,
            copy_id=copy.id,
        )
        fold = plan_fold(table, step, columns, rule, numbers)
        return plan_write(step, fold, commit, metadata, identifier, is_empty=False, has_only_inserts=True)
    surveys = sorted(table.surveys, key=lambda survey: survey.first)
    versions = tuple(dict.fromkeys(survey.version for survey in surveys))
    if len({fold_signature(table.relation(version)) for version in versions}) > 1:
        name = table.relation(copy.version).name
        raise LakeError(
            f"The copy of table {name} at {copy.end_lsn} cannot be compared with its rows, because the key "
            f"changed while it was read. Run {name.command('resync')}."
        )
    step = WriteStep(
        Identity.KEY,
        versions,
        max((survey.last_truncate for survey in surveys if survey.last_truncate), default=(0, -1)),
        max(survey.last for survey in surveys),
        replaces=False,
        end_lsn=copy.end_lsn,
        copy_id=copy.id,
        micros=copy.micros,
    )
    mirror = replace(rule, mode="mirror", on_delete="apply", on_truncate="apply")
    fold = plan_fold(table, step, columns, mirror, numbers)
    current = metadata.name_of(MARKINGS[rule.mode].current_column)
    merged = replace(
        all_sent(fold),
        mode=rule.mode,
        current_column=current,
        has_intermediate=rule.has_intermediate,
    )
    merge = merge_by_key(merged, metadata)
    return Write(step, WriteKind.COMPARE, fold, commit, metadata, identifier, merge, merged=merged)
