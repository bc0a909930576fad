"""Request that tables, or some of their keys, are copied again from the source.

A request is a row of `_pgdelta/requests`; the next ingest copies the rows, a continuous one within seconds,
and the apply after it shows them by one commit a table. Until then silver keeps its rows and follows the
stream, except that a partial resync holds back the pending changes of its table.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.bronze.copy_states import CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.locks import refuse_while_apply_runs
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError
from pipeline.key_ranges import KeyRange, describe_unusable
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.postgres.connection import connect
from pipeline.postgres.key_conditions import accepts_keys, key_condition
from pipeline.progress import IngestProgress
from pipeline.silver.compare.comparable_columns import shown_relation
from pipeline.silver.lake_facts import detached_tables, require_followed
from pipeline.silver.read.missing_tables import no_match
from pipeline.table_name import TableName, match_tables
from pipeline.units import format_count

if TYPE_CHECKING:
    from pipeline.operate.run import RunSummary

REASON = "requested by pgdelta resync"


@dataclass(frozen=True, slots=True)
class ResyncSummary:
    """The tables whose copy was requested, and the summary of the run that made it, if there was one."""

    pipeline: str
    tables: tuple[TableName, ...]
    key_range_count: int = 0  # 0 for all rows
    run: RunSummary | None = None

    def lines(self) -> list[str]:
        names, what = ", ".join(map(str, self.tables)), format_count(len(self.tables), "table")
        if self.key_range_count:
            what = f"rows of {format_count(self.key_range_count, 'key range')}"
        lines = [f"resync {self.pipeline}: {what} requested: {names}"]
        if self.run:
            return [*lines, *self.run.lines()]
        it = "them" if len(self.tables) > 1 or self.key_range_count else "it"
        return [*lines, f"the next ingest copies {it}, a continuous one now; the apply after it shows {it}"]

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "tables": [name._asdict() for name in self.tables],
            "key_ranges": self.key_range_count,
            "run": self.run and self.run.as_json(),
        }

    def exit_code(self, strict: bool) -> int:
        """Return that of the run, or 0 for a request."""
        return self.run.exit_code(strict) if self.run else 0


def run_resync(
    config: Config,
    globs: Sequence[str] | None,
    *,
    key_ranges: Sequence[KeyRange] = (),
    runs: bool = False,
    progress: IngestProgress | None = None,
    stop: threading.Event | None = None,
) -> ResyncSummary:
    """Request copies of the tables that globs name, or of all, or of keys of one.

    `runs` ingests and applies at once. Raise ConfigError if no table matches, or a key range is not one that
    a copy could have.
    """
    matches = match_tables(globs)
    lake = Lake.for_writing(config.storage, application=f"pgdelta resync {config.pipeline}")
    if runs:
        refuse_while_apply_runs(lake)
    bronze = Bronze(lake, config.pipeline)
    registered = Records(lake).tables.read()
    known = {*registered, *(bronze.table_names() if bronze.relations.exists() else ())}
    names = tuple(name for name in sorted(known) if config.rule_for(name) is not None and matches(name))
    if not names:
        raise no_match(lake, config, globs)
    end = bronze.captured_offset()
    detached = detached_tables(config, bronze.copies.read(), names, end) if end else {}
    require_followed(names, detached)
    names = tuple(name for name in names if name not in detached)
    if key_ranges:
        _check_key_ranges(config, bronze, names, key_ranges, registered.get(names[0]))
    bronze.copies.request([CopyRequest.of(name, REASON, key_ranges) for name in names])
    run = None
    if runs:
        from pipeline.operate.run import run_both

        run = run_both(config, stop=stop, ingest_progress=progress)
    return ResyncSummary(config.pipeline, names, len(key_ranges), run)


def _check_key_ranges(
    config: Config,
    bronze: Bronze,
    names: Sequence[TableName],
    key_ranges: Sequence[KeyRange],
    registered: RegisteredTable | None,
) -> None:
    """Raise ConfigError for key ranges that no copy can have, as bronze and the source know the table."""
    if len(names) > 1:
        raise ConfigError(f"--key names rows of one table, but --table matches {len(names)} tables.")
    (name,) = names
    versions = [each for each in bronze.source_relations().values() if each.name == name]
    relation = max(versions, key=lambda each: each.lsn)
    if registered is not None and relation.oid == registered.relation_id:
        same = [each for each in versions if each.oid == relation.oid]
        relation = shown_relation(registered, same) or relation
    fault = describe_unusable(relation.key_types, key_ranges)
    if any(column.name in relation.key for column in relation.protected):
        fault = "a column of its key is hashed, and the request would contain the value"
    if fault is None:
        with connect(config.source.conninfo, application_name="pgdelta resync") as source:
            if not accepts_keys(source, name, key_condition(relation.key, relation.key_types, key_ranges)):
                fault = "The type of a key column rejects the given value. Write it as SELECT prints it."
    if fault:
        raise ConfigError(f"Rows of {name} cannot be copied by key: {fault}.")
