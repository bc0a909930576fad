"""Manifests of the past: which version of every silver table shows the source as of one LSN."""

from datetime import datetime
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from pipeline.errors import LakeError
from pipeline.lake.instants import instant, microseconds_of
from pipeline.lake.records import Manifest, manifest_entry
from pipeline.lake.tables import Lake
from pipeline.protocol.lsn import LSN


class Manifests:
    """`{root}/_pgdelta/manifests`, for readers."""

    def __init__(self, lake: Lake) -> None:
        self._table = lake.table("_pgdelta", "manifests")
        self._root = lake.root

    def at(self, lsn: LSN | None = None, time: datetime | None = None) -> Manifest:
        """Return the newest manifest at or before an LSN, or a time, or of all; else raise LakeError.

        Of several at one LSN it is the one that was written last: a table that was held may have caught up.
        """
        if not self._table.exists():
            raise LakeError(f"{self._root} has no manifest yet: the first apply writes one")
        wanted: Column | None = None
        if lsn is not None:
            wanted = F.col("lsn") <= min(int(lsn), 2**63 - 1)
        elif time is not None:
            wanted = F.expr("unix_micros(commit_time)") <= microseconds_of(time)
        row = self._first(wanted, newest=True)
        if row is not None:
            return Manifest(LSN(row.lsn), _time(row.commit_micros), tuple(map(manifest_entry, row.tables)))
        oldest = self._first(None if lsn is not None else F.col("commit_time").isNotNull(), newest=False)
        if oldest is None:
            raise LakeError(f"{self._root} has no manifest with a commit time: no change was applied yet")
        begins, asked = LSN(oldest.lsn), "" if lsn is None else f"LSN {lsn}"
        if time is not None and (first := _time(oldest.commit_micros)):
            asked = time.isoformat(" ")
            raise LakeError(
                f"no manifest of {self._root} is as old as {asked}: the oldest is of {begins}, committed "
                f"{first.isoformat(' ')}"
            )
        raise LakeError(f"no manifest of {self._root} is as old as {asked}: the oldest is of LSN {begins}")

    def _first(self, wanted: Column | None, *, newest: bool) -> Any:
        rows = self._table.frame() if wanted is None else self._table.frame().where(wanted)
        order = [F.desc("lsn"), F.desc("written_at")] if newest else [F.asc("lsn")]
        columns = ("lsn", "tables", "unix_micros(commit_time) AS commit_micros", "written_at")
        return rows.selectExpr(*columns).orderBy(*order).head()


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else instant(microseconds)
