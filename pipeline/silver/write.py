"""Plan what one write does to a silver table, before anything runs, as SQL that can be shown.

A MERGE or INSERT reads the folded changes under the name `folded`. `pgdelta plan --sql` prints the MERGE that
apply runs; appends and overwrites are printed as INSERT, and apply does them by Spark's DataFrame writer with
the same effect.
"""

import enum
from dataclasses import dataclass, replace

from pipeline.delta.sql import quoted
from pipeline.delta.txn import TableCommit
from pipeline.silver.fold import Fold
from pipeline.silver.key_ranges import key_range_condition
from pipeline.silver.merge import MetadataNames, image_of_row, merge_by_image, merge_by_key
from pipeline.silver.write_plan import Identity, WriteStep

FOLDED = "folded"


class WriteKind(enum.Enum):
    """How rows get into the table."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    MERGE = "merge by key"
    MERGE_ROWS = "merge whole rows"
    REPLACE_KEYS = "replace key ranges"


@dataclass(frozen=True, slots=True)
class Write:
    """One write: what it reads, how it folds, what it does and what its commit records.

    `condition` is that of REPLACE_KEYS, `statement` the MERGE.
    """

    step: WriteStep
    kind: WriteKind
    fold: Fold
    commit: TableCommit
    metadata: MetadataNames
    table: str
    statement: str | None = None
    condition: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The written columns, pgdelta's last."""
        return (*(column.name for column in self.fold.columns), *(name for name, _ in self.metadata.pairs()))

    @property
    def sql(self) -> str:
        """The write as one Spark SQL statement."""
        if self.statement is not None:
            return self.statement
        names = ", ".join(map(quoted, self.columns))
        match self.kind:
            case WriteKind.REPLACE_KEYS:
                return f"INSERT INTO {self.table} REPLACE WHERE {self.condition} SELECT {names} FROM {FOLDED}"
            case WriteKind.OVERWRITE:
                return f"INSERT OVERWRITE {self.table} ({names}) SELECT {names} FROM {FOLDED}"
        return f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {FOLDED}"


def plan_write(
    step: WriteStep,
    fold: Fold,
    commit: TableCommit,
    metadata: MetadataNames,
    table: str,
    *,
    is_empty: bool,
    has_only_inserts: bool,
) -> Write:
    """Plan the write of a step into a table, given by its identifier.

    Rows that replace the table's rows, or are written to an empty table, need no MERGE. Raises
    KeyRangesUnusable if silver cannot select the rows of copied key ranges.
    """
    kind = WriteKind.OVERWRITE if step.replaces else WriteKind.APPEND
    needs_merge = not (step.replaces or is_empty)
    if step.copy_id is not None:
        fold = all_sent(fold)
        write = Write(step, kind, fold, commit, metadata, table)
        if not step.key_ranges:
            return write
        condition = key_range_condition(fold, step.key_types, step.key_ranges)
        return replace(write, kind=WriteKind.REPLACE_KEYS, condition=condition)
    match step.identity:
        case Identity.KEY if needs_merge:
            statement = merge_by_key(table, FOLDED, fold, metadata)
            return Write(step, WriteKind.MERGE, fold, commit, metadata, table, statement)
        case Identity.WHOLE_ROW if needs_merge and not has_only_inserts:
            image = image_of_row(fold.columns, "t")
            statement = merge_by_image(table, FOLDED, image, fold.columns, metadata)
            return Write(step, WriteKind.MERGE_ROWS, fold, commit, metadata, table, statement)
        case Identity.NONE:
            return Write(step, kind, keyless(fold), commit, metadata, table)
    return Write(step, kind, fold, commit, metadata, table)


def all_sent(fold: Fold) -> Fold:
    """Return the fold of rows that have a value for every column."""
    columns = tuple(replace(column, is_partial=False) for column in fold.columns)
    return replace(fold, columns=columns, has_key_changes=False)


def keyless(fold: Fold) -> Fold:
    """Return the fold of rows that are added without a key."""
    return replace(all_sent(fold), key=())
