"""Print the life of one row from bronze: `pgdelta history`.

It reads bronze only, and of it the files that may have changes of the table by their statistics; nothing is
written. The keys with which a row was found are closed under key changes, as for `pgdelta forget`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from pipeline.bronze.changes_scan import ROW_OPS, ChangesScan
from pipeline.bronze.copy_states import COMPLETE
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.errors import LakeError
from pipeline.protocol.lsn import LSN
from pipeline.reading.row_history import (
    OPERATIONS,
    ChangedColumn,
    HistoryEntry,
    RowChange,
    as_json,
    find_lives,
)
from pipeline.reading.row_keys import ForgottenTable, SubjectRows, close_keys, find_table, plan_table
from pipeline.silver.read.missing_tables import no_match
from pipeline.table_name import TableName
from pipeline.tail.text_format import value_text
from pipeline.terminal import plain, print_paragraph
from pipeline.units import format_count

_OPS = (*ROW_OPS, "R")
_READ = (*SubjectRows.COLUMNS, "op", "commit_lsn", "ordinal", "commit_time", "xid", "copy_id")
_CHUNK_ROWS, _CHUNK_BYTES = 262_144, 64 << 20


@dataclass(frozen=True, slots=True)
class RowHistory:
    """The lives of the rows that had a key, as far as bronze is complete; `base_lsn` is where it begins."""

    name: TableName
    key: tuple[str, ...]
    captured_lsn: LSN
    base_lsn: LSN
    lives: tuple[tuple[HistoryEntry, ...], ...]

    def exit_code(self, strict: bool) -> int:
        """Return 0: a key without changes has a history, too."""
        return 0

    def as_json(self) -> dict[str, Any]:
        return {
            **self.name._asdict(),
            "key": list(self.key),
            "captured_offset": str(self.captured_lsn),
            "base": str(self.base_lsn) if self.base_lsn else None,
            "rows": [[as_json(entry) for entry in life] for life in self.lives],
        }

    def print(self, console: Console) -> None:
        """Print a paragraph for each change: where and when, what it did, and the columns that it changed."""
        count = sum(map(len, self.lives))
        changes = format_count(count, "change") if count else "no changes"
        rows = f" of {len(self.lives)} rows" if len(self.lives) > 1 else ""
        key = ", ".join(self.key)
        title = f"{self.name}, key {key}: {changes}{rows} up to {self.captured_lsn}"
        print_paragraph(console, plain(title))
        if self.base_lsn:
            older = f"of changes before {self.base_lsn}, only those are left that wrote the rows of that time"
            print_paragraph(console, older)
        for life in self.lives:
            console.print()
            for entry in life:
                self._print_entry(console, entry)

    @staticmethod
    def _print_entry(console: Console, entry: HistoryEntry) -> None:
        change = entry.change
        time = f"{change.time:%Y-%m-%d %H:%M:%S.%f}Z" if change.time else "-"
        xid = f"xid {change.xid}  " if change.xid is not None else ""
        print_paragraph(console, plain(f"{change.lsn}  {time}  {xid}{OPERATIONS[change.op]}"))
        if entry.columns:
            print_paragraph(console, plain(", ".join(map(_assignment, entry.columns))), indent=4)


def _assignment(changed: ChangedColumn) -> str:
    oid = changed.column.base_oid

    def value(text: str | None) -> str:
        return value_text(None if text is None else text.encode(), oid)

    before = f"{value(changed.before)} → " if changed.has_before else ""
    return f"{changed.column.name}: {before}{value(changed.text)}"


def read_history(config: Config, glob: str, key: Sequence[str]) -> RowHistory:
    """Return the history of the row with a key, given by the texts of its columns, of one table.

    Raises ConfigError if no table or several match or the key is none of the table, LakeError if its rows
    cannot be told apart by key.
    """
    lake = Lake(config.storage, application=f"pgdelta history {config.pipeline}")
    bronze = Bronze(lake, config.pipeline)
    captured = bronze.captured_offset()
    if captured is None:
        raise no_match(lake, config, [glob])
    if bronze.changes.local_path is None:
        raise LakeError(
            f"pgdelta history needs a lake on a file system of this machine, and {lake.root} is on other "
            "storage. Query bronze/changes by Spark."
        )
    name = find_table(config, bronze, glob)
    table = plan_table(name, bronze.source_relations().values(), "history")
    [texts] = table.hashed([key], config.source.hash_key)
    wanted = table.parse_key(texts, "KEY")
    scans = _Scans(bronze, table, bronze.changes.local_path)
    subject = SubjectRows(table)
    pairs = {pair for rows in scans.read(SubjectRows.COLUMNS) for pair in subject.key_changes(rows)}
    changes = scans.changes(close_keys([wanted], pairs))
    base_lsn = bronze.bases.read().lsn_of(name)
    lives = tuple(map(tuple, find_lives(changes, wanted)))
    return RowHistory(name, tuple(key), captured.lsn, base_lsn, lives)


class _Scans:
    """Reads the changes of a table under all names that it had, from one version of bronze."""

    def __init__(self, bronze: Bronze, table: ForgottenTable, path: str) -> None:
        self._table = table
        self._relations = bronze.source_relations()
        states = bronze.copies.read().states.values()
        self._copies = {each.id for found in states for each in found if each.state == COMPLETE}
        snapshot = bronze.changes.snapshot()
        self._scans = [ChangesScan(path, snapshot, _OPS, name=name) for name in sorted(table.names)]

    def read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows, in chunks; some may be of other tables."""
        done: set[str] = set()
        for scan in self._scans:
            paths = tuple(path for path in scan.files() if path not in done)
            done.update(paths)
            if paths:
                yield from ChangesScan(scan.path, scan.snapshot, _OPS, paths=paths).chunks(
                    columns, _CHUNK_ROWS, _CHUNK_BYTES
                )

    def changes(self, keys: set[str]) -> list[RowChange]:
        """Return the changes of rows that have one of the keys, and all TRUNCATEs of the table."""
        subject = SubjectRows(self._table, keys)
        versions = pa.array(sorted(self._table.indexes), pa.int64())
        found: list[RowChange] = []
        for rows in self.read(_READ):
            is_ours = pc.is_in(rows.column("relation_version"), value_set=versions)
            is_truncate = pc.and_(is_ours, pc.equal(rows.column("op").cast(pa.string()), "T"))
            mask = pc.or_(subject.mask(rows), is_truncate.combine_chunks())
            chosen = rows.filter(mask)
            for row, pair in zip(chosen.to_pylist(), subject.keys(chosen), strict=True):
                if row["op"] != "R" or row["copy_id"] in self._copies:
                    found.append(self._change(row, *pair))
        return found

    def _change(self, row: dict[str, Any], old: str | None, new: str | None) -> RowChange:
        return RowChange(
            LSN(row["commit_lsn"]),
            row["ordinal"],
            row["op"],
            self._relations[row["relation_version"]],
            row["commit_time"],
            row["xid"],
            old,
            new,
            row["new"] or (),
            frozenset(row["unsent"] or ()),
        )
