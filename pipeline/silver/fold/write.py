"""Plan one write to a silver table as SQL, which can be shown before anything runs. Pure.

A MERGE or INSERT reads the folded changes under the name `folded`. Their columns are numbered (c0…, s0…,
k0…), so that no name of a source table can collide with them; names appear only as quoted columns of the
target. `pgdelta plan --sql` prints the MERGE that apply runs. Appends and overwrites are printed as INSERT;
apply does them with Spark's DataFrame writer, to the same effect.

A partial resync deletes by key ranges. Silver must select the same keys as the source, so a range needs types
whose values have the same order in both, unless it is one key.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.delta.sql import quoted
from pipeline.delta.txn import TableCommit
from pipeline.engine import SPARK, Engine
from pipeline.key_ranges import KeyRange, has_same_order
from pipeline.silver.fold.fold import UNKNOWN, Fold, FoldColumn
from pipeline.silver.fold.key_bounds import has_bounds
from pipeline.silver.fold.merge import Merge, merge_by_image, merge_by_key
from pipeline.silver.fold.modes import MARKINGS, MetadataNames
from pipeline.silver.fold.unchanged_plan import Filling
from pipeline.silver.fold.write_plan import Identity, WriteStep
from pipeline.silver.types.text_parsers import SilverType

Column = tuple[str, SilverType]  # quoted name


class KeyRangesUnusable(Exception):
    """Silver cannot select the rows of key ranges."""


FOLDED = "folded"
LATER_BOUNDS = "true /* apply: bounds of the changed keys, by which Delta skips files */"


class WriteKind(enum.Enum):
    """How rows are written to the table."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    MERGE = "merge by key"
    MERGE_ROWS = "merge whole rows"
    REPLACE_KEYS = "replace key ranges"
    COMPARE = "compare with a copy"


@dataclass(frozen=True, slots=True)
class Write:
    """One write: what it reads, how it folds, what it does and what its commit records.

    `condition` is that of REPLACE_KEYS, `merge` what the rows of a MERGE do. COMPARE folds by `fold`, as a
    mirror, and merges by `merged`. `filling` is how rows of mode `append` get values that were not sent.
    """

    step: WriteStep
    kind: WriteKind
    fold: Fold
    commit: TableCommit
    metadata: MetadataNames
    table: str
    merge: Merge | None = None
    condition: str | None = None
    merged: Fold | None = None
    filling: Filling | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The written columns, pgdelta's last."""
        return (*(column.name for column in self.fold.columns), *(name for name, _ in self.metadata.pairs()))

    @property
    def only_adds(self) -> bool:
        """Whether the step changes no row of the table, and a row that it inserts depends on no other one."""
        is_log = self.fold.mode == "append"
        if self.kind in (WriteKind.COMPARE, WriteKind.REPLACE_KEYS) or self.filling is not None:
            return False
        return is_log or self.step.copy_id is not None or self.step.identity is Identity.NONE

    @property
    def is_read_once(self) -> bool:
        """Whether each row is written once it is read: it depends on none of the table, nor on another."""
        if self.only_adds:
            return True
        adds = self.kind in (WriteKind.APPEND, WriteKind.OVERWRITE) and self.filling is None
        return (
            adds
            and self.step.identity is Identity.KEY
            and self.fold.mode == "mirror"
            and not self.fold.partial
            and not self.fold.may_merge_keys
        )

    def statement(self, bounds: str | None = None) -> str:
        """Return the MERGE, within the bounds of the changed keys if these are known."""
        assert self.merge is not None
        return self.merge.statement(self.table, FOLDED, bounds)

    @property
    def sql(self) -> str:
        """The write as one Spark SQL statement; a comment replaces bounds that are known after the fold."""
        if self.merge is not None:
            has_later_bounds = self.kind is WriteKind.MERGE and has_bounds(self.fold)
            return self.statement(LATER_BOUNDS if has_later_bounds else None)
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
    if fold.mode in MARKINGS:
        fold = replace(fold, current_column=metadata.name_of(MARKINGS[fold.mode].current_column))
    kind = WriteKind.OVERWRITE if step.replaces else WriteKind.APPEND
    if fold.mode == "append":
        if step.key_ranges:
            raise KeyRangesUnusable
        fold = replace(fold, key=(), has_key_changes=False)
        return Write(step, kind, fold, commit, metadata, table)
    needs_merge = not (step.replaces or is_empty)
    if step.copy_id is not None:
        if step.key_ranges and (fold.ignores_deletes or fold.mode != "mirror"):
            raise KeyRangesUnusable  # rows that are gone have no copy
        fold = all_sent(fold)
        write = Write(step, kind, fold, commit, metadata, table)
        if not step.key_ranges:
            return write
        condition = key_range_condition(fold, step.key_types, step.key_ranges)
        return replace(write, kind=WriteKind.REPLACE_KEYS, condition=condition)
    match step.identity:
        case Identity.KEY if needs_merge:
            merge = merge_by_key(fold, metadata)
            return Write(step, WriteKind.MERGE, fold, commit, metadata, table, merge)
        case Identity.WHOLE_ROW if needs_merge and not has_only_inserts:
            merge = merge_by_image(image_of_row(fold.columns, "t"), fold.columns, metadata)
            return Write(step, WriteKind.MERGE_ROWS, fold, commit, metadata, table, merge)
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


