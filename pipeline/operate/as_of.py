"""Which version of each silver table shows one commit of the source, for people and for SQL elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console

from pipeline.config.config import Config
from pipeline.delta.spark.session import start_session
from pipeline.errors import one_line
from pipeline.silver.as_of import AsOf, TableAsOf, as_of


@dataclass(frozen=True, slots=True)
class SilverVersions:
    """Silver as of one commit, looked at table by table; a table is current, behind or gone."""

    silver: AsOf
    tables: tuple[tuple[str, TableAsOf], ...]  # (state, table)

    @property
    def exit_code(self) -> int:
        """Return 1 where the version of a table is gone."""
        return int(any(state == "gone" for state, _ in self.tables))

    def as_json(self) -> dict[str, Any]:
        """Return the versions as data."""
        time = self.silver.commit_time
        return {
            "lsn": str(self.silver.lsn),
            "commit_time": time and time.isoformat(),
            "tables": [
                {
                    "schema": table.name[0],
                    "table": table.name[1],
                    "state": state,
                    "path": table.path,
                    "version": table.version,
                    "query": table.query if state == "current" else None,
                    "sentence": table.refusal,
                }
                for state, table in self.tables
            ],
        }

    def print(self, console: Console) -> None:
        """Print the commit, and a query for each table; a line is never broken, so that it can be copied."""
        time = self.silver.commit_time
        committed = f", committed {time:%Y-%m-%d %H:%M:%S.%f}Z" if time else ""
        lines = [f"-- silver as of {self.silver.lsn}{committed}"]
        for state, table in self.tables:
            if state == "current":
                lines.append(f"-- {table.name}: version {table.version} of {table.path}")
                lines.append(f"{table.query};")
            else:
                lines.append(f"-- {table.refusal}")
        for line in lines:
            # a name with a line end would be SQL behind its comment
            console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)


def read_silver(
    config: Config, *, lsn: str | None, timestamp: str | None, spark: SparkSession | None = None
) -> SilverVersions:
    """Look at silver as of the newest manifest at or before an LSN or a commit time, or of all."""
    spark = spark or start_session(f"pgdelta as-of {config.pipeline}")
    silver = as_of(spark, config.storage.root, lsn=lsn, timestamp=timestamp)
    behind = silver.behind
    found = [silver.table(*name) for name in sorted([*silver, *behind])]
    states = ("behind" if t.name in behind else "gone" if t.refusal else "current" for t in found)
    return SilverVersions(silver, tuple(zip(states, found, strict=True)))
