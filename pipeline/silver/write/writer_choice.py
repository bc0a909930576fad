"""Who writes a step to a silver table: the native writer, or Spark. Pure.

The first row of `TABLE` whose condition holds decides. The native writer reads, folds and writes in this
process. On two cores it took a fourth of Spark's time or less for all sizes that were tried, so its limits
are those of memory, and of machines with many cores. What it does not write exactly as Spark goes to Spark.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pipeline.delta.native_write import is_supported
from pipeline.delta.table_log import Snapshot
from pipeline.silver.fold.fold import Fold
from pipeline.silver.fold.key_bounds import has_sure_column
from pipeline.silver.fold.write import WriteKind
from pipeline.silver.schema.schema_operations import CHANGE_FEED
from pipeline.units import format_count, format_size

MAX_CHANGES = 1_000_000  # of one step: their fold takes some 600 MiB
MAX_READ_ONCE = (
    4_000_000  # of one whose rows are written as they are read: memory has a key and place of each
)
MAX_CHANGE_BYTES = 128 << 20  # of the files of bronze that have them, and those of other tables
MAX_ROWS_AT_ONCE = 100_000  # that a step only adds; more are written in chunks
MAX_BYTES_AT_ONCE = 16 << 20  # of the files of bronze that have them
MAX_COMPARED_BYTES = 64 << 20  # of a table whose rows are all compared
MAX_BYTES = 512 << 20  # of a table's files that may have changed rows
SMALL_CHANGES = 10_000  # of a small write by Spark
SMALL_BYTES = 16 << 20  # of its table's files

CHANGE_DATA_FEED = "a change data feed"

WriterSetting = Literal["auto", "spark", "native"]


class Writer(enum.Enum):
    """Who writes."""

    NATIVE = "native"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class WriteFacts:
    """What is known of a write."""

    kind: WriteKind
    setting: WriterSetting = "auto"
    is_local: bool = True
    unsupported: str | None = None  # a feature of the table that the native writer does not write
    other_types: tuple[str, ...] = ()  # types that DuckDB does not read as Spark does
    only_adds: bool = False  # no other change of the step updates or deletes its rows
    is_read_once: bool = False  # its rows are not in memory
    changes: int = 0
    change_bytes: int | None = 0  # of the files that have them; None if only Spark can read these
    compared_bytes: int = 0  # of the table, if all its files are read to compare rows


@dataclass(frozen=True, slots=True)
class Choice:
    """Who writes, and why."""

    writer: Writer
    reason: str

    @property
    def is_native(self) -> bool:
        """Whether the native writer writes."""
        return self.writer is Writer.NATIVE

    def __str__(self) -> str:
        """Return who writes and why, for people."""
        return f"{'without' if self.is_native else 'by'} Spark ({self.reason})"


@dataclass(frozen=True, slots=True)
class WriterRow:
    """One row of the table: when it holds, who writes, and why."""

    holds: Callable[[WriteFacts], object]
    writer: Writer
    reason: Callable[[WriteFacts], str]


TABLE = (
    WriterRow(lambda w: w.setting == "spark", Writer.SPARK, lambda w: "silver.writer is spark"),
    WriterRow(lambda w: not w.is_local, Writer.SPARK, lambda w: "only Spark reads storage.root"),
    WriterRow(lambda w: w.unsupported, Writer.SPARK, lambda w: f"the table has {w.unsupported}"),
    WriterRow(lambda w: w.other_types, Writer.SPARK, lambda w: f"it has {', '.join(w.other_types)} columns"),
    WriterRow(lambda w: w.change_bytes is None, Writer.SPARK, lambda w: "only Spark can read the changes"),
    WriterRow(lambda w: w.setting == "native", Writer.NATIVE, lambda w: "silver.writer is native"),
    WriterRow(
        lambda w: w.only_adds, Writer.NATIVE, lambda w: f"{format_count(w.changes, 'row')}, only added"
    ),
    WriterRow(
        lambda w: w.is_read_once and w.changes <= MAX_READ_ONCE,
        Writer.NATIVE,
        lambda w: f"{format_count(w.changes, 'change')} into an empty table",
    ),
    WriterRow(
        lambda w: w.changes > MAX_CHANGES,
        Writer.SPARK,
        lambda w: format_count(w.changes, "change"),
    ),
    WriterRow(
        lambda w: (w.change_bytes or 0) > MAX_CHANGE_BYTES,
        Writer.SPARK,
        lambda w: f"{format_size(w.change_bytes or 0)} of bronze are read",
    ),
    WriterRow(
        lambda w: w.compared_bytes > MAX_COMPARED_BYTES,
        Writer.SPARK,
        lambda w: f"{format_size(w.compared_bytes)} of the table are compared",
    ),
    WriterRow(lambda w: True, Writer.NATIVE, lambda w: format_count(w.changes, "change")),
)
"""The first row that holds decides."""


def choose(facts: WriteFacts) -> Choice:
    """Return who writes."""
    row = next(row for row in TABLE if row.holds(facts))
    return Choice(row.writer, row.reason(facts))


def is_small_write(changes: int, snapshot: Snapshot) -> bool:
    """Return whether few changes are written to a small table: Spark's plan is a simple one then."""
    if changes > SMALL_CHANGES:
        return False
    return sum(int(file["size"]) for file in snapshot.files.values()) <= SMALL_BYTES


def other_types(fold: Fold, *, with_keys: bool = True) -> tuple[str, ...]:
    """Return the types of columns that only Spark reads and writes, in order.

    Of keys too, those whose text DuckDB writes in another way than Spark, because misfits are recorded with
    it.
    """
    found = [column.type.ddl for column in fold.columns if not column.type.is_native]
    keys = (fold.columns[i].type.ddl for i in (fold.key if with_keys else ()))
    found += [f"{ddl} key" for ddl in keys if ddl in ("FLOAT", "DOUBLE") or ddl.startswith("ARRAY<")]
    return tuple(dict.fromkeys(found))


def compared_bytes(kind: WriteKind, fold: Fold, snapshot: Snapshot) -> int:
    """Return the bytes of a table whose rows are all compared, 0 if statistics show which files to read."""
    if kind is not WriteKind.COMPARE and (kind is not WriteKind.MERGE_ROWS or has_sure_column(fold)):
        return 0
    return sum(int(file["size"]) for file in snapshot.files.values())


def unsupported_feature(snapshot: Snapshot) -> str | None:
    """Return what a table has that the native writer does not write, None if nothing."""
    if snapshot.configuration.get(CHANGE_FEED, "false").lower() == "true":
        return CHANGE_DATA_FEED
    if not is_supported(snapshot, removes=True):
        return "a table feature or property that only Spark writes"
    if any(file.get("deletionVector") for file in snapshot.files.values()):
        return "deletion vectors"
    return None
