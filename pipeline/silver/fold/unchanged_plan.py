"""Decide where rows of mode `append` find values that the source did not send (unchanged TOAST). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.bronze.copy_states import Gap
from pipeline.bronze.source_relations import Relations, SourceColumn, SourceRelation
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold.fold import Fold
from pipeline.silver.fold.write_plan import Identity, WriteStep


@dataclass(frozen=True, slots=True)
class Filling:
    """How a step fills values: its fold with the key, and where earlier rows show nothing.

    `last_lsn` is that of the last transaction in which no other key identified rows, None if none did.
    `gap_lsns` are the LSNs after which the stream lacks changes.
    """

    fold: Fold
    last_lsn: LSN | None = None
    gap_lsns: tuple[LSN, ...] = ()


def plan_filling(step: WriteStep, fold: Fold, relations: Relations, gaps: Sequence[Gap]) -> Filling | None:
    """Return how a step in mode `append` fills values, None if it has none to fill.

    `relations` are all relation versions that are recorded. Rows are found by a key only while no other one
    identified rows: another row may have had the same values in these columns.
    """
    if fold.mode != "append" or not fold.partial or step.identity is not Identity.KEY:
        return None
    if step.copy_id is not None:
        return None
    relation = relations[step.versions[0]]
    others = [
        each.lsn for each in relations.values() if each.oid == relation.oid and not _key_grew(each, relation)
    ]
    last_lsn = LSN(min(others)) if others else None
    if last_lsn is not None and last_lsn < step.start[0]:
        return None
    return Filling(fold, last_lsn, tuple(gap.start for gap in gaps))


def _key_grew(before: SourceRelation, after: SourceRelation) -> bool:
    """Return whether two versions have the same key, or the second one more columns."""
    key, other = ([c for c in each.columns if c.name in each.key] for each in (before, after))
    return bool(key) and all(any(_is_same(column, one) for one in other) for column in key)


def _is_same(column: SourceColumn, other: SourceColumn) -> bool:
    numbers = column.attribute_number, other.attribute_number
    same = column.name == other.name if None in numbers else numbers[0] == numbers[1]
    return same and column.type[0] == other.type[0]
