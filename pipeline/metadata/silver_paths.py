"""Where silver tables are, below the root of the lake: `silver/…`, or `archive/…` once they are detached.

A lake may be moved or copied, and what it recorded has the paths of its former root. Records are read with
current paths; nothing else may follow the recorded ones, which may lead into another lake.
"""

import re
from collections.abc import Collection
from typing import Any

from pipeline.delta.filesystem import folders_in
from pipeline.delta.names import path_segment
from pipeline.delta.table import Lake, LakeTable
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


def archived_table(lake: Lake, name: TableName, number: int) -> LakeTable:
    """Return the table in the archive with a number, -1 for the first one."""
    return lake.table("archive", name.schema, name.table if number < 0 else f"{name.table}.{number}")


def archive_numbers(lake: Lake, name: TableName, registered: Collection[str]) -> list[int]:
    """Return the numbers of the folders that the archive has of a table, in the order of their moves.

    `registered` are the paths of tables, whose folders are not counted: one may have such a name.
    """
    pattern = re.compile(rf"{re.escape(path_segment(name.table))}(?:\.(\d+))?")
    folders = folders_in(lake.sessions, lake.path("archive", name.schema))
    found = [match for folder in folders if (match := pattern.fullmatch(folder))]
    numbers = [int(match[1]) if match[1] else -1 for match in found]
    return sorted(each for each in numbers if archived_table(lake, name, each).path not in registered)


def at_current_path(row: dict[str, Any], root: str) -> dict[str, Any]:
    """Return a row that records the path of a table, with its current path."""
    name = TableName(row["schema_name"], row["table_name"])
    return row | {"path": resolve_path(row["path"], name, root)}
