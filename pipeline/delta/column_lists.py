"""Properties of a Delta table whose value is a list of its columns, as Spark's SQL writes names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

STATISTICS_COLUMNS = "delta.dataSkippingStatsColumns"
"""The property with the columns that data files have statistics of."""

_NAME = re.compile(r"\s*((?:`(?:[^`]|``)*`|[^,`])+)\s*(?:,|$)")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def split_columns(value: str) -> list[str]:
    """Return the names in a list of columns."""
    texts = (found.group(1).strip() for found in _NAME.finditer(value))
    return [text[1:-1].replace("``", "`") if text.startswith("`") else text for text in texts]


def join_columns(names: Sequence[str]) -> str:
    """Return a list of columns."""
    return ",".join(name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`" for name in names)


def with_column_names(configuration: Mapping[str, str], names: Mapping[str, str | None]) -> dict[str, str]:
    """Return properties after columns were renamed, or dropped (None), as Spark's ALTER TABLE leaves them."""
    value = configuration.get(STATISTICS_COLUMNS)
    if value is None:
        return dict(configuration)
    before = split_columns(value)
    if names.keys().isdisjoint(before):
        return dict(configuration)
    after = [name for name in (names.get(each, each) for each in before) if name is not None]
    return {**configuration, STATISTICS_COLUMNS: join_columns(after)}
