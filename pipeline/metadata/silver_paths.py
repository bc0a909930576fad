"""Where silver tables are, below the root of the lake: `silver/…`, or `archive/…` once they are detached.

A lake may be moved or copied, and what it recorded has the paths of its former root. Records are read with
current paths; nothing else may follow the recorded ones, which may lead into another lake.
"""

from typing import Any

from pipeline.delta.names import path_segment
from pipeline.table_name import TableName

IN_LAKE = "_parts"
"""The folder, in that of a shared table of the lake, which has its sources' tables."""
OUTSIDE = "_shards"
"""The same of a shared table in `silver.shared_root`."""
PARENT, DESCENDANTS = OF_UNION = ("_parent", "_descendants")
"""The same of a union: the folder of the parent's table, and that of those that inherit from it."""


def resolve_path(path: str, name: TableName, root: str) -> str:
    """Return the current path, under the lake's root, of a table that was recorded at a path.

    The path ends in `silver/<schema>/<table>`, `silver/<target>` or `archive/<schema>/…`, after the former
    root, or in `silver/<target>/<folder>/<source>` below a shared table.
    """
    if path.startswith((f"{root}/silver/", f"{root}/archive/")):  # a former root may be below the root
        return path
    segments = path.split("/")
    default = ["silver", *map(path_segment, name)]
    is_archived = segments[-3:-1] == ["archive", path_segment(name[0])]
    kept = segments[-3:] if is_archived or segments[-3:] == default else segments[-2:]
    if segments[-2] in (IN_LAKE, *OF_UNION):
        kept = segments[-4:]
    return "/".join([root, *kept]) if kept[0] in ("silver", "archive") else path


def at_current_path(row: dict[str, Any], root: str) -> dict[str, Any]:
    """Return a row that records the path of a table, with its current path."""
    name = TableName(row["schema_name"], row["table_name"])
    return row | {"path": resolve_path(row["path"], name, root)}
