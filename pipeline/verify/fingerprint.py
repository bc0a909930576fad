"""Fingerprint silver tables as they are, and say by which SQL a copy of them elsewhere is fingerprinted.

What is read is recorded, so a proof or an audit later has the fingerprint of every file. The source is not
read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console

from pipeline.bronze.log import Bronze
from pipeline.bronze.source_relations import versions_by_oid
from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.delta.table_log import Snapshot
from pipeline.engine import DUCKDB, SPARK, Engine
from pipeline.errors import ConfigError, LakeError, report_error
from pipeline.fingerprint import Fingerprint
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.postgres.snapshot.hashed_rows import fingerprint_query
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.compare.comparable_columns import ComparableColumns, plan_comparison, shown_relation
from pipeline.silver.compare.compared_rows import DatasetRows, fields_of, rows_of
from pipeline.silver.compare.file_fingerprints import FileCounts, FileFingerprints
from pipeline.silver.compare.row_hashes import fingerprint_sql
from pipeline.silver.fold.modes import current_rows, why_not_comparable
from pipeline.silver.read.missing_tables import no_match
from pipeline.table_name import TableName, match_tables
from pipeline.terminal import print_lines, print_list, print_paragraph
from pipeline.units import format_count

Dialect = Literal["postgres", "duckdb", "spark"]
_ENGINES: dict[Dialect, Engine] = {"duckdb": DUCKDB, "spark": SPARK}


@dataclass(frozen=True, slots=True)
class FingerprintedTable:
    """One version of a silver table and the LSN that it shows; `reason` is why there is no fingerprint."""

    name: TableName
    version: int = -1
    lsn: LSN = INVALID
    fingerprint: Fingerprint | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class FingerprintedTables:
    """The fingerprints of a lake's tables, and how many files were read for them."""

    pipeline: str
    tables: tuple[FingerprintedTable, ...]
    files: FileCounts

    def exit_code(self, strict: bool) -> int:
        """Return 1 if a table has no fingerprint."""
        return int(any(table.fingerprint is None for table in self.tables))

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "files": self.files._asdict(),
            "tables": [
                {
                    **table.name._asdict(),
                    "version": table.version,
                    "lsn": str(table.lsn) if table.lsn else None,
                    "rows": table.fingerprint and table.fingerprint.rows,
                    "fingerprint": table.fingerprint and str(table.fingerprint),
                    "reason": table.reason,
                }
                for table in self.tables
            ],
        }

    def print(self, console: Console) -> None:
        """Print a line a table, and why some have no fingerprint."""
        read = f"{format_count(self.files.read, 'file')} read, {self.files.recorded:,} recorded before"
        print_paragraph(console, f"{self.pipeline}: fingerprints of silver: {read}")
        console.print()
        rows = [
            (str(table.name), str(table.lsn), f"{table.fingerprint.rows:,}", str(table.fingerprint))
            for table in self.tables
            if table.fingerprint is not None
        ]
        print_list(console, ("table", "LSN", "rows", "fingerprint"), rows, right=("rows",))
        if notes := [f"{each.name}: {each.reason}" for each in self.tables if each.reason]:
            console.print()
            print_lines(console, notes)


@dataclass(frozen=True, slots=True)
class FingerprintQuery:
    """SQL that gives the fingerprint of a copy of one table."""

    name: TableName
    sql: str

    def as_json(self) -> dict[str, Any]:
        return {**self.name._asdict(), "sql": self.sql}

    def print(self, console: Console) -> None:
        """Print the SQL, in one line that a client takes as it is."""
        console.out(f"{self.sql};", highlight=False)


@dataclass(frozen=True, slots=True)
class _PlannedTable:
    """A version of a silver table, and how its rows are hashed."""

    registered: RegisteredTable
    snapshot: Snapshot
    compared: ComparableColumns
    lsn: LSN


