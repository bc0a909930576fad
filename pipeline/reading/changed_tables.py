"""Find the silver tables whose rows changed between two manifests, and how many rows did, from their logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pipeline.delta.log import Actions, commit_info
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import LakeError
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.protocol.lsn import INVALID
from pipeline.silver.read.as_of import AsOf, parse_lsn, parse_time
from pipeline.table_name import TableName

_MERGED = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
_METRICS = {
    "MERGE": _MERGED,
    "DELETE": ("numDeletedRows",),
    "UPDATE": ("numUpdatedRows",),
    "WRITE": ("numOutputRows",),
}
"""What commits count of the rows that they change, by operation."""


def changed_rows(
    lake: Lake, silver: AsOf, names: Iterable[TableName], since: str
) -> dict[TableName, int | None]:
    """Return which of these tables changed since a cursor, with the number of rows, None if it is unknown.

    `since` is an LSN, or the `cursor` of an earlier answer. A table that is behind has nothing to show and is
    left out; one that was behind then is in. Raises ConfigError for another text.
    """
    lsn, _, written_at = since.partition("@")
    time = parse_time(written_at) if written_at else None
    before = Manifests(lake).at_cursor(parse_lsn(lsn), time) or Manifest(INVALID)
    found: dict[TableName, int | None] = {}
    for name in names:
        entry = silver.manifest.by_name[name]
        if not entry.is_behind and entry.version >= 0:
            table = lake.table_at(silver.table(*name).path)
            has_changed, rows = _change(table, before.by_name.get(name), entry)
            if has_changed:
                found[name] = rows
    return found


def _change(table: LakeTable, before: ManifestEntry | None, entry: ManifestEntry) -> tuple[bool, int | None]:
    """Return whether the rows of a table changed between two manifests, and how many, None if unknown."""
    is_same = before is not None and before.table_id == entry.table_id
    since = before.version if before is not None and is_same else -1
    # of what was written while it was behind, nothing was shown
    was_behind = before is not None and before.is_behind
    if since >= entry.version and not was_behind:
        return False, 0
    counts: list[int | None] = []
    try:
        for version, actions in table.actions_after(since):
            if version <= entry.version and any(_row_files(actions)):
                counts.append(_row_count(actions))
    except LakeError:  # the log has no longer all of these commits
        return True, None
    total = None if was_behind or None in counts else sum(count or 0 for count in counts)
    return bool(counts) or was_behind or not is_same, total


def _row_files(actions: Actions) -> Iterator[Mapping[str, object]]:
    """Yield what a commit adds and removes because rows changed; merging small files changes none."""
    for action in actions:
        file = action.get("add") or action.get("remove")
        if file is not None and file.get("dataChange", True):
            yield file


def _row_count(actions: Actions) -> int | None:
    """Return how many rows a commit says it changed, None if it does not say."""
    information = commit_info(actions) or {}
    operation, metrics = str(information.get("operation")), information.get("operationMetrics") or {}
    if operation == "WRITE" and any("remove" in action for action in actions):
        return None  # it counts the rows that it wrote, not those that it replaced
    return sum(int(metrics.get(key) or 0) for key in _METRICS.get(operation, ())) or None
