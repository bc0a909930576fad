"""Tables, or some keys, copied anew: asked for here, copied by the next ingest, then shown by one commit.

A request is a row of `_pgdelta/requests`. A continuous ingest sees it within seconds. Until the copy is
complete, silver goes on showing the rows that it has, and goes on following the stream; but a table of which
only some keys are copied waits for them in bronze.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from pipeline.bronze.copy_states import CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.locks import refuse_while_apply_runs
from pipeline.delta.spark.session import start_session
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError
from pipeline.key_ranges import KeyRange, find_fault
from pipeline.metadata.records import Records
from pipeline.operate.run import RunSummary, run_both
from pipeline.postgres.connection import connect
from pipeline.postgres.key_conditions import accepts_keys, key_condition
from pipeline.progress import IngestProgress
from pipeline.table_name import TableName, match_tables

REASON = "somebody asked for it"


@dataclass(frozen=True, slots=True)
class ResyncSummary:
    """The tables that are to be copied anew, and what a run made of it, where one was asked for."""

    pipeline: str
    tables: tuple[TableName, ...]
    key_range_count: int = 0  # 0 where it is whole tables
    run: RunSummary | None = None

    def lines(self) -> list[str]:
        """Return the closing lines for people."""
        names = ", ".join(str(name) for name in self.tables)
        what = f"{len(self.tables)} tables are"
        if self.key_range_count:
            what = f"the rows of {self.key_range_count} ranges of keys are"
        lines = [f"resync {self.pipeline}: {what} to be copied anew: {names}"]
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
            "key_ranges": self.key_range_count,
            "run": self.run and self.run.as_json(),
        }

    def exit_code(self, strict: bool) -> int:
        """Return 0 where everything was asked for, or that of the run."""
        return self.run.exit_code(strict) if self.run else 0


def run_resync(
    config: Config,
    globs: Sequence[str] | None,
    *,
    key_ranges: Sequence[KeyRange] = (),
    runs: bool = False,
    spark: SparkSession | None = None,
    progress: IngestProgress | None = None,
    stop: threading.Event | None = None,
) -> ResyncSummary:
    """Ask for the tables that globs name, or all, or keys of one; `runs` ingests and applies at once."""
    matches = match_tables(globs)
    spark = spark or start_session(f"pgdelta resync {config.pipeline}")
    lake = Lake.for_writing(spark, config.storage.root)
    if runs:
        refuse_while_apply_runs(lake)
    bronze = Bronze(lake, config.pipeline)
    known = {*Records(lake).tables.read(), *(bronze.table_names() if bronze.relations.exists() else ())}
    names = tuple(name for name in sorted(known) if config.rule_for(name) is not None and matches(name))
    if not names:
        raise lake.no_match()
    if key_ranges:
        _refuse_untold(config, bronze, names, key_ranges)
    bronze.copies.request([CopyRequest.of(name, REASON, key_ranges) for name in names])
    run = run_both(config, spark=spark, stop=stop, ingest_progress=progress) if runs else None
    return ResyncSummary(config.pipeline, names, len(key_ranges), run)


def _refuse_untold(
    config: Config, bronze: Bronze, names: Sequence[TableName], key_ranges: Sequence[KeyRange]
) -> None:
    """Refuse ranges of keys that no copy could bring, by what bronze and the source know of the table."""
    if len(names) > 1:
        raise ConfigError(f"keys are those of one table, and --table matches {len(names)}")
    (name,) = names
    relations = [r for r in bronze.source_relations().values() if (r.schema_name, r.table_name) == name]
    relation = max(relations, key=lambda r: r.lsn)
    fault = find_fault(relation.key_types, key_ranges)
    if fault is None:
        with connect(config.source.conninfo, application_name="pgdelta resync") as source:
            if not accepts_keys(source, name, key_condition(relation.key, relation.key_types, key_ranges)):
                fault = (
                    "a value was given that the type of its key does not have: write it as SELECT shows it"
                )
    if fault:
        raise ConfigError(f"{name}: {fault}")
