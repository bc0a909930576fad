"""`_pgdelta/manifests`: which version of every silver table shows the source as of one LSN.

apply records a manifest after each batch. Several may have one LSN; the newest of them counts, because a
table that was held may have caught up.
"""

from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.sql import from_microseconds, now, to_microseconds
from pipeline.delta.table import Lake, local_frame
from pipeline.errors import LakeError
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

MANIFESTS = (
    "lsn BIGINT, commit_time TIMESTAMP, written_at TIMESTAMP, tables ARRAY<STRUCT<schema_name: STRING, "
    "table_name: STRING, path: STRING, version: BIGINT, applied_lsn: BIGINT, is_behind: BOOLEAN, "
    "table_id: STRING, offset: BIGINT>>"
)


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One silver table as of a manifest's LSN; if `is_behind`, it only shows `applied_lsn`.

    `version` is -1 and `table_id` empty if the table does not exist yet. `table_id` is Delta's id, which
    changes when a table is created again under the same path. `offset` is what the log records in that
    version; without newer changes it is below the manifest's LSN.
    """

    schema_name: str
    table_name: str
    path: str
    version: int
    applied_lsn: LSN
    is_behind: bool
    table_id: str = ""
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
        """The tables that are behind the LSN, each with its `applied_lsn`."""
        return {entry.name: entry.applied_lsn for entry in self.entries if entry.is_behind}


class Manifests:
    """Reads and writes `_pgdelta/manifests`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._table = lake.table("_pgdelta", "manifests")

    def ensure(self) -> None:
        """Create the table unless it exists."""
        self._table.ensure_for_appends(MANIFESTS)

    def record(self, manifest: Manifest) -> None:
        """Append a manifest."""
        row = {
            "lsn": manifest.lsn,
            # Spark collects timestamps as local times without a zone
            "commit_time": manifest.commit_time and manifest.commit_time.astimezone(timezone.utc),
            "written_at": now(),
            "tables": [asdict(entry) for entry in manifest.entries],
        }
        frame = local_frame(self._lake.spark, [row], MANIFESTS)
        with crash_step(CrashStep.RECORD_MANIFEST):
            self._table.append_small(frame)

    def last(self) -> Manifest | None:
        """Return the newest manifest, None if there is none."""
        row = self._first(None, newest=True) if self._table.exists() else None
        return None if row is None else _manifest(row)

    def last_before(self, lsn: LSN) -> LSN:
        """Return the LSN of the newest manifest below an LSN, INVALID if there is none."""
        row = self._first(F.col("lsn") < int(lsn), newest=True)
        return INVALID if row is None else LSN(row.lsn)

    def at(self, lsn: LSN | None = None, time: datetime | None = None) -> Manifest:
        """Return the newest manifest, or the newest at or before an LSN or a commit time.

        Raises LakeError if there is none.
        """
        root = self._lake.root
        if not self._table.exists():
            raise LakeError(f"{root} has no manifest. Run pgdelta apply, which records one.")
        condition: Column | None = None
        if lsn is not None:
            condition = F.col("lsn") <= min(int(lsn), 2**63 - 1)
        elif time is not None:
            condition = F.expr("unix_micros(commit_time)") <= to_microseconds(time)
        row = self._first(condition, newest=True)
        if row is not None:
            return _manifest(row)
        oldest = self._first(None if lsn is not None else F.col("commit_time").isNotNull(), newest=False)
        if oldest is None:
            raise LakeError(
                f"{root} has no manifest with a commit time, because no change was applied yet. "
                "Run pgdelta apply."
            )
        begins = f"The oldest manifest is of LSN {LSN(oldest.lsn)}"
        if time is not None and (first := _time(oldest.commit_micros)):
            raise LakeError(
                f"{root} has no manifest at or before {time.isoformat(' ')}. "
                f"{begins}, committed {first.isoformat(' ')}."
            )
        raise LakeError(f"{root} has no manifest at or before LSN {lsn}. {begins}.")

    def _first(self, condition: Column | None, *, newest: bool) -> Any:
        rows = self._table.frame() if condition is None else self._table.frame().where(condition)
        order = [F.desc("lsn"), F.desc("written_at")] if newest else [F.asc("lsn")]
        columns = ("lsn", "tables", "unix_micros(commit_time) AS commit_micros", "written_at")
        return rows.selectExpr(*columns).orderBy(*order).head()


def _manifest(row: Any) -> Manifest:
    return Manifest(LSN(row.lsn), _time(row.commit_micros), tuple(map(_entry, row.tables)))


def _entry(row: Any) -> ManifestEntry:
    return ManifestEntry(
        row.schema_name,
        row.table_name,
        row.path,
        row.version,
        LSN(row.applied_lsn),
        row.is_behind,
        row.table_id,
        None if row.offset is None else LSN(row.offset),
    )


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_microseconds(microseconds)
