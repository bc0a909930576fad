"""Find the version of each silver table that shows one commit of the source, with queries to paste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError
from pipeline.metadata.manifests import Manifest, Manifests
from pipeline.protocol.lsn import INVALID
from pipeline.reading.changed_tables import changed_rows
from pipeline.silver.read.as_of import AsOf, TableAsOf, find_silver
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
