"""Audit silver by its files alone: every file has the rows that it had when its fingerprint was recorded.

Each file is read again and compared with what `_pgdelta/fingerprints` has of it. A foreign commit that
changed rows since is named. Neither the source nor bronze is read, and nothing is changed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.config.config import Config
from pipeline.delta.file_list import Add
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import LakeError, report_error
from pipeline.fingerprint import total
from pipeline.metadata.fingerprints import FileFingerprint, Fingerprints, TableFingerprint
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.silver.compare.compared_rows import DatasetRows, rows_of
from pipeline.silver.compare.file_fingerprints import columns_of_record, fingerprint_of
from pipeline.silver.compare.row_hashes import SilverColumn
from pipeline.silver.read.missing_tables import no_match
from pipeline.silver.schema.foreign_commits import find_foreign_commit
from pipeline.table_name import TableName, match_tables
from pipeline.terminal import print_lines, print_list, print_paragraph
from pipeline.units import format_count, format_nonzero

WHOLE, DAMAGED, PARTLY, UNKNOWN = "whole", "damaged", "partly", "unknown"
_COLOURS = {DAMAGED: "red", UNKNOWN: "yellow", PARTLY: "yellow", WHOLE: "green"}
_ORDER = tuple(_COLOURS)


@dataclass(frozen=True, slots=True)
class AuditedTable:
    """The files of one version of a table: those that were read again, and those with no fingerprint.

    `findings` says of a file, or a commit, what is wrong. A table that cannot be audited has a `reason`.
    """

    name: TableName
    version: int = -1
    files: int = 0
    rows: int = 0
    unrecorded: int = 0
    findings: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def verdict(self) -> str:
        if self.findings:
            return DAMAGED
        if self.reason is not None or (self.unrecorded and not self.files):
            return UNKNOWN
        return PARTLY if self.unrecorded else WHOLE


@dataclass(frozen=True, slots=True)
class SilverAudit:
    """What the files of silver tables have, beside what was recorded of them."""

    pipeline: str
    tables: tuple[AuditedTable, ...]

    def exit_code(self, strict: bool) -> int:
        """Return 1 if a file or a commit is not as recorded; `strict` counts what is not known too."""
        wrong = {DAMAGED, PARTLY, UNKNOWN} if strict else {DAMAGED}
        return int(any(table.verdict in wrong for table in self.tables))

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "whole": self.exit_code(strict=False) == 0,
            "tables": [
                {
                    **table.name._asdict(),
                    "verdict": table.verdict,
                    "version": table.version,
                    "files": table.files,
                    "rows": table.rows,
                    "unrecorded": table.unrecorded,
                    "findings": list(table.findings),
                    "reason": table.reason,
                }
                for table in self.tables
            ],
        }

    def print(self, console: Console) -> None:
        """Print a line a table, what is wrong, and what is not known."""
        counts = Counter(table.verdict for table in self.tables)
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _ORDER if counts[verdict])
        print_paragraph(console, f"{self.pipeline}: silver's files read again: {words}")
        console.print()
        ordered = sorted(self.tables, key=lambda table: (_ORDER.index(table.verdict), table.name))
        rows = [
            (
                str(table.name),
                Text(table.verdict, _COLOURS[table.verdict]),
                f"{table.files:,}",
                f"{table.rows:,}",
                format_nonzero(table.unrecorded),
            )
            for table in ordered
        ]
        headings = ("table", "files are", "read again", "rows", "not recorded")
        print_list(console, headings, rows, right=headings[2:])
        if notes := list(_notes(ordered)):
            console.print()
            print_lines(console, notes)


def _notes(tables: Sequence[AuditedTable]) -> Iterator[str]:
    for table in tables:
        for finding in table.findings:
            yield f"{table.name}: {finding}"
        if table.reason is not None:
            yield f"not audited: {table.name}: {table.reason}"
    if unrecorded := sum(table.unrecorded for table in tables):
        files = format_count(unrecorded, "file")
        yield f"{files} without a recorded fingerprint: pgdelta fingerprint records them"


def run_silver_audit(
    config: Config, globs: Sequence[str] | None = None, *, stop: threading.Event | None = None
) -> SilverAudit:
    """Read the files of the tables that globs match, or all; raise LakeError if none matches."""
    lake = Lake(config.storage, application=f"pgdelta audit {config.pipeline}")
    matches = match_tables(globs)
    recorded = Fingerprints(lake).read()
    tables = Records(lake).tables.read()
    names = sorted(name for name in tables if matches(name) and config.rule_for(name) is not None)
    if not names:
        raise no_match(lake, config, globs)
    found = []
    for name in names:
        if stop is not None and stop.is_set():
            break
        try:
            audited = _audit(config, lake.table_at(tables[name].path), tables[name], recorded.get(name))
        except Exception as error:  # the others are audited all the same
            audited = AuditedTable(name, reason=report_error(error))
        found.append(audited)
    return SilverAudit(config.pipeline, tuple(found))


def _audit(
    config: Config, table: LakeTable, registered: RegisteredTable, record: TableFingerprint | None
) -> AuditedTable:
    name, snapshot = registered.name, table.snapshot()
    if record is not None and not snapshot.exists:
        return AuditedTable(name, findings=(f"its folder {snapshot.path} has no table any more",))
    rows = rows_of(table, snapshot, registered, config.silver.writer)
    if not isinstance(rows, DatasetRows):
        raise LakeError(f"{rows.reason[0].upper()}{rows.reason[1:]}.")
    if record is None or record.table_id != snapshot.table_id or record.condition != rows.condition:
        return AuditedTable(name, snapshot.version, unrecorded=len(snapshot.files))
    columns = columns_of_record(record, snapshot)
    known, findings, read, count = record.by_file, [], 0, 0
    for key, add in snapshot.files.items():
        if (file := known.get(key)) is not None:
            read, count = read + 1, count + file.rows
            if finding := _finding(rows, key, add, file, columns):
                findings.append(finding)
    findings += _foreign(table, record.version)
    unrecorded = len(snapshot.files) - read
    return AuditedTable(name, snapshot.version, read, count, unrecorded, tuple(findings))


def _finding(
    rows: DatasetRows, key: str, add: Add, file: FileFingerprint, columns: Sequence[SilverColumn]
) -> str | None:
    """Return what is wrong with a file, None if it has the rows that it had."""
    try:
        found = fingerprint_of(rows.of_files({key: add}), columns)
    except Exception as error:
        return f"{add['path']} cannot be read: {report_error(error)}"
    if found == total([file]):
        return None
    if found.rows != file.rows:
        return f"{add['path']} has {found.rows:,} of {format_count(file.rows, 'row')}"
    return f"{add['path']} has other values than were written"


def _foreign(table: LakeTable, since: int) -> list[str]:
    """Return the foreign commit that changed rows since a version, if there is one."""
    foreign = find_foreign_commit(table.operations_after(since), since)
    if foreign is None:
        return []
    return [f"{foreign.operation} at version {foreign.version} changed rows, and no commit of pgdelta did"]