class Fingerprinter:
    """Plans how the rows of silver tables are hashed, by what bronze has of the source."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.lake = Lake(config.storage, application=f"pgdelta fingerprint {config.pipeline}")
        self._bronze = Bronze(self.lake, config.pipeline)
        self._versions = versions_by_oid(self._bronze.source_relations().values())
        self.tables = Records(self.lake).tables.read()

    def names(self, globs: Sequence[str] | None) -> list[TableName]:
        """Return the tables that globs match, or all; raise LakeError if there is none."""
        matches = match_tables(globs)
        found = (name for name in self.tables if matches(name) and self._config.rule_for(name) is not None)
        if names := sorted(found):
            return names
        raise no_match(self.lake, self._config, globs)

    def plan(self, name: TableName) -> _PlannedTable:
        """Return how a table's rows are hashed; raise LakeError if they are not those of the source."""
        registered, rule = self.tables[name], self._config.rule_for(name)
        assert rule is not None
        if reason := why_not_comparable(rule):
            raise LakeError(reason)
        table = self.lake.table_at(registered.path)
        snapshot = table.snapshot()
        relation = shown_relation(registered, self._versions.get(registered.relation_id, ()))
        if relation is None:
            raise LakeError("Bronze has no relation version of the table.")
        compared = plan_comparison(
            relation.columns,
            relation.key,
            registered.columns,
            fields_of(snapshot),
            rule,
            is_ascii=False,
            protected=registered.protected,
            partition_by=snapshot.partition_columns,
        )
        compared.require_any()
        return _PlannedTable(registered, snapshot, compared, table.offset(self._bronze.txn) or INVALID)

    def fingerprint(self, name: TableName, files: FileFingerprints) -> FingerprintedTable:
        """Return the fingerprint of the newest version of a table."""
        planned = self.plan(name)
        table = self.lake.table_at(planned.registered.path)
        rows = rows_of(table, planned.snapshot, planned.registered, self._config.silver.writer)
        if not isinstance(rows, DatasetRows):
            raise LakeError(f"Only Spark reads its rows: {rows.reason}.")
        found = files.of_rows(rows, planned.compared.silver)
        return FingerprintedTable(name, planned.snapshot.version, planned.lsn, found)

    def query(self, name: TableName, dialect: Dialect) -> FingerprintQuery:
        """Return SQL of a dialect for the fingerprint of a table with the names of a table of silver."""
        planned = self.plan(name)
        if dialect == "postgres":
            return FingerprintQuery(name, fingerprint_query(planned.compared.shape, name))
        engine = _ENGINES[dialect]
        names = {physical: field for physical, (field, _) in fields_of(planned.snapshot).items()}
        condition = current_rows(planned.registered, names, engine) or "true"
        source = f"(SELECT * FROM {'.'.join(map(engine.quoted, name))} WHERE {condition}) AS t"
        return FingerprintQuery(name, fingerprint_sql(engine, source, planned.compared.silver))


def run_fingerprint(
    config: Config, globs: Sequence[str] | None = None, *, stop: threading.Event | None = None
) -> FingerprintedTables:
    """Fingerprint the tables that globs match, or all, and record what was read."""
    fingerprinter = Fingerprinter(config)
    files = FileFingerprints(fingerprinter.lake)
    tables = []
    try:
        for name in fingerprinter.names(globs):
            if stop is not None and stop.is_set():
                break
            try:
                tables.append(fingerprinter.fingerprint(name, files))
            except Exception as error:  # the others are read all the same
                tables.append(FingerprintedTable(name, reason=report_error(error)))
    finally:
        files.record()
    return FingerprintedTables(config.pipeline, tuple(tables), files.counts)


def read_query(config: Config, globs: Sequence[str], dialect: Dialect) -> FingerprintQuery:
    """Return the SQL of a dialect for the one table that globs match."""
    fingerprinter = Fingerprinter(config)
    names = fingerprinter.names(globs)
    if len(names) > 1:
        raise ConfigError(f"--sql is for one table, and {len(names)} match. Name one by --table.")
    return fingerprinter.query(names[0], dialect)
