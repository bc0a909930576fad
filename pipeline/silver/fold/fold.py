"""The fold: reduce all changes of a table's input to at most one row per key. Its SQL expressions.

A change is one or two *steps* at a key: I insert, U update in place, D delete. A key change is D at the old
key and K, an upsert, at the new key. The last step of a key decides whether its row exists, and each column
has the value of the last step that sent it. Value, NULL and unchanged TOAST are three things: a column that
some step may not send has a state besides its text. VALUE: sent. FROM_SILVER: in the silver row at another
key. INHERITED: in the row at the old key of a key change (`fold_sql` resolves it). UNKNOWN: not sent for
a new row, so its value is missing. NULL: no step sent it, and silver keeps its value.

Steps are in the order of their sequence key `(commit_lsn, ordinal)`; within a key change, D precedes K.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.bronze.table_input import SequenceKey, TruncatedAt
from pipeline.config.tables import RowMode
from pipeline.engine import SPARK, Engine
from pipeline.silver.types.text_parsers import SilverType

VALUE, UNKNOWN, INHERITED, FROM_SILVER = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class FoldColumn:
    """A column of the silver table, and its index in the tuples of each relation version."""

    name: str
    type: SilverType
    indexes: Mapping[int, int]  # relation version → 0-based index
    is_partial: bool = False  # some step may not send it: unchanged TOAST, or a version without it
    missing_value: str | None = None  # of rows that are older than ADD COLUMN … DEFAULT
    missing_before: SequenceKey | None = None  # later rows lack it as it was dropped; None: all are older
    misfit: str = "null"  # the policy for texts that do not fit
    is_sidecar: bool = False  # it has the misfits of another column as text
    has_many_spellings: bool = False  # one value has several texts, as `1.0` and `1.00` of a DECIMAL
    has_other_types: bool = False  # at the source; several of their values may be one of silver's type
    widened: frozenset[int] = frozenset()  # the relation versions in which a DOUBLE has texts of a real

    def text(self, version: int, text: str, engine: Engine) -> str:
        """Return SQL for the text that silver's type reads, of one in a tuple of a relation version."""
        return engine.widened(text) if version in self.widened else text

    def missing_text(self, engine: Engine, ordinal: str = "ordinal") -> str:
        """Return SQL for the text of a row whose relation version lacks the column: its default, or NULL."""
        if self.missing_value is None:
            return "CAST(NULL AS STRING)"
        text = engine.literal(self.missing_value)
        if self.missing_before is None:
            return text
        lsn, place = self.missing_before
        is_older = f"commit_lsn < {lsn} OR (commit_lsn = {lsn} AND {ordinal} < {place})"
        return f"CASE WHEN {is_older} THEN {text} END"


@dataclass(frozen=True, slots=True)
class Fold:
    """The columns, key and relation versions with which a run of changes is folded."""

    columns: tuple[FoldColumn, ...]
    key: tuple[int, ...]  # indexes into columns
    versions: tuple[int, ...]
    has_key_changes: bool = True
    mode: RowMode = "mirror"
    ignores_deletes: bool = False
    has_intermediate: bool = False  # versions that a transaction ends itself
    truncates: tuple[TruncatedAt, ...] = ()  # in order; in modes that keep the rows that are gone
    current_column: str | None = None  # that shows which rows of silver are not gone, in such modes

    @property
    def partial(self) -> tuple[int, ...]:
        """The indexes of the columns, except those of the key, that some step may not send."""
        return tuple(i for i, c in enumerate(self.columns) if c.is_partial and i not in self.key)

    @property
    def may_merge_keys(self) -> bool:
        """Whether keys of the source may be one in silver, whose type of a column is another."""
        return any(self.columns[i].has_other_types for i in self.key)

    @property
    def key_names(self) -> list[str]:
        """The names of the key's texts in frames: k0, k1, …"""
        return [f"k{i}" for i in range(len(self.key))]


def column_state(fold: Fold, i: int, engine: Engine = SPARK) -> str:
    """Return SQL for the struct (state, text) of column i after a step."""
    sent = is_sent(fold, i, engine)
    new = pick(fold, i, "new", engine=engine)
    text = f"CASE WHEN step <> 'D' AND {sent} THEN {new} ELSE {_missing(fold, i, engine)} END"
    state = (
        f"CASE WHEN step = 'D' THEN {UNKNOWN} WHEN {sent} THEN {VALUE} "
        f"WHEN step = 'K' THEN {INHERITED} WHEN {is_present(fold, i)} THEN {UNKNOWN} ELSE {VALUE} END"
    )
    return engine.struct({"state": state, "text": text})


def _missing(fold: Fold, i: int, engine: Engine) -> str:
    """Return SQL for the text of column i after a step that does not send it: what an older row has."""
    text = fold.columns[i].missing_text(engine, "sequence_key.ordinal")
    if fold.columns[i].missing_value is None:
        return text
    return f"CASE WHEN step = 'I' AND NOT {is_present(fold, i)} THEN {text} END"


def pick(
    fold: Fold,
    i: int,
    values: str,
    version_column: str = "relation_version",
    engine: Engine = SPARK,
) -> str:
    """Return SQL for the text of column i in a tuple of any of the fold's relation versions."""
    column = fold.columns[i]
    indexes = column.indexes
    texts = {version: column.text(version, engine.get(values, at), engine) for version, at in indexes.items()}
    if len(set(texts.values())) == 1 and len(indexes) == len(fold.versions):
        return texts.popitem()[1]
    if not indexes:
        return "CAST(NULL AS STRING)"
    cases = " ".join(f"WHEN {version} THEN {text}" for version, text in texts.items())
    return f"CASE {version_column} {cases} END"


def pick_or_missing(fold: Fold, i: int, values: str, engine: Engine = SPARK) -> str:
    """Return SQL like `pick`, with the default of a later ADD COLUMN for versions without the column."""
    column, text = fold.columns[i], pick(fold, i, values, engine=engine)
    if column.missing_value is None or len(column.indexes) == len(fold.versions):
        return text
    return f"CASE WHEN {is_present(fold, i)} THEN {text} ELSE {column.missing_text(engine)} END"


def is_present(fold: Fold, i: int) -> str:
    """Return SQL that is true if the change's relation version has column i."""
    indexes = fold.columns[i].indexes
    if len(indexes) == len(fold.versions):
        return "true"
    return f"relation_version IN ({', '.join(map(str, indexes))})" if indexes else "false"


def is_sent(fold: Fold, i: int, engine: Engine = SPARK) -> str:
    """Return SQL that is true if the new tuple of a change has a value or NULL for column i."""
    if not fold.columns[i].is_partial:
        return "true"
    cases = " ".join(f"WHEN {version} THEN {index}" for version, index in fold.columns[i].indexes.items())
    if not cases:
        return "false"
    is_unsent = engine.contains("unsent", f"CASE relation_version {cases} END")
    return f"({is_present(fold, i)} AND NOT coalesce({is_unsent}, false))"


def key_text(fold: Fold, i: int, side: str, engine: Engine = SPARK) -> str:
    """Return SQL for the text of key column i; if it is unchanged TOAST, only the old tuple has it."""
    text = pick(fold, i, side, engine=engine)
    if side == "new" and fold.columns[i].is_partial:
        old = pick(fold, i, "old", engine=engine)
        text = f"CASE WHEN {is_sent(fold, i, engine)} THEN {text} ELSE {old} END"
    column = fold.columns[i]
    return column.type.key_text(text, engine, has_many_spellings=column.has_many_spellings)
