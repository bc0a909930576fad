"""Delta table features that readers must support, and what needs them."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Feature(enum.Enum):
    """A Delta table feature that readers must support: the property that enables it, and its value.

    Some readers outside Spark support few of them, so each is enabled only for a table that needs it.
    """

    COLUMN_MAPPING = ("delta.columnMapping.mode", "name")
    TYPE_WIDENING = ("delta.enableTypeWidening", "true")
    TIMESTAMP_NTZ = ("delta.feature.timestampNtz", "supported")


WIDENED = "delta.typeChanges"
"""The key of a column's metadata that names the types from which the column was widened."""


def features_of(ddl: str) -> tuple[Feature, ...]:
    """Return the features that a type needs; Delta enables them by itself only when it creates a table."""
    return (Feature.TIMESTAMP_NTZ,) if "TIMESTAMP_NTZ" in ddl else ()


# Delta accepts these in column names with column mapping only.
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")


def needs_column_mapping(names: Iterable[str]) -> bool:
    """Return whether a column name needs column mapping, which some readers outside Spark refuse."""
    return any(_NEEDS_MAPPING & set(name) for name in names)
