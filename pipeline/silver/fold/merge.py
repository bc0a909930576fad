"""What folded rows do to the rows of a silver table, in each mode: the only place that says it. Pure.

Folded rows `s` are joined to rows `t` of the table. Spark runs a merge as a statement; without Spark it is
resolved to places of rows (`native_target`), and a live read of Spark to a frame (`frame_target`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.delta.sql import quoted
from pipeline.engine import SPARK, Engine
from pipeline.silver.fold.fold import Fold, FoldColumn
from pipeline.silver.fold.modes import MARKINGS, MetadataNames, truncate_marks

GONE = "s.op = 'D'"


@dataclass(frozen=True, slots=True)
class Truncated:
    """What rows `t` that a TRUNCATE removed get: SQL by column, where a condition on `t` is true."""

    condition: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Merge:
    """At most one row `s` has an effect on each row `t`, by what they have in common (`same`).

    A row `s` that is gone removes its `t`, or sets the columns `marks` of it. Any other one replaces its `t`,
    which keeps the values of `kept` (unchanged TOAST); it is inserted if it has none, and always if
    `has_updates` is false. `truncated` is what happens to rows `t` without an `s`.
    """

    same: str
    values: Mapping[str, str]  # silver's columns → those of folded rows
    marks: Sequence[str] | None = None
    kept: Mapping[str, str] = field(default_factory=dict)  # silver's columns → SQL on `s`
    has_updates: bool = True
    truncated: Truncated | None = None

    @property
    def on(self) -> str:
        """SQL that is true if a row `s` has an effect on a row `t`."""
        return self.same if self.has_updates else f"{GONE} AND {self.same}"

    def statement(self, target: str, source: str, bounds: str | None = None) -> str:
        """Return the MERGE; `bounds` is SQL that is true for all rows `t` which it may change."""
        on = f"{self.on} AND {bounds}" if bounds else self.on
        lines = [f"MERGE INTO {target} t USING {source} s ON {on}"]
        gone = "DELETE"
        if self.marks is not None:
            gone = _update({name: f"s.{self.values[name]}" for name in self.marks})
        if self.has_updates:
            lines.append(f"WHEN MATCHED AND {GONE} THEN {gone}")
            lines.append(f"WHEN MATCHED THEN {_update({name: self._updated(name) for name in self.values})}")
        else:
            lines.append(f"WHEN MATCHED THEN {gone}")
        names, values = ", ".join(map(quoted, self.values)), ", ".join(f"s.{v}" for v in self.values.values())
        lines.append(f"WHEN NOT MATCHED AND s.op <> 'D' THEN INSERT ({names}) VALUES ({values})")
        if self.truncated:
            update = _update(self.truncated.values)
            lines.append(f"WHEN NOT MATCHED BY SOURCE AND {self.truncated.condition} THEN {update}")
        return "\n".join(lines)

    def _updated(self, name: str) -> str:
        value = f"s.{self.values[name]}"
        if name not in self.kept:
            return value
        return f"CASE WHEN {self.kept[name]} THEN t.{quoted(name)} ELSE {value} END"


def _update(values: Mapping[str, str]) -> str:
    return f"UPDATE SET {', '.join(f't.{quoted(name)} = {value}' for name, value in values.items())}"


def merge_by_key(fold: Fold, metadata: MetadataNames, engine: Engine = SPARK) -> Merge:
    """Return the merge of one folded row per key, in the fold's mode."""
    same = same_keys(fold, engine)
    values = _values(fold.columns, metadata)
    kept = {fold.columns[i].name: f"s.s{i} IS NULL" for i in fold.partial}
    if fold.mode not in MARKINGS:
        return Merge(same, values, kept=kept)
    columns = MARKINGS[fold.mode].columns
    marks = [name for name, column in metadata.pairs() if column in columns]
    truncated = None
    if fold.truncates:  # the first one: those after it find no more rows
        set_values = truncate_marks(fold.mode, fold.truncates[0], engine)
        sets = {name: set_values[values[name]] for name in marks}
        truncated = Truncated(current_rows(fold, engine), sets)
    if fold.mode == "history":  # a version that begins is a row of its own
        same = f"{current_rows(fold, engine)} AND {same}"
        return Merge(same, values, marks, has_updates=False, truncated=truncated)
    return Merge(same, values, marks, kept, truncated=truncated)


def merge_by_image(image: str, columns: Sequence[FoldColumn], metadata: MetadataNames) -> Merge:
    """Return the merge of complete rows, given the image of a row `t`: op D removes all rows that have it."""
    return Merge(f"{image} = s.image", _values(columns, metadata), has_updates=False)


def _values(columns: Sequence[FoldColumn], metadata: MetadataNames) -> dict[str, str]:
    return {column.name: f"c{i}" for i, column in enumerate(columns)} | dict(metadata.pairs())


def current_rows(fold: Fold, engine: Engine = SPARK) -> str:
    """Return SQL that is true for the rows `t` of a target that are not gone, in a mode that keeps those."""
    assert fold.current_column is not None
    return MARKINGS[fold.mode].is_current(f"t.{engine.quoted(fold.current_column)}")


def same_keys(fold: Fold, engine: Engine = SPARK) -> str:
    """Return SQL that is true if the keys of a row `t` and of `s` are equal."""
    equal = "<=>" if engine is SPARK else "IS NOT DISTINCT FROM"
    pairs = []
    for name, i in zip(fold.key_names, fold.key, strict=True):
        column = fold.columns[i]
        target = column.type.comparable(f"t.{engine.quoted(column.name)}", engine)
        pairs.append(f"{target} {equal} {column.type.comparable(f's.{name}', engine)}")
    return " AND ".join(pairs)
