"""Build one table as of any LSN from bronze, at a path outside the lake: `pgdelta rebuild --into`.

The table is built in a working folder of the lake, by the code that builds silver. One commit then gives its
columns and rows to the table at the path, so that readers see the former result or the new one. Nothing else
of the lake is written, and no lock is held; jobs go on meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipeline.bronze.change_rows import ChangeRows
from pipeline.bronze.changes_scan import ROW_OPS
from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.crash_steps import RebuildStep, crash_step
from pipeline.delta import native_write
from pipeline.delta.filesystem import is_within, path_exists
from pipeline.delta.replacement import replace_table
from pipeline.delta.schema import TableSchema
from pipeline.delta.sql import literal, to_microseconds
from pipeline.delta.store.store import is_store
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import OURS, metadata_settings
from pipeline.errors import ConfigError, LakeError
from pipeline.metadata.manifests import Manifests
from pipeline.metadata.registry import Records
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.compare.clone import CloneFolder
from pipeline.silver.read.as_of import parse_lsn, parse_time
from pipeline.silver.read.missing_tables import no_match
from pipeline.silver.read.past_copies import PastFacts, copy_as_of
from pipeline.silver.schema.swap import REBUILD, BufferedRecords
from pipeline.silver.write.native_session import NativeWriting
from pipeline.silver.write.table import SilverTable
from pipeline.table_name import TableName, match_tables
from pipeline.units import format_count

PIPELINE, TABLE, SHOWN = "pgdelta.pipeline", "pgdelta.table", "pgdelta.lsn"
"""The properties of a result: whose it is, and the LSN that it shows once it is complete."""


@dataclass(frozen=True, slots=True)
class BuiltTable:
    """A table that was built as of an LSN; `missing_values` are those that bronze does not have.

    `notes` say where its rows may differ from the source's, because the stream did not carry a change.
    """

    pipeline: str
    name: TableName
    lsn: LSN
    path: str
    row_count: int
    missing_values: int = 0
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        rows = format_count(self.row_count, "row")
        lines = [f"rebuild {self.pipeline}: {self.name} as of {self.lsn}: {rows} in {self.path}"]
        if self.missing_values:
            values = format_count(self.missing_values, "value")
            lines.append(f"NULL instead of {values} that the source did not send")
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            **self.name._asdict(),
            "lsn": str(self.lsn),
            "path": self.path,
            "rows": self.row_count,
            "missing_values": self.missing_values,
            "notes": list(self.notes),
        }

    def exit_code(self, strict: bool) -> int:
        """Return 0."""
        return 0


class PastTable(SilverTable):
    """A table that is built as of an LSN; it requests nothing."""

    def _request_whole_copy(self, reason: str, copy: CompleteCopy) -> None:
        raise LakeError(
            f"Table {self.name} cannot be built with the copy at {copy.end_lsn}. {reason} Choose an "
            "LSN before it, or one after the next copy of all rows."
        )


def build_into(
    config: Config,
    globs: Sequence[str],
    into: str,
    *,
    lsn: str | None = None,
    time: str | None = None,
) -> BuiltTable:
    """Build the table that globs name at a path, as of an LSN, a commit time, or the newest LSN of bronze.

    Raises ConfigError if not exactly one table matches or the path is not free, LakeError if bronze does not
    have the table as of the LSN.
    """
    wanted_lsn = None if lsn is None else parse_lsn(lsn)
    wanted_time = None if time is None else parse_time(time)
    lake = Lake.for_writing(config.storage, application=f"pgdelta rebuild {config.pipeline}")
    bronze = Bronze(lake, config.pipeline)
    name = _find_table(config, bronze, globs)
    target = _target(lake, into)
    _check_target(target, config.pipeline, name)
    captured = bronze.require_offset()
    end_lsn = captured.lsn if wanted_lsn is None else wanted_lsn
    if wanted_time is not None:
        end_lsn = _lsn_at(bronze, name, wanted_time, captured.lsn)
    history, relations = bronze.copies.read(), bronze.source_relations()
    facts = PastFacts(
        name,
        captured.lsn,
        bronze.bases.read().lsn_of(name),
        history,
        relations.values(),
        is_copied=config.source.copy != "never",
    )
    copy, rule = copy_as_of(facts, end_lsn), config.rule_for(name)
    assert rule is not None
    writer = PastTable(
        lake.sessions,
        bronze,
        BufferedRecords(Records(lake), discards_misfits=True),
        name,
        target.path,
        rule,
        history,
        metadata_columns=config.silver.metadata_columns,
        native=NativeWriting(config.silver.writer, ChangeRows(bronze)),
        is_copied=facts.is_copied,
    )
    folder = CloneFolder(lake)
    with closing(folder):
        built = folder.table(name)
        written, records = writer.build(built, relations, end_lsn, copy)
        if written.held:
            raise LakeError(written.held)
        if bronze.bases.read().lsn_of(name) > end_lsn:
            raise LakeError(
                f"bronze.retention compacted changes of {name} beyond {end_lsn} meanwhile. Choose another "
                "LSN."
            )
        rows = built.row_count()
        _publish(target, built, config.pipeline, name, end_lsn)
    notes = [event.sentence for event in records.events.resyncs_after(INVALID)]
    if written.why_uncompared:
        notes.append(written.why_uncompared)
    return BuiltTable(config.pipeline, name, end_lsn, target.path, rows, written.missing_values, tuple(notes))


def _find_table(config: Config, bronze: Bronze, globs: Sequence[str]) -> TableName:
    matches = match_tables(globs)
    known = bronze.table_names() if bronze.relations.exists() else set()
    names = [name for name in sorted(known) if config.rule_for(name) is not None and matches(name)]
    if not globs or len(names) > 1:
        raise ConfigError("--into takes one table. Name it with --table.")
    if not names:
        raise no_match(bronze.lake, config, globs)
    return names[0]


def _target(lake: Lake, into: str) -> LakeTable:
    """Return the table at a path; raise ConfigError if the path and the lake are not apart."""
    path = Lake(into, lake.sessions).root
    if is_within(path, lake.root) or is_within(lake.root, path):
        raise ConfigError(f"--into {into} is in the lake {lake.root}. Give a path outside of it.")
    return lake.table_at(path)


def _check_target(target: LakeTable, pipeline: str, name: TableName) -> None:
    """Raise ConfigError if there is something at the path that this command did not write for the table."""
    snapshot = target.snapshot()
    if snapshot.version < 0:
        if not _is_free(target):
            raise ConfigError(
                f"{target.path} exists but is not a Delta table. Give a path that does not exist."
            )
        return
    found = snapshot.configuration
    if (found.get(PIPELINE), found.get(TABLE)) != (pipeline, str(name)):
        raise ConfigError(
            f"{target.path} has a table that pgdelta rebuild did not write for {name} of {pipeline}. Give a "
            "path that does not exist."
        )


def _is_free(target: LakeTable) -> bool:
    """Return whether nothing is at a path, or what a run left that was killed before its first commit."""
    if target.local_path is None or is_store(target.path) or not os.path.isdir(target.local_path):
        return not path_exists(target.sessions, target.path)
    files = [os.path.join(place, each) for place, _, names in os.walk(target.local_path) for each in names]
    return all(os.path.basename(os.path.dirname(each)) == "_delta_log" for each in files)


def _lsn_at(bronze: Bronze, name: TableName, time: datetime, captured_lsn: LSN) -> LSN:
    """Return the LSN before the first transaction that committed after a time, as PostgreSQL's recovery does.

    Raises LakeError if bronze does not have every change of the table since that time.
    """
    base_lsn = bronze.bases.read().lsn_of(name)
    if base_lsn:
        manifests = Manifests(bronze.lake)
        # its commit time is that of the newest transaction before it
        since = min((lsn for lsn, _ in manifests.written() if lsn >= base_lsn), default=None)
        base_time = None if since is None else manifests.at(since).commit_time
        if base_time is None or base_time > time:
            raise LakeError(
                f"Table {name} cannot be built as of {time.isoformat()}, because bronze has every change of "
                f"it from {base_lsn} on only. Choose a later time."
            )
    later = f"unix_micros(commit_time) > {to_microseconds(time)} AND end_lsn > {int(base_lsn)}"
    sql = f"SELECT min(end_lsn) FROM {{changes}} WHERE {later}"
    # copied rows have the LSN and time of their snapshot
    rows = bronze.select(sql, ("commit_time", "end_lsn"), base_lsn, captured_lsn, ops=(*ROW_OPS, "R"))
    first = rows[0][0] if rows else None
    return captured_lsn if first is None else LSN(first - 1)


def _publish(target: LakeTable, built: LakeTable, pipeline: str, name: TableName, lsn: LSN) -> None:
    """Replace the columns and rows of the target in one commit, which records whose they are.

    A run that ends early leaves what was there, or a target without the property of the LSN; the next run
    replaces either.
    """
    table, owner = target.identifier, {PIPELINE: pipeline, TABLE: str(name)}
    metadata = {
        "operation": REBUILD,
        "pipeline": pipeline,
        "table": [name.schema, name.table],
        "end_lsn": str(lsn),
    }
    user_metadata = json.dumps({OURS: 1, **metadata})
    if not target.exists():
        if target.local_path is not None and not is_store(target.path):
            schema = TableSchema.of_ddl("_commit_lsn BIGINT")
            native_write.create(target.folder, schema, owner, user_metadata, by_statement=True)
        else:
            properties = ", ".join(f"'{key}' = {literal(value)}" for key, value in owner.items())
            target.run(f"CREATE TABLE {table} (_commit_lsn BIGINT) USING delta TBLPROPERTIES ({properties})")
    with crash_step(RebuildStep.PUBLISH_TABLE):
        if replace_table(target, built, {}, user_metadata, {SHOWN: str(lsn)}):
            return
        target.run(f"ALTER TABLE {table} UNSET TBLPROPERTIES IF EXISTS ('{SHOWN}')")
        with metadata_settings(target.spark, metadata):
            target.replace_with(built, None)
        target.run(f"ALTER TABLE {table} SET TBLPROPERTIES ('{SHOWN}' = '{lsn}')")
