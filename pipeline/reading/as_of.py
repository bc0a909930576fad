"""Find the versions of silver tables that show one commit, and which rows changed since another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from pipeline.config.config import Config
from pipeline.delta.log import Actions, commit_info
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import ConfigError, LakeError
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.protocol.lsn import INVALID
from pipeline.silver.read.as_of import AsOf, TableAsOf, find_silver, parse_lsn, parse_time
from pipeline.table_name import TableName, match_tables
from pipeline.terminal import plain, print_paragraph
from pipeline.units import format_count


@dataclass(frozen=True, slots=True)
class SilverVersions:
    """Silver as of one commit, table by table; the state of a table is current, behind or gone.

    `changed` are the tables that changed since a cursor, with the number of rows if it is known.
    """

    silver: AsOf
    tables: tuple[tuple[str, TableAsOf], ...]  # (state, table)
    changed: Mapping[TableName, int | None] | None = None

    def exit_code(self, strict: bool) -> int:
        """Return 1 if the version of a table is gone."""
        return int(any(state == "gone" for state, _ in self.tables))

    def as_json(self) -> dict[str, Any]:
        time, verified = self.silver.commit_time, self.silver.verified_through
        return {
            "lsn": str(self.silver.lsn),
            "commit_time": time and time.isoformat(),
            "cursor": self.silver.manifest.cursor,
            "tables": [
                {
                    **table.name._asdict(),
                    "state": state,
                    "path": table.path,
                    "version": table.version,
                    "query": table.query if state == "current" else None,
                    "sentence": table.refusal,
                    "verified_through": str(lsn) if (lsn := verified.get(table.name)) else None,
                    **self._change(table.name),
                }
                for state, table in self.tables
            ],
        }

    def _change(self, name: TableName) -> dict[str, Any]:
        if self.changed is None:
            return {}
        return {"changed": name in self.changed, "rows_changed": self.changed.get(name, 0)}

    def _change_text(self, name: TableName) -> str:
        if self.changed is None:
            return ""
        if name not in self.changed:
            return ", not changed"
        rows = self.changed[name]
        return ", changed" if rows is None else f", {format_count(rows, 'row')} changed"

    def print(self, console: Console) -> None:
        """Print the commit, and a query for each table; first the tables that have none.

        Comments are wrapped; a query is never broken, so that it can be copied.
        """
        time = self.silver.commit_time
        committed = f", committed {time:%Y-%m-%d %H:%M:%S.%f}Z" if time else ""
        _print_comment(console, f"silver as of {self.silver.lsn}{committed}")
        for _, table in sorted(self.tables, key=lambda each: _ORDER.index(each[0])):
            if table.refusal is not None:
                _print_comment(console, table.refusal)
                continue
            _print_comment(console, f"{table.name}: version {table.version}{self._change_text(table.name)}")
            console.print(plain(f"{table.query};"), soft_wrap=True)


_ORDER = ("gone", "behind", "current")


def _print_comment(console: Console, text: str) -> None:
    print_paragraph(console, text, prefix="-- ", hang=0)


def read_silver(
    config: Config,
    *,
    lsn: str | None,
    timestamp: str | None,
    globs: Sequence[str] | None = None,
    since: str | None = None,
) -> SilverVersions:
    """Read silver as of the newest manifest, or the newest one at or before an LSN or a commit time.

    `since`, an LSN or a cursor, asks which tables changed after it. Raise ConfigError if a glob is not
    valid, or no table of the manifest matches.
    """
    matches = match_tables(globs)
    lake = Lake(config.storage, application=f"pgdelta as-of {config.pipeline}")
    if since is not None and not Manifests(lake).written():  # a lake that shows nothing yet
        return SilverVersions(AsOf(lake, Manifest(INVALID)), (), {})
    silver = find_silver(lambda: lake, lsn=lsn, timestamp=timestamp)
    behind = silver.behind
    names = [name for name in sorted([*silver, *behind]) if matches(name)]
    if globs and not names:
        raise ConfigError(f"No table of silver as of {silver.lsn} matches --table. See pgdelta status.")
    found = [silver.table(*name) for name in names]
    states = ("behind" if t.name in behind else "gone" if t.refusal else "current" for t in found)
    changed = None if since is None else changed_rows(lake, silver, names, since)
    return SilverVersions(silver, tuple(zip(states, found, strict=True)), changed)


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
