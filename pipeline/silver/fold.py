"""All changes of a table's input in, at most one row per key out.

A change becomes one or two *steps* at a key: I insert, U update in place, D delete, and for a changed key D
at the old key and A (arrival) at the new one. The last step of a key says whether its row lives; its values
are those of the last step that sent each column. A column that no step of the row's life sent is *kept* from
the silver row; one that an arrival did not send is *inherited* from the row at its old key (see `link`); one
that an insert did not send is *unknown*. Value, NULL and not-sent stay three things: each column that may be
unsent carries a state beside its text.

Rows order by `(commit_lsn, ordinal)` and, within a changed key, the departure before the arrival.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.delta.sql import literal
from pipeline.silver.text_parsers import SilverType

VALUE, UNKNOWN, INHERITED, FROM_SILVER = 0, 1, 2, 3  # the state of a column; NULL: kept from silver


@dataclass(frozen=True, slots=True)
class FoldColumn:
    """A column of the silver table, and where each relation version has it."""

    name: str
    type: SilverType
    indexes: Mapping[int, int]  # relation version → 0-based position in its tuples
    is_partial: bool = False  # some change may not send it: unchanged TOAST, or a version without it
    missing_value: str | None = None  # what rows from before ADD COLUMN … DEFAULT hold
    misfit: str = "null"  # what becomes of texts that do not fit
    is_sidecar: bool = False  # it holds such texts of another column
    has_many_spellings: bool = False  # one value may come as several texts: `1.0` and `1.00`, of a DECIMAL


@dataclass(frozen=True, slots=True)
class Fold:
    """What is needed to fold one run of changes under one key."""

    columns: tuple[FoldColumn, ...]
    key: tuple[int, ...]  # indexes into columns
    versions: tuple[int, ...]
    has_key_changes: bool = True

    @property
    def partial(self) -> tuple[int, ...]:
        """Return the indexes of the columns that some change may not send; a key's value is its key text."""
        return tuple(i for i, c in enumerate(self.columns) if c.is_partial and i not in self.key)

    @property
    def key_names(self) -> list[str]:
        """Return the names of the key's texts in the folded frame."""
        return [f"k{i}" for i in range(len(self.key))]


def column_state(fold: Fold, i: int) -> str:
    """Return SQL for struct(state, text) of column i as a step leaves it."""
    sent = is_sent(fold, i)
    text = f"CASE WHEN step <> 'D' AND {sent} THEN {pick(fold, i, 'new')} ELSE {_missing(fold, i)} END"
    state = (
        f"CASE WHEN step = 'D' THEN {UNKNOWN} WHEN {sent} THEN {VALUE} "
        f"WHEN step = 'A' THEN {INHERITED} WHEN {is_present(fold, i)} THEN {UNKNOWN} ELSE {VALUE} END"
    )
    return f"struct({state} AS state, {text} AS text)"


def _missing(fold: Fold, i: int) -> str:
    """Return the text that a row born without the column holds: the default of its ADD COLUMN, or NULL."""
    value = fold.columns[i].missing_value
    if value is None:
        return "CAST(NULL AS STRING)"
    return f"CASE WHEN step = 'I' AND NOT {is_present(fold, i)} THEN {literal(value)} END"


def pick(fold: Fold, i: int, values: str, version: str = "relation_version") -> str:
    """Return SQL for the text of column i in a tuple of any of the fold's versions."""
    positions = fold.columns[i].indexes
    # Spark's ANSI mode raises for values[i] beyond the end; get() gives NULL.
    places = set(positions.values())
    if len(places) == 1 and len(positions) == len(fold.versions):
        return f"get({values}, {places.pop()})"
    if not positions:
        return "CAST(NULL AS STRING)"
    cases = " ".join(f"WHEN {v} THEN get({values}, {p})" for v, p in positions.items())
    return f"CASE {version} {cases} END"


def pick_or_missing(fold: Fold, i: int, values: str) -> str:
    """Return SQL like `pick`, with the default of a later ADD COLUMN for rows from before it."""
    value, text = fold.columns[i].missing_value, pick(fold, i, values)
    if value is None or len(fold.columns[i].indexes) == len(fold.versions):
        return text
    return f"CASE WHEN {is_present(fold, i)} THEN {text} ELSE {literal(value)} END"


def is_present(fold: Fold, i: int) -> str:
    """Return SQL that is true where the change's relation version has column i."""
    positions = fold.columns[i].indexes
    if len(positions) == len(fold.versions):
        return "true"
    return f"relation_version IN ({', '.join(map(str, positions))})" if positions else "false"


def is_sent(fold: Fold, i: int) -> str:
    """Return SQL that is true where the change's new tuple has a value or NULL for column i."""
    if not fold.columns[i].is_partial:
        return "true"
    cases = " ".join(f"WHEN {v} THEN {p}" for v, p in fold.columns[i].indexes.items())
    if not cases:
        return "false"
    position = f"CASE relation_version {cases} END"
    return f"({is_present(fold, i)} AND NOT coalesce(array_contains(unsent, {position}), false))"


def key_text(fold: Fold, i: int, side: str) -> str:
    """Return SQL for the key column's text; a key that is itself unchanged TOAST is only in the old tuple."""
    text = pick(fold, i, side)
    if side == "new" and fold.columns[i].is_partial:
        text = f"CASE WHEN {is_sent(fold, i)} THEN {text} ELSE {pick(fold, i, 'old')} END"
    if fold.columns[i].has_many_spellings:
        text = _one_spelling(text, fold.columns[i].type.ddl)
    if fold.columns[i].type.ddl in {"FLOAT", "DOUBLE"}:
        # PostgreSQL's unique index takes -0 and 0 for the same key.
        text = f"CASE WHEN {text} = '-0' THEN '0' ELSE {text} END"
    if fold.columns[i].type.ddl in {"ARRAY<FLOAT>", "ARRAY<DOUBLE>"}:
        text = f"regexp_replace({text}, r'(?<=[{{,])-0(?=[,}}])', '0')"
    return text


def _one_spelling(text: str, ddl: str) -> str:
    """Return SQL for a text that is the same for all texts of one number, or of one date."""
    if ddl == "TIMESTAMP_NTZ":
        return f"regexp_replace({text}, ' 00:00:00$', '')"
    without_zeros = rf"regexp_replace({text}, r'^(-?\d+\.\d*?)0+$', '$1')"
    return rf"regexp_replace({without_zeros}, r'\.$', '')"
