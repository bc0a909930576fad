"""`_pgdelta/manifests`: which version of every silver table shows the source as of one LSN.

apply records a manifest after each batch. Several may have one LSN; the newest of them counts, because a
table that was held may have caught up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

import pyarrow as pa

from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.new_rows import add_columns
from pipeline.delta.record_table import TableRecord, ddl_of, record_of, row_of
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.rows import Where
from pipeline.delta.sql import from_microseconds, now, to_microseconds
from pipeline.delta.table import Lake
from pipeline.errors import LakeError
from pipeline.metadata.reconciliations import ComparedAt
from pipeline.metadata.silver_paths import at_current_path
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class ManifestEntry(TableRecord):
    """One silver table as of a manifest's LSN; if `is_behind`, it only shows `applied_lsn`.

    `version` is -1 and `table_id` empty if the table does not exist yet. `table_id` is Delta's id, which
    changes when a table is created again under the same path. `offset` is what the log records in that
    version; without newer changes it is below the manifest's LSN. `copied_version` is the newest version that
    was made of copied rows or by a rebuild, not of changes, None if there is none. `verified_lsn` is the
    newest LSN at which the table was known to equal its source when the manifest was written; `verified_at`
    and `verified_by` say when and by what it was compared.
    """

    path: str
    version: int
    applied_lsn: LSN
    is_behind: bool
    table_id: str = ""
    offset: LSN | None = None
    copied_version: int | None = None
    verified_lsn: LSN | None = None
    verified_at: datetime | None = None
    verified_by: str | None = None

    def verified(self, found: ComparedAt | None) -> ManifestEntry:
        """Return the entry with the newest comparison that found the table equal, if there is one."""
        lsn, at, method = found or (None, None, None)
        if (lsn, at, method) == (self.verified_lsn, self.verified_at, self.verified_by):
            return self
        return replace(self, verified_lsn=lsn, verified_at=at, verified_by=method)


MANIFESTS = (
    "lsn BIGINT, commit_time TIMESTAMP, written_at TIMESTAMP, "
    f"tables ARRAY<STRUCT<{ddl_of(ManifestEntry, ':')}>>"
)


@dataclass(frozen=True)
class Manifest:
    """Which version of every silver table shows the source as of one LSN."""

    lsn: LSN
    commit_time: datetime | None = None
    entries: tuple[ManifestEntry, ...] = ()
    written_at: datetime | None = field(default=None, compare=False)  # of one that was read

    @property
    def cursor(self) -> str:
        """A text that names this manifest: its LSN, and when it was written."""
        written = "" if self.written_at is None else f"@{self.written_at.replace(tzinfo=None).isoformat()}Z"
        return f"{self.lsn}{written}"

    @cached_property
    def by_name(self) -> Mapping[TableName, ManifestEntry]:
        return {entry.name: entry for entry in self.entries}

    @cached_property
    def behind(self) -> Mapping[TableName, LSN]:
        """The tables that are behind the LSN, each with its `applied_lsn`."""
        return {entry.name: entry.applied_lsn for entry in self.entries if entry.is_behind}

    def verified(self, equal: Mapping[TableName, ComparedAt]) -> Manifest:
        """Return the manifest with the newest comparisons that found its tables equal."""
        return replace(self, entries=tuple(each.verified(equal.get(each.name)) for each in self.entries))

    def with_entry(self, entry: ManifestEntry) -> Manifest:
        """Return the manifest with another entry for one of its tables."""
        entries = (entry if each.name == entry.name else each for each in self.entries)
        return replace(self, entries=tuple(entries))


class Manifests:
    """Reads and writes `_pgdelta/manifests`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._table = lake.table("_pgdelta", "manifests")

    def ensure(self) -> None:
        """Create the table unless it exists; give it the columns that it lacks."""
        self._table.ensure_for_appends(MANIFESTS)
        add_columns(self._table, MANIFESTS)

    def record(self, manifest: Manifest) -> None:
        """Append a manifest."""
        row = {
            "lsn": manifest.lsn,
            "commit_time": manifest.commit_time and manifest.commit_time.astimezone(timezone.utc),
            "written_at": now(),
            "tables": [row_of(entry) for entry in manifest.entries],
        }
        with crash_step(CrashStep.RECORD_MANIFEST):
            retry_conflicts(lambda: self._table.append_rows([row], MANIFESTS, compacts=True))

    def last(self) -> Manifest | None:
        """Return the newest manifest, None if there is none."""
        return self._newest(self._marks())

    def written(self) -> list[tuple[LSN, datetime]]:
        """Return the LSN of each manifest, and when it was written."""
        return [(LSN(lsn), from_microseconds(written_at)) for lsn, written_at, _ in self._marks()]

    def last_before(self, lsn: LSN) -> LSN:
        """Return the LSN of the newest manifest below an LSN, INVALID if there is none."""
        return LSN(max((mark[0] for mark in self._marks() if mark[0] < lsn), default=INVALID))

    def at_cursor(self, lsn: LSN, written_at: datetime | None) -> Manifest | None:
        """Return the manifest that a cursor names, or the newest before it; None if there is none."""
        latest = None if written_at is None else to_microseconds(written_at)
        marks = self._marks()
        return self._newest([m for m in marks if m[0] < lsn or (m[0] == lsn and m[1] <= (latest or m[1]))])

    def at(self, lsn: LSN | None = None, time: datetime | None = None) -> Manifest:
        """Return the newest manifest, or the newest at or before an LSN or a commit time.

        Raises LakeError if there is none.
        """
        root = self._lake.root
        if not self._table.exists():
            raise LakeError(f"{root} has no manifest. Run pgdelta apply, which records one.")
        marks = self._marks()
        wanted = marks
        if lsn is not None:
            wanted = [mark for mark in marks if mark[0] <= lsn]
        elif time is not None:
            latest = to_microseconds(time)
            wanted = [mark for mark in marks if mark[2] is not None and mark[2] <= latest]
        found = self._newest(wanted)
        if found is not None:
            return found
        known = [mark for mark in marks if lsn is not None or mark[2] is not None]
        if not known:
            raise LakeError(
                f"{root} has no manifest with a commit time, because no change was applied yet. "
                "Run pgdelta apply."
            )
        oldest, _, committed = min(known, key=lambda mark: mark[0])
        begins = f"The oldest manifest is of LSN {LSN(oldest)}"
        if time is not None and committed is not None:
            raise LakeError(
                f"{root} has no manifest at or before {time.isoformat(' ')}. "
                f"{begins}, committed {from_microseconds(committed).isoformat(' ')}."
            )
        raise LakeError(f"{root} has no manifest at or before LSN {lsn}. {begins}.")

    def _marks(self) -> list[_Mark]:
        if not self._table.exists():
            return []
        rows = self._table.rows(["lsn", "written_at", "commit_time"])
        columns = (rows.column(name).cast("int64").to_pylist() for name in rows.column_names)
        return list(zip(*columns, strict=True))

    def _newest(self, marks: Sequence[_Mark]) -> Manifest | None:
        """Return the manifest of the last of these marks, None if there are none."""
        if not marks:
            return None
        import pyarrow.compute as pc

        lsn, written_at, committed = max(marks, key=lambda mark: mark[:2])

        def is_last(rows: pa.Table) -> Any:
            is_at = pc.equal(rows.column("written_at").cast(pa.int64()), written_at)
            return pc.and_(pc.equal(rows.column("lsn"), lsn), is_at)

        rows = self._table.rows(["tables"], Where(("lsn", "written_at"), is_last)).to_pylist()
        time = None if committed is None else from_microseconds(committed)
        found = (at_current_path(row, self._lake.root) for row in rows[0]["tables"])
        entries = tuple(record_of(ManifestEntry, row) for row in found)
        return Manifest(LSN(lsn), time, entries, from_microseconds(written_at))


_Mark = tuple[int, int, int | None]
"""What is read of every manifest: LSN, when it was written, commit time (microseconds since 1970)."""
