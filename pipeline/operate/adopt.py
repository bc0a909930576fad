"""Adopt a Delta table that another program wrote, so that a table needs no complete copy from the source.

The command records a request, which names the Delta table at its newest version. Ingest then compares it with
the source under one snapshot and copies what differs (`silver/compare/adoption`), and apply starts silver
from that copy. A command that ended early continues when it runs again: the request and the copy are in the
lake.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlparse

from pipeline.bronze.copy_states import COMPLETE, Adoption, CopyHistory, CopyRequest, adopts_no_protected
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.crash_steps import AdoptionStep, crash_step
from pipeline.delta.filesystem import is_within
from pipeline.delta.locks import refuse_while_apply_runs
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError, LakeError, SourceError
from pipeline.operate.run import RunSummary, run_both
from pipeline.postgres.connection import Connection, connect
from pipeline.postgres.matched_relations import read_relations
from pipeline.postgres.publication import (
    describe_published,
    list_configured,
    list_published,
    read_publication,
)
from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.postgres.sql_text import quote_identifier
from pipeline.postgres.unpublished_tables import find_unpublished
from pipeline.progress import IngestProgress
from pipeline.table_name import TableName, match_tables
from pipeline.units import format_count


@dataclass(frozen=True, slots=True)
class AdoptSummary:
    """The table and what it adopts; the run that did it, or what a comparison found."""

    name: TableName
    adoption: Adoption
    is_new: bool = True  # else an earlier command has adopted it
    sentence: str | None = None  # of a comparison that changed nothing
    run: RunSummary | None = None

    @property
    def copied(self) -> tuple[int, int] | None:
        """The rows that were copied from the source and all rows, None if this run completed no adoption."""
        copy = self.run.ingest.copies.get(self.name) if self.run else None
        if copy is None or not copy.is_complete:
            return None
        return copy.rows_landed - copy.rows_adopted, copy.rows_landed

    def lines(self) -> list[str]:
        lines = self.run.lines() if self.run else []
        what = f"adopt {self.name}"
        named = f"version {self.adoption.version} of {self.adoption.path}"
        if self.copied is not None:
            copied, rows = self.copied
            lines.append(f"{what}: {copied:,} of {format_count(rows, 'row')} differed and were copied")
        elif self.sentence is not None:
            lines += [f"{what}: {named}", self.sentence, "Nothing was changed (--dry-run)."]
        elif not self.is_new:
            lines.append(f"{what}: it was adopted before")
        elif self.run is None:
            lines.append(f"{what}: requested; the next ingest compares {named} and copies what differs")
        else:
            lines.append(f"{what}: not adopted yet; run the same command again")
        return lines

    def as_json(self) -> dict[str, Any]:
        copied, rows = self.copied or (None, None)
        return {
            **self.name._asdict(),
            "path": self.adoption.path,
            "version": self.adoption.version,
            "adopted_before": not self.is_new,
            "rows": rows,
            "copied_rows": copied,
            "comparison": self.sentence or (self.run and self.run.ingest.compared.get(self.name)),
            "run": self.run and self.run.as_json(),
        }

    def exit_code(self, strict: bool) -> int:
        """Return 1 if the run failed or did not complete the adoption."""
        if self.run is None:
            return 0
        is_open = self.is_new and self.copied is None
        return max(self.run.exit_code(strict), int(is_open))


def run_adopt(
    config: Config,
    table: str,
    path: str,
    *,
    ignored: Sequence[str] = (),
    is_dry_run: bool = False,
    runs: bool = True,
    progress: IngestProgress | None = None,
    stop: threading.Event | None = None,
) -> AdoptSummary:
    """Adopt the Delta table at `path` for a table of the source; its `ignored` columns are left out.

    `table` is a glob that matches one table. A dry run compares and changes nothing. Without `runs`, the
    adoption is only requested.
    """
    from pipeline.silver.compare.adoption import read_version

    lake = Lake.for_writing(config.storage, application=f"pgdelta adopt {config.pipeline}")
    path = _absolute(lake, path)
    bronze = Bronze(lake, config.pipeline)
    with connect(config.source.conninfo, application_name="pgdelta adopt") as connection:
        name = _find_table(connection, config, table)
        history = bronze.copies.read()
        before = _adopted_before(name, history)
        is_new = before is None or before.path != path
        last = history.last(name)
        if is_new and last is not None and last.state == COMPLETE:
            raise LakeError(
                f"Table {name} has been copied already, so there is nothing to adopt. Compare and repair it"
                " with pgdelta reconcile --repair."
            )
        if before is None or is_dry_run:
            adoption = Adoption(path, read_version(lake, path), tuple(sorted(set(ignored))))
            _check_columns(connection, config, lake, name, adoption, is_dry_run=is_dry_run)
    if is_dry_run:
        return AdoptSummary(name, adoption, sentence=_compare(config, lake, name, adoption))
    if before is not None:
        run = run_both(config, stop=stop, ingest_progress=progress) if runs else None
        return AdoptSummary(name, before, is_new=False, run=run)
    if runs:
        refuse_while_apply_runs(lake)
    waiting = history.open_requests.get(name, [])
    if not waiting or waiting[-1].adoption != adoption:
        with crash_step(AdoptionStep.REQUEST_ADOPTION):
            bronze.copies.request([CopyRequest.of(name, adoption.reason)])
    run = run_both(config, stop=stop, ingest_progress=progress) if runs else None
    return AdoptSummary(name, adoption, run=run)


def _find_table(connection: Connection, config: Config, glob: str) -> TableName:
    """Return the table of the source that a glob names; raise ConfigError if it is not one table."""
    matches = match_tables([glob])
    names = [name for name in list_configured(connection, config, via_root=False) if matches(name)]
    if len(names) != 1:
        found = f"{len(names)} tables match" if names else "No table matches"
        raise ConfigError(
            f"{found} --table {glob} and tables in {config.path} at the source. Name one table, and add it to"
            " the configuration first."
        )
    rule = config.rule_for(names[0])
    if rule is not None and rule.columns:
        raise ConfigError(adopts_no_protected(names[0]))
    return names[0]


def _absolute(lake: Lake, path: str) -> str:
    """Return the path of a Delta table as the lake names paths; raise ConfigError if it is in the lake."""
    if not urlparse(path).scheme:
        path = f"file:{os.path.abspath(path)}"
    if urlparse(path).password is not None:
        raise ConfigError("PATH has a password, and would be recorded. Give Spark the credentials instead.")
    path = path.rstrip("/")
    if is_within(path, lake.root):
        raise ConfigError(
            f"{path} is in the lake itself, where pgdelta writes. Move the Delta table to another folder."
        )
    return path


def _adopted_before(name: TableName, history: CopyHistory) -> Adoption | None:
    """Return what the newest copy of a table was adopted from, None if it was not."""
    last = history.last(name)
    if last is None or last.state != COMPLETE:
        return None
    found = [r.adoption for r in history.requests if r.id in last.requests and r.adoption is not None]
    return found[-1] if found else None


def _check_columns(
    connection: Connection,
    config: Config,
    lake: Lake,
    name: TableName,
    adoption: Adoption,
    *,
    is_dry_run: bool,
) -> None:
    """Raise LakeError if the columns of a Delta table are not those of the table.

    A table that is not published yet is checked when ingest has published it; a dry run refuses it. Raises
    SourceError if ingest will not publish it.
    """
    from pipeline.silver.compare.adoption import check_columns

    publication = config.source.publication
    if name in list_published(connection, publication):
        check_columns(connection, lake, describe_published(connection, publication, name), adoption)
        return
    _refuse_unpublished(connection, config, name)
    if is_dry_run:
        raise SourceError(
            f"Table {name} is not published by {publication}, so it cannot be compared. Publish it, or adopt "
            "without --dry-run: ingest publishes what matches the configuration."
        )


def _refuse_unpublished(connection: Connection, config: Config, name: TableName) -> None:
    """Raise SourceError if ingest will not publish a table: no copy of it would ever begin."""
    publication = read_publication(connection, config.source.publication)
    if publication is None:  # ingest creates it
        return
    relations = read_relations(connection, config)
    unpublished = find_unpublished(connection, config, publication, relations)
    if name not in unpublished:
        raise SourceError(
            f"The publication {publication.name} publishes the rows of {name} under other names: those of its"
            " partitions, or of the table that it is a partition of. Adopt a Delta table for these, or change"
            " publish_via_partition_root of the publication."
        )
    if (reason := unpublished[name]) is not None:
        raise SourceError(
            f"Table {name} cannot be adopted, because it is not published. {reason.why} "
            + reason.fix_for(quote_identifier(*name))
        )


def _compare(config: Config, lake: Lake, name: TableName, adoption: Adoption) -> str:
    """Return what a comparison under a snapshot finds; nothing is changed."""
    from pipeline.silver.compare.adoption import compare_adoption

    source = config.source
    with (
        closing(SnapshotKeeper(source.snapshot_conninfo, key=source.snapshot_key)) as keeper,
        compare_adoption(config, lake, keeper.connection, keeper.snapshot, name, adoption) as compared,
    ):
        return compared.sentence