def misfits(fold: Fold, engine: Engine = SPARK) -> str | None:
    """Return SQL for an array of struct(column_name, raw_text, policy), None if no value can misfit."""
    found = [f"CASE WHEN {lost} THEN {engine.struct(fields)} END" for lost, fields in _losses(fold, engine)]
    return engine.filter(engine.array(*found), "e IS NOT NULL") if found else None


def misfit_count(fold: Fold, engine: Engine) -> str:
    """Return SQL for the number of misfits of all folded rows but deletes."""
    counts = [f"CASE WHEN {lost} THEN 1 ELSE 0 END" for lost, _ in _losses(fold, engine)]
    while len(counts) > 1:  # in pairs: engines refuse a sum of a thousand terms as too deep
        counts = [f"({' + '.join(counts[i : i + 2])})" for i in range(0, len(counts), 2)]
    return f"coalesce(sum(CASE WHEN op <> 'D' THEN {counts[0]} END), 0)" if counts else "0"


def _losses(fold: Fold, engine: Engine) -> Iterator[tuple[str, dict[str, str]]]:
    """Give SQL for each way in which a row loses a value: whether it does, and what a misfit records."""
    for i, column in enumerate(fold.columns):
        name = engine.literal(column.name)
        if lost := column.type.misfit(f"x{i}", f"c{i}", engine):
            yield lost, {"column_name": name, "raw_text": f"x{i}", "policy": _policy(column, f"c{i}")}
        # The source never sends a column that it does not have any more.
        if i in fold.partial and column.indexes and not column.is_sidecar:
            unknown = f"s{i} = {UNKNOWN} AND op <> 'D'"
            yield unknown, {"column_name": name, "raw_text": engine.null("STRING"), "policy": "'not sent'"}


def has_misfit(fold: Fold, engine: Engine) -> str:
    """Return SQL that is true if a folded row has a misfit or no key; all its values were sent."""
    lost = [column.type.misfit(f"x{i}", f"c{i}", engine) for i, column in enumerate(fold.columns)]
    found = [*(f"{name} IS NULL" for name in fold.key_names), *(each for each in lost if each)]
    return " OR ".join(found) or "false"


def _policy(column: FoldColumn, value: str) -> str:
    """Return SQL for the policy that was applied to a misfit; a clamped value may have no nearest one."""
    if column.type.lenient is None:
        return "'text'" if column.misfit == "text" else "'null'"
    return f"CASE WHEN {value} IS NULL THEN 'null' ELSE 'clamp' END"


