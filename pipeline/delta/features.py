"""Delta table features that readers must support, what needs them, and which tables are refused."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.errors import LakeError

_NEWEST_PROTOCOL = (3, 7)  # of readers and writers
# With these a log is not all there is to a table's versions.
_UNREADABLE_FEATURES = frozenset({"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"})


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


def supported_protocol(path: str, protocol: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `protocol` action of the table at a path; raise LakeError if pgdelta does not support it."""
    if unknown := _UNREADABLE_FEATURES.intersection(protocol.get("readerFeatures") or ()):
        raise LakeError(
            f"The table in {path} has the table feature {', '.join(sorted(unknown))}, which pgdelta does not "
            "support. Run ALTER TABLE … DROP FEATURE."
        )
    found = tuple(int(protocol.get(key) or 0) for key in ("minReaderVersion", "minWriterVersion"))
    if any(version > newest for version, newest in zip(found, _NEWEST_PROTOCOL, strict=True)):
        raise LakeError(
            f"The table in {path} has version {found} of Delta's protocol (reader, writer), and pgdelta "
            f"supports up to {_NEWEST_PROTOCOL}. Another writer raised it: restore the table."
        )
    return protocol
