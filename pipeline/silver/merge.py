"""Folded rows in, one Delta write out: the typed source frame and the text of the MERGE.

The source frame names its columns by position (c0…, s0…, k0…), so that no name of a source table can collide
with ours; names appear only as quoted target columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.delta.sql import literal, quoted
from pipeline.silver.fold import FROM_SILVER, INHERITED, UNKNOWN, Fold, FoldColumn
from pipeline.silver.key_changes import base_key_names


@dataclass(frozen=True, slots=True)
class MetadataNames:
    """How the silver table names our two columns; None where it has none."""

    commit_lsn: str | None
    commit_time: str | None

    def pairs(self) -> list[tuple[str, str]]:
        """Return (silver name, source frame's name)."""
        named = ((self.commit_lsn, "commit_lsn"), (self.commit_time, "commit_time"))
        return [(name, source) for name, source in named if name is not None]


def typed(folded: DataFrame, fold: Fold) -> DataFrame:
    """Return c0… values and k0… key values of their silver types; x0… texts stay for what may not fit.

    The texts b0… of a silver row to look at pass through where `with_links` has added them.
    """
    return folded.select(
        "op",
        "commit_lsn",
        "commit_time",
        *(
            F.expr(fold.columns[i].type.value(name)).alias(name)
            for name, i in zip(fold.key_names, fold.key, strict=True)
        ),
        *(F.expr(column.type.value(f"x{i}")).alias(f"c{i}") for i, column in enumerate(fold.columns)),
        *(F.col(f"s{i}") for i in fold.partial),
        *(F.col(f"x{i}") for i in range(len(fold.columns)) if _keeps_text(fold.columns[i])),
        *(F.col(b) for b in base_key_names(fold) if b in folded.columns),
    )


def _keeps_text(column: FoldColumn) -> bool:
    return not column.type.is_total


def with_key_changes(folded: DataFrame, links: DataFrame, fold: Fold) -> DataFrame:
    """Replace what arrivals inherit by what `link` found; add b0…, the key of the silver row to look at."""
    renamed = links.select(
        *(F.col(k).alias(f"l{k}") for k in fold.key_names),
        *base_key_names(fold),
        *(F.col(f"s{i}").alias(f"ls{i}") for i in fold.partial),
        *(F.col(f"x{i}").alias(f"lx{i}") for i in fold.partial),
    )
    on = [F.col(k).eqNullSafe(F.col(f"l{k}")) for k in fold.key_names]
    replaced = {}
    for i in fold.partial:
        replaced[f"x{i}"] = F.expr(f"CASE WHEN s{i} = {INHERITED} THEN lx{i} ELSE x{i} END")
        replaced[f"s{i}"] = F.expr(
            f"CASE WHEN s{i} = {INHERITED} THEN coalesce(ls{i}, {UNKNOWN}) ELSE s{i} END"
        )
    kept = [replaced[c].alias(c) if c in replaced else F.col(c) for c in folded.columns]
    return folded.join(renamed, on, "left").select(*kept, *base_key_names(fold))


def from_silver(source: DataFrame, silver: DataFrame, fold: Fold) -> DataFrame:
    """Fill the columns in state FROM_SILVER from the silver row whose key is b0… (texts)."""
    keys = [fold.columns[i] for i in fold.key]
    rows = silver.select(
        *(F.col(quoted(column.name)).alias(f"t{i}") for i, column in enumerate(keys)),
        *(F.col(quoted(fold.columns[i].name)).alias(f"v{i}") for i in fold.partial),
        F.lit(True).alias("found"),
    )
    on = [
        F.expr(f"{_comparable(column, f'b{i}')} <=> {column.type.comparable(f't{i}')} AND b{i} IS NOT NULL")
        for i, column in enumerate(keys)
    ]
    filled = {}
    for i in fold.partial:
        filled[f"c{i}"] = F.expr(f"CASE WHEN s{i} = {FROM_SILVER} THEN v{i} ELSE c{i} END")
        filled[f"s{i}"] = F.expr(
            f"CASE WHEN s{i} = {FROM_SILVER} AND found IS NULL THEN {UNKNOWN} ELSE s{i} END"
        )
    kept = [c for c in source.columns if not (c.startswith("b") and c[1:].isdigit())]
    return source.join(rows, on, "left").select(
        *(filled[c].alias(c) if c in filled else F.col(c) for c in kept)
    )


def _comparable(column: FoldColumn, text: str) -> str:
    return column.type.comparable(f"({column.type.value(text)})")


def misfits(fold: Fold) -> str | None:
    """Return SQL for an array of struct(column_name, raw_text, policy) of what the row could not hold."""
    found = []
    for i, column in enumerate(fold.columns):
        if lost := column.type.misfit(f"x{i}", f"c{i}"):
            found.append(
                f"CASE WHEN {lost} THEN named_struct('column_name', {literal(column.name)}, "
                f"'raw_text', x{i}, 'policy', {_policy(column, f'c{i}')}) END"
            )
        # A column that the source does not have any more has nothing to send.
        if i in fold.partial and column.indexes and not column.is_sidecar:
            found.append(
                f"CASE WHEN s{i} = {UNKNOWN} AND op <> 'D' THEN named_struct('column_name', "
                f"{literal(column.name)}, 'raw_text', CAST(NULL AS STRING), 'policy', 'not sent') END"
            )
    if not found:
        return None
    return f"filter(array({', '.join(found)}), m -> m IS NOT NULL)"


def _policy(column: FoldColumn, value: str) -> str:
    """Return SQL for the word that a misfit is recorded with: nothing may be nearest to a value."""
    if column.type.lenient is None:
        return "'text'" if column.misfit == "text" else "'null'"
    return f"CASE WHEN {value} IS NULL THEN 'null' ELSE 'clamp' END"


def final_rows(source: DataFrame, fold: Fold, metadata: MetadataNames) -> DataFrame:
    """Return the living rows with silver's own names, for an append or an overwrite."""
    return source.where("op <> 'D'").select(
        *(F.col(f"c{i}").alias(column.name) for i, column in enumerate(fold.columns)),
        *(F.col(source_name).alias(name) for name, source_name in metadata.pairs()),
    )


def merge_by_key(target: str, source: str, fold: Fold, metadata: MetadataNames) -> str:
    """Return the MERGE of one row per key: delete, update what was sent, insert."""
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
    """Return SQL that is true where the target's key column i is the source's."""
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
    """Return the MERGE of whole rows: op D deletes every copy of an image, op I inserts one row."""
    return "\n".join(
        [
            f"MERGE INTO {target} t USING {source} s ON s.op = 'D' AND {image} = s.image",
            "WHEN MATCHED THEN DELETE",
            f"WHEN NOT MATCHED AND s.op = 'I' THEN {_insert(columns, metadata)}",
        ]
    )
