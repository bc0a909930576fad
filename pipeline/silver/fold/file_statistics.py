"""Columns whose file statistics are reliable, whichever writer produced them. Pure."""

from __future__ import annotations

import re

from pipeline.silver.fold.fold import Fold

TIMES = frozenset({"TIMESTAMP", "TIMESTAMP_NTZ"})
_OTHERS = frozenset({"SMALLINT", "INT", "BIGINT", "STRING", "DATE"})
# other writers round the statistics of wider ones
_DECIMAL = re.compile(r"DECIMAL\((\d|1[0-5]),\d+\)")


def has_sure_bounds(ddl: str) -> bool:
    """Return whether the statistics of a column of this type show where a value is."""
    return ddl in TIMES or ddl in _OTHERS or _DECIMAL.fullmatch(ddl) is not None


def has_sure_column(fold: Fold) -> bool:
    """Return whether the statistics of a column show which files may have a row."""
    return any(column.indexes and has_sure_bounds(column.type.ddl) for column in fold.columns)
