"""The SQL of a MERGE of folded rows, and of what it compares and records. Pure text.

The source frame numbers its columns (c0…, s0…, k0…), so that no name of a source table can collide with them;
names appear only as quoted columns of the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.delta.sql import literal, quoted
from pipeline.silver.fold import UNKNOWN, Fold, FoldColumn


@dataclass(frozen=True, slots=True)
class MetadataNames:
    """The names of pgdelta's two columns in a silver table, None if it does not have them."""

    commit_lsn: str | None
    commit_time: str | None

    def pairs(self) -> list[tuple[str, str]]:
        """Return pairs of the silver name and the source frame's name."""
        named = ((self.commit_lsn, "commit_lsn"), (self.commit_time, "commit_time"))
        return [(name, source) for name, source in named if name is not None]


def misfits(fold: Fold) -> str | None:
    """Return SQL for an array of struct(column_name, raw_text, policy), None if no value can misfit."""
    found = []
    for i, column in enumerate(fold.columns):
        if lost := column.type.misfit(f"x{i}", f"c{i}"):
            found.append(
                f"CASE WHEN {lost} THEN named_struct('column_name', {literal(column.name)}, "
                f"'raw_text', x{i}, 'policy', {_policy(column, f'c{i}')}) END"
            )
        # The source never sends a column that it does not have any more.
        if i in fold.partial and column.indexes and not column.is_sidecar:
            found.append(
                f"CASE WHEN s{i} = {UNKNOWN} AND op <> 'D' THEN named_struct('column_name', "
                f"{literal(column.name)}, 'raw_text', CAST(NULL AS STRING), 'policy', 'not sent') END"
            )
    if not found:
        return None
    return f"filter(array({', '.join(found)}), m -> m IS NOT NULL)"


def _policy(column: FoldColumn, value: str) -> str:
    """Return SQL for the policy that was applied to a misfit; a clamped value may have no nearest one."""
    if column.type.lenient is None:
        return "'text'" if column.misfit == "text" else "'null'"
    return f"CASE WHEN {value} IS NULL THEN 'null' ELSE 'clamp' END"


def merge_by_key(target: str, source: str, fold: Fold, metadata: MetadataNames) -> str:
    """Return the MERGE of one row per key: it deletes, updates what was sent, or inserts."""
    on = " AND ".join(same_key(fold, name, i) for name, i in zip(fold.key_names, fold.key, strict=True))
    updates = [f"t.{quoted(column.name)} = {_updated(fold, i)}" for i, column in enumerate(fold.columns)]
    updates += [f"t.{quoted(name)} = s.{source_name}" for name, source_name in metadata.pairs()]
    return "\n".join(
        [
            f"MERGE INTO {target} t USING {source} s ON {on}",
            "WHEN MATCHED AND s.op = 'D' THEN DELETE",
            f"WHEN MATCHED THEN UPDATE SET {', '.join(updates)}",
            f"WHEN NOT MATCHED AND s.op <> 'D' THEN {_insert(fold.columns, metadata)}",
        ]
    )


def same_key(fold: Fold, name: str, i: int) -> str:
    """Return SQL that is true if key column i of target and source are equal."""
    column = fold.columns[i]
    target = column.type.comparable(f"t.{quoted(column.name)}")
    return f"{target} <=> {column.type.comparable(f's.{name}')}"


def _updated(fold: Fold, i: int) -> str:
    if i in fold.partial:
        return f"CASE WHEN s.s{i} IS NULL THEN t.{quoted(fold.columns[i].name)} ELSE s.c{i} END"
    return f"s.c{i}"


def _insert(columns: Sequence[FoldColumn], metadata: MetadataNames) -> str:
    names = [quoted(column.name) for column in columns] + [quoted(name) for name, _ in metadata.pairs()]
    values = [f"s.c{i}" for i in range(len(columns))] + [f"s.{source}" for _, source in metadata.pairs()]
    return f"INSERT ({', '.join(names)}) VALUES ({', '.join(values)})"


def merge_by_image(
    target: str, source: str, image: str, columns: Sequence[FoldColumn], metadata: MetadataNames
) -> str:
    """Return the MERGE of whole rows: op D deletes all rows with an image, op I inserts one row."""
    return "\n".join(
        [
            f"MERGE INTO {target} t USING {source} s ON s.op = 'D' AND {image} = s.image",
            "WHEN MATCHED THEN DELETE",
            f"WHEN NOT MATCHED AND s.op = 'I' THEN {_insert(columns, metadata)}",
        ]
    )


def image_of_texts(columns: Sequence[FoldColumn]) -> str:
    """Return SQL for the canonical image of a row of texts x0…."""
    fields = [
        f"'q{i}', {column.type.canonical(f'x{i}')}" for i, column in enumerate(columns) if column.indexes
    ]
    return f"to_json(named_struct({', '.join(fields)}))" if fields else "'{}'"


def image_of_row(columns: Sequence[FoldColumn], alias: str) -> str:
    """Return SQL for the canonical image of a row of the silver table."""
    fields = [
        f"'q{i}', {column.type.canonical_value(f'{alias}.{quoted(column.name)}')}"
        for i, column in enumerate(columns)
        if column.indexes
    ]
    return f"to_json(named_struct({', '.join(fields)}))" if fields else "'{}'"
