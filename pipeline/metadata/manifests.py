"""Manifests: which version of every silver table shows the source as of one LSN."""

from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.table import Lake, local_frame
from pipeline.delta.timestamps import from_microseconds, now, to_microseconds
from pipeline.errors import LakeError
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

MANIFESTS = (
    "lsn BIGINT, commit_time TIMESTAMP, written_at TIMESTAMP, tables ARRAY<STRUCT<schema_name: STRING, "
    "table_name: STRING, path: STRING, version: BIGINT, applied_lsn: BIGINT, is_behind: BOOLEAN, "
    "table_id: STRING, position: BIGINT>>"
)


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One silver table as of a manifest's LSN; `is_behind` where it did not get that far.

    `table_id` is Delta's own, which a table built again under the path does not have. `position` is what the
    version's own log records: of a table without newer changes it is below the manifest's LSN.
    """

    schema_name: str
    table_name: str
    path: str
    version: int
    applied_lsn: LSN
    is_behind: bool
    table_id: str | None = None
    offset: LSN | None = None

    @property
    def name(self) -> TableName:
        return TableName(self.schema_name, self.table_name)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Which version of every silver table shows the source as of one LSN."""

    lsn: LSN
    commit_time: datetime | None = None
    entries: tuple[ManifestEntry, ...] = ()

    @property
    def by_name(self) -> dict[TableName, ManifestEntry]:
        return {entry.name: entry for entry in self.entries}

    @property
    def behind(self) -> dict[TableName, LSN]:
        """Return the tables that did not get to the LSN, each with how far it was."""
        return {entry.name: entry.applied_lsn for entry in self.entries if entry.is_behind}


class Manifests:
    """Reads and writes `{root}/_pgdelta/manifests`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._table = lake.table("_pgdelta", "manifests")

    def ensure(self) -> None:
        """Create the table unless it is there."""
        self._table.ensure_for_appends(MANIFESTS)

    def record(self, manifest: Manifest) -> None:
        """Append a manifest."""
        row = {
            "lsn": manifest.lsn,
            # what Spark gave is a time of this machine's zone that does not say so
            "commit_time": manifest.commit_time and manifest.commit_time.astimezone(timezone.utc),
            "written_at": now(),
            "tables": [asdict(entry) for entry in manifest.entries],
        }
        frame = local_frame(self._lake.spark, [row], MANIFESTS)
        with crash_step(CrashStep.RECORD_MANIFEST):
            self._table.append_small(frame, adds_columns=True)  # a lake of an older release has fewer

    def last(self) -> Manifest | None:
        """Return the newest manifest, None where there is none."""
        row = self._first(None, newest=True) if self._table.exists() else None
        return None if row is None else _manifest(row)

    def last_before(self, lsn: LSN) -> LSN:
        """Return the LSN of the last manifest below one, INVALID where there is none."""
        row = self._first(F.col("lsn") < int(lsn), newest=True)
        return INVALID if row is None else LSN(row.lsn)

    def at(self, lsn: LSN | None = None, time: datetime | None = None) -> Manifest:
        """Return the newest manifest at or before an LSN, or a time, or of all; else raise LakeError.

        Of several at one LSN it is the one that was written last: a table that was held may have caught up.
        """
        root = self._lake.root
        if not self._table.exists():
            raise LakeError(f"{root} has no manifest yet: the first apply writes one")
        wanted: Column | None = None
        if lsn is not None:
            wanted = F.col("lsn") <= min(int(lsn), 2**63 - 1)
        elif time is not None:
            wanted = F.expr("unix_micros(commit_time)") <= to_microseconds(time)
        row = self._first(wanted, newest=True)
        if row is not None:
            return _manifest(row)
        oldest = self._first(None if lsn is not None else F.col("commit_time").isNotNull(), newest=False)
        if oldest is None:
            raise LakeError(f"{root} has no manifest with a commit time: no change was applied yet")
        begins, asked = LSN(oldest.lsn), "" if lsn is None else f"LSN {lsn}"
        if time is not None and (first := _time(oldest.commit_micros)):
            asked = time.isoformat(" ")
            raise LakeError(
                f"no manifest of {root} is as old as {asked}: the oldest is of {begins}, committed "
                f"{first.isoformat(' ')}"
            )
        raise LakeError(f"no manifest of {root} is as old as {asked}: the oldest is of LSN {begins}")

    def _first(self, wanted: Column | None, *, newest: bool) -> Any:
        rows = self._table.frame() if wanted is None else self._table.frame().where(wanted)
        order = [F.desc("lsn"), F.desc("written_at")] if newest else [F.asc("lsn")]
        columns = ("lsn", "tables", "unix_micros(commit_time) AS commit_micros", "written_at")
        return rows.selectExpr(*columns).orderBy(*order).head()


def _manifest(row: Any) -> Manifest:
    return Manifest(LSN(row.lsn), _time(row.commit_micros), tuple(map(_entry, row.tables)))


def _entry(row: Any) -> ManifestEntry:
    table_id, position = (getattr(row, name, None) for name in ("table_id", "position"))  # an older lake's
    return ManifestEntry(
        row.schema_name,
        row.table_name,
        row.path,
        row.version,
        LSN(row.applied_lsn),
        row.is_behind,
        table_id,
        None if position is None else LSN(position),
    )


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_microseconds(microseconds)
