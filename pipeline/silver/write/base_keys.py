"""The SQL by which copies of keys become a part of a table's base. Pure.

A copy first deletes the keys of its ranges. The condition is that by which apply replaces silver's rows, here
in DuckDB, on the texts of keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.source_relations import SourceRelation
from pipeline.config.tables import TableRule
from pipeline.engine import DUCKDB
from pipeline.silver.fold.fold import Fold, FoldColumn
from pipeline.silver.fold.write import bounds_are_values, key_range_condition
from pipeline.silver.types.types import column_type

_RULE = TableRule("*")


class KeyRangeSql:
    """SQL about the key ranges of one copy, on the key's texts; `relation` has the key's columns and types.

    Raises KeyRangesUnusable if silver sorts a type of the key differently.
    """

    def __init__(self, copy: CompleteCopy, relation: SourceRelation) -> None:
        self._copy = copy
        self._relation = relation
        self._positions = [i for i, column in enumerate(relation.columns) if column.name in relation.key]
        columns = [relation.columns[i] for i in self._positions]
        folded = tuple(FoldColumn(column.name, column_type(column, _RULE), {}) for column in columns)
        self._fold = Fold(folded, tuple(range(len(folded))), ())
        self._condition = key_range_condition(self._fold, relation.key_types, copy.key_ranges, DUCKDB)

    def bounds_are_values(self) -> str:
        """Return SQL that is true if silver can hold all bounds."""
        return bounds_are_values(self._fold, self._copy.key_ranges, DUCKDB)

    def rows_outside(self, rows: str) -> str:
        """Return the query for rows of the relation version whose key is outside of the ranges."""
        typed = self._typed(rows, [f"new[{i + 1}]" for i in self._positions])
        return f"SELECT 1 FROM ({typed}) AS r WHERE NOT coalesce({self._condition}, false)"

    def keys_inside(self, keys: str, names: Sequence[str]) -> str:
        """Return the query for the keys in the ranges, as the old tuples of deletes.

        `names` are the columns of `keys` that have the texts of the key.
        """
        texts = dict(zip(self._positions, names, strict=True))
        old = ", ".join(texts.get(i, "NULL") for i in range(len(self._relation.columns)))
        typed = self._typed(keys, names, f"[{old}]::VARCHAR[] AS deleted_key, ")
        return f"SELECT deleted_key FROM ({typed}) AS r WHERE coalesce({self._condition}, false)"

    def _typed(self, source: str, texts: Sequence[str], others: str = "") -> str:
        values = (
            f"{column.type.value(text, DUCKDB)} AS {DUCKDB.quoted(column.name)}"
            for column, text in zip(self._fold.columns, texts, strict=True)
        )
        return f"SELECT {others}{', '.join(values)} FROM ({source}) AS s"
