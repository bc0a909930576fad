"""Tables copied anew: asked for here, copied by the next ingest, shown by the apply after it, in one commit.

A request is a row of `_pgdelta/requests`. A continuous ingest sees it within seconds. Until the copy is
complete, silver goes on showing the rows that it has, and goes on following the stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from pipeline.config import Config
from pipeline.errors import ConfigError
from pipeline.lake.bronze import Bronze, TableName
from pipeline.lake.copies import Request
from pipeline.lake.records import Records
from pipeline.lake.session import start_session
from pipeline.lake.tables import Lake
from pipeline.operate.run import RunSummary, run_both
from pipeline.operate.summaries import IngestProgress
from pipeline.rules import TableRule

REASON = "somebody asked for it"


@dataclass(frozen=True, slots=True)
class ResyncSummary:
    """The tables that are to be copied anew, and what a run made of it, where one was asked for."""

    pipeline: str
    tables: tuple[TableName, ...]
    run: RunSummary | None = None

    def lines(self) -> list[str]:
        """Return the closing lines for people."""
        names = ", ".join(".".join(name) for name in self.tables)
        lines = [f"resync {self.pipeline}: {len(self.tables)} tables are to be copied anew: {names}"]
        if self.run:
            return [*lines, *self.run.lines()]
        return [
            *lines,
            "the next ingest copies them, the apply after it shows them; a continuous one does so now",
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the same as data."""
        return {
            "pipeline": self.pipeline,
            "tables": [{"schema": schema, "table": table} for schema, table in self.tables],
            "run": self.run and self.run.as_json(),
        }

    def exit_code(self, strict: bool) -> int:
        """Return 0 where everything was asked for, or that of the run."""
        return self.run.exit_code(strict) if self.run else 0


def run_resync(
    config: Config,
    globs: Sequence[str] | None,
    *,
    runs: bool = False,
    spark: SparkSession | None = None,
    progress: IngestProgress | None = None,
) -> ResyncSummary:
    """Ask for the tables that globs name, or for all; `runs` ingests and applies at once."""
    for glob in globs or ():
        if not TableRule.is_glob(glob):
            raise ConfigError(f"--table {glob}: write schema.table, with a part that holds a dot in quotes")
    spark = spark or start_session(f"pgdelta resync {config.pipeline}")
    lake = Lake(spark, config.storage.root)
    bronze = Bronze(lake, config.pipeline)
    rules = [TableRule(glob) for glob in globs or ("*.*",)]
    known = {*Records(lake).registered(), *(bronze.table_names() if bronze.relations.exists() else ())}
    names = tuple(
        name
        for name in sorted(known)
        if config.rule_for(*name) is not None and any(rule.matches(*name) for rule in rules)
    )
    if not names:
        raise ConfigError("no table of the lake matches --table: see pgdelta status for their names")
    bronze.copies.request([Request.of(name, REASON) for name in names])
    run = run_both(config, spark=spark, ingest_progress=progress) if runs else None
    return ResyncSummary(config.pipeline, names, run)
