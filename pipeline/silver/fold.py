"""The fold: reduce all changes of a table's input to at most one row per key. Its SQL expressions.

A change is one or two *steps* at a key: I insert, U update in place, D delete. A key change is D at the old
key and K, an upsert, at the new key. The last step of a key decides whether its row exists, and each column
has the value of the last step that sent it. Value, NULL and unchanged TOAST are three things: a column that
some step may not send has a state besides its text. VALUE: sent. FROM_SILVER: in the silver row at another
key. INHERITED: in the row at the old key of a key change (`follow_key_changes` resolves it). UNKNOWN: not
sent for a new row, so its value is missing. NULL: no step sent it, and silver keeps its value.

Steps are in the order of their sequence key `(commit_lsn, ordinal)`; within a key change, D precedes K.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.delta.sql import literal
from pipeline.silver.text_parsers import SilverType

VALUE, UNKNOWN, INHERITED, FROM_SILVER = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class FoldColumn:
    """A column of the silver table, and its index in the tuples of each relation version."""

    name: str
    type: SilverType
    indexes: Mapping[int, int]  # relation version → 0-based index
    is_partial: bool = False  # some step may not send it: unchanged TOAST, or a version without it
    missing_value: str | None = None  # of rows that are older than ADD COLUMN … DEFAULT
    misfit: str = "null"  # the policy for texts that do not fit
    is_sidecar: bool = False  # it has the misfits of another column as text
    has_many_spellings: bool = False  # one value has several texts, as `1.0` and `1.00` of a DECIMAL


@dataclass(frozen=True, slots=True)
class Fold:
    """The columns, key and relation versions with which a run of changes is folded."""

    columns: tuple[FoldColumn, ...]
    key: tuple[int, ...]  # indexes into columns
    versions: tuple[int, ...]
    has_key_changes: bool = True

    @property
    def partial(self) -> tuple[int, ...]:
        """The indexes of the columns, except those of the key, that some step may not send."""
        return tuple(i for i, c in enumerate(self.columns) if c.is_partial and i not in self.key)

    @property
    def key_names(self) -> list[str]:
        """The names of the key's texts in frames: k0, k1, …"""
        return [f"k{i}" for i in range(len(self.key))]


def column_state(fold: Fold, i: int) -> str:
    """Return SQL for struct(state, text) of column i after a step."""
    sent = is_sent(fold, i)
    text = f"CASE WHEN step <> 'D' AND {sent} THEN {pick(fold, i, 'new')} ELSE {_missing(fold, i)} END"
    state = (
        f"CASE WHEN step = 'D' THEN {UNKNOWN} WHEN {sent} THEN {VALUE} "
        f"WHEN step = 'K' THEN {INHERITED} WHEN {is_present(fold, i)} THEN {UNKNOWN} ELSE {VALUE} END"
    )
    return f"struct({state} AS state, {text} AS text)"


def _missing(fold: Fold, i: int) -> str:
    """Return SQL for the text of column i in a row from before the column: its default, or NULL."""
    value = fold.columns[i].missing_value
    if value is None:
        return "CAST(NULL AS STRING)"
    return f"CASE WHEN step = 'I' AND NOT {is_present(fold, i)} THEN {literal(value)} END"


def pick(fold: Fold, i: int, values: str, version_column: str = "relation_version") -> str:
    """Return SQL for the text of column i in a tuple of any of the fold's relation versions."""
    indexes = fold.columns[i].indexes
    # In ANSI mode, values[i] raises an error for a missing element; get() returns NULL.
    distinct = set(indexes.values())
    if len(distinct) == 1 and len(indexes) == len(fold.versions):
        return f"get({values}, {distinct.pop()})"
    if not indexes:
        return "CAST(NULL AS STRING)"
    cases = " ".join(f"WHEN {version} THEN get({values}, {index})" for version, index in indexes.items())
    return f"CASE {version_column} {cases} END"


def pick_or_missing(fold: Fold, i: int, values: str) -> str:
    """Return SQL like `pick`, with the default of a later ADD COLUMN for versions without the column."""
    value, text = fold.columns[i].missing_value, pick(fold, i, values)
    if value is None or len(fold.columns[i].indexes) == len(fold.versions):
        return text
    return f"CASE WHEN {is_present(fold, i)} THEN {text} ELSE {literal(value)} END"


def is_present(fold: Fold, i: int) -> str:
    """Return SQL that is true if the change's relation version has column i."""
    indexes = fold.columns[i].indexes
    if len(indexes) == len(fold.versions):
        return "true"
    return f"relation_version IN ({', '.join(map(str, indexes))})" if indexes else "false"


def is_sent(fold: Fold, i: int) -> str:
    """Return SQL that is true if the new tuple of a change has a value or NULL for column i."""
    if not fold.columns[i].is_partial:
        return "true"
    cases = " ".join(f"WHEN {version} THEN {index}" for version, index in fold.columns[i].indexes.items())
    if not cases:
        return "false"
    index = f"CASE relation_version {cases} END"
    return f"({is_present(fold, i)} AND NOT coalesce(array_contains(unsent, {index}), false))"


def key_text(fold: Fold, i: int, side: str) -> str:
    """Return SQL for the text of key column i; if it is unchanged TOAST, only the old tuple has it."""
    text = pick(fold, i, side)
    if side == "new" and fold.columns[i].is_partial:
        text = f"CASE WHEN {is_sent(fold, i)} THEN {text} ELSE {pick(fold, i, 'old')} END"
    if fold.columns[i].has_many_spellings:
        text = _one_spelling(text, fold.columns[i].type.ddl)
    if fold.columns[i].type.ddl in {"FLOAT", "DOUBLE"}:
        # -0 and 0 are equal in PostgreSQL's unique index.
        text = f"CASE WHEN {text} = '-0' THEN '0' ELSE {text} END"
    if fold.columns[i].type.ddl in {"ARRAY<FLOAT>", "ARRAY<DOUBLE>"}:
        text = f"regexp_replace({text}, r'(?<=[{{,])-0(?=[,}}])', '0')"
    return text


def _one_spelling(text: str, ddl: str) -> str:
    """Return SQL for the one canonical text of a number or a date."""
    if ddl == "TIMESTAMP_NTZ":
        return f"regexp_replace({text}, ' 00:00:00$', '')"
    without_zeros = rf"regexp_replace({text}, r'^(-?\d+\.\d*?)0+$', '$1')"
    return rf"regexp_replace({without_zeros}, r'\.$', '')"