def image_of_texts(columns: Sequence[FoldColumn], engine: Engine = SPARK) -> str:
    """Return SQL for the canonical image of a row of texts x0…."""
    fields = {
        f"q{i}": column.type.canonical(f"x{i}", engine) for i, column in enumerate(columns) if column.indexes
    }
    return engine.to_json(engine.struct(fields)) if fields else "'{}'"


def image_of_row(columns: Sequence[FoldColumn], alias: str, engine: Engine = SPARK) -> str:
    """Return SQL for the canonical image of a row of the silver table."""
    fields = {
        f"q{i}": column.type.canonical_value(f"{alias}.{engine.quoted(column.name)}", engine)
        for i, column in enumerate(columns)
        if column.indexes
    }
    return engine.to_json(engine.struct(fields)) if fields else "'{}'"


def key_range_condition(
    fold: Fold, key_types: Sequence[int], ranges: Sequence[KeyRange], engine: Engine = SPARK
) -> str:
    """Return SQL that is true for silver's rows in the ranges.

    `key_types` are the oids of the key's types at the source, for domains those of their base types. Raises
    KeyRangesUnusable if silver sorts a type differently.
    """
    key = [(engine.quoted(fold.columns[i].name), fold.columns[i].type) for i in fold.key]
    for each in ranges:
        places = [column.position for column in each.columns] or range(min(each.width, len(key)))
        pairs = [(key_types[place], key[place]) for place in places]
        with_times = bool(each.columns)
        if not each.is_single and not all(
            has_same_order(oid, kind.ddl, with_times=with_times) for oid, (_, kind) in pairs
        ):
            raise KeyRangesUnusable
    return " OR ".join(f"({_condition(key, each, engine)})" for each in ranges)


def bounds_are_values(fold: Fold, ranges: Sequence[KeyRange], engine: Engine = SPARK) -> str:
    """Return SQL that is true if the silver types can hold all bounds of the ranges."""
    kinds = [fold.columns[i].type for i in fold.key]
    texts = [
        pair
        for each in ranges
        for bound in (each.first, each.last)
        for pair in zip(kinds, bound, strict=False)
    ]
    columns = [column for each in ranges for column in each.columns]
    texts += [(kinds[column.position], text) for column in columns for _, text in column.bounds]
    values = {kind.value(engine.literal(text), engine) for kind, text in texts}
    return " AND ".join(f"({value}) IS NOT NULL" for value in sorted(values)) or "true"


def _condition(key: Sequence[Column], each: KeyRange, engine: Engine) -> str:
    if each.columns:
        spans = [
            f"{name} {operator} {_value(kind, text, engine)}"
            for column in each.columns
            for name, kind in [key[column.position]]
            for operator, text in column.bounds
        ]
        return " AND ".join(spans) or "true"
    if each.is_single:
        equal = "<=>" if engine is SPARK else "IS NOT DISTINCT FROM"
        return " AND ".join(
            f"{kind.comparable(name, engine)} {equal} {_value(kind, text, engine)}"
            for (name, kind), text in zip(key, each.first, strict=False)
        )
    bounds = ((">", each.first), ("<", each.last))
    return " AND ".join(_bound(key, operator, texts, engine) for operator, texts in bounds if texts)


def _bound(key: Sequence[Column], operator: str, texts: Sequence[str], engine: Engine) -> str:
    """Return SQL for keys beyond or at a bound; the condition on the first column lets files be skipped."""
    alternatives = []
    equal = ""
    for (name, kind), text in zip(key, texts, strict=False):
        alternatives.append(f"({equal}{name} {operator} {_value(kind, text, engine)})")
        equal += f"{name} = {_value(kind, text, engine)} AND "
    alternatives.append(f"({equal.removesuffix(' AND ')})")
    name, kind = key[0]
    return f"{name} {operator}= {_value(kind, texts[0], engine)} AND ({' OR '.join(alternatives)})"


def _value(kind: SilverType, text: str, engine: Engine) -> str:
    return kind.comparable(f"({kind.value(engine.literal(text), engine)})", engine)
