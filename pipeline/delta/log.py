"""Records that commits of a Delta table's log have of themselves.

Operation names are those of Delta's `DeltaOperations`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Operations that change columns.
COLUMN_CHANGING = frozenset(
    {"ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS", "DROP COLUMNS", "RENAME COLUMN"}
)


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """What a commit records about itself; `restored_version` is the target of a RESTORE.

    `schema_string` is the table's schema as of the commit, None if the commit does not change the metadata.
    `changes_rows` is false for a change of columns or properties, and for maintenance.
    """

    version: int
    operation: str
    metadata: dict[str, Any]
    restored_version: int | None = None
    schema_string: str | None = None
    changes_rows: bool = True


Actions = Sequence[Mapping[str, Any]]
"""The actions of a commit as JSON: objects with one key each."""


def commit_info(actions: Actions) -> Mapping[str, Any] | None:
    """Return the `commitInfo` of a commit's actions, None if they have none, as is allowed."""
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), None)


def user_metadata_of(information: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the user metadata of a `commitInfo`, empty if it has none or is None."""
    return json_object(None if information is None else information.get("userMetadata"))


def changes_rows(actions: Actions) -> bool:
    """Return whether a commit adds or removes files with other rows than before."""
    files = (action[kind] for action in actions for kind in ("add", "remove") if kind in action)
    return any(file.get("dataChange", True) for file in files)


def logged_operations(commits: Iterable[tuple[int, Actions]]) -> Iterator[LoggedOperation]:
    """Yield what commits record about themselves, in order."""
    for version, actions in commits:
        information = commit_info(actions)
        table = next((action["metaData"] for action in actions if "metaData" in action), None)
        schema_string = None if table is None else str(table.get("schemaString") or "")
        if information is None:
            name, has_rows = "a commit without a name", changes_rows(actions)
            yield LoggedOperation(version, name, {}, schema_string=schema_string, changes_rows=has_rows)
            continue
        operation = str(information.get("operation"))
        parameters = information.get("operationParameters") or {}
        text = str(parameters.get("version", "")) if operation == "RESTORE" else ""
        restored_version = int(text) if text.isdecimal() else None
        metadata = user_metadata_of(information)
        yield LoggedOperation(
            version, operation, metadata, restored_version, schema_string, changes_rows(actions)
        )


def json_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object that a commit's user metadata is, empty for anything else."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def now_milliseconds() -> int:
    """Return the current time as actions have it, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
