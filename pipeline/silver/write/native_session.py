"""Open a DuckDB session with one table's pending changes, whole or in chunks."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf

import pyarrow as pa

from pipeline.bronze.change_rows import ChangeRows, RowStream, row_changes
from pipeline.bronze.table_input import InputStart, SequenceKey
from pipeline.delta.data_files import TooLargeError
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold.duckdb_sql import DuckSql, is_out_of_memory
from pipeline.silver.fold.write_plan import WriteStep
from pipeline.silver.write.native_files import NotNative
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName

MANY = 5_000  # rows: below, one more query of DuckDB costs more than it saves
_LARGE = 100_000  # rows
_LARGE_BYTES = 32 << 20  # of values
_turn = threading.Lock()


@dataclass(frozen=True, slots=True)
class NativeWriting:
    """What the native writer of a table needs: the setting, and the rows of bronze in memory."""

    setting: WriterSetting
    rows: ChangeRows


@contextmanager
def session_of_rows(
    rows: ChangeRows,
    name: TableName,
    start: InputStart,
    end_lsn: LSN,
    first: SequenceKey,
    last: SequenceKey,
    *,
    is_log: bool = False,
) -> Iterator[DuckSql]:
    """Give a session with the row changes in (first, last] as `changes`; only one at a time is large.

    With `is_log` they are those of `row_changes` as a log. Those that memory does not hold are streamed.
    """
    found: pa.Table | RowStream
    try:
        found = rows.read(name, start, end_lsn)
        count, size = float(found.num_rows), float(found.nbytes)
    except TooLargeError:
        found, count, size = rows.stream(name, start, end_lsn), inf, inf
    is_large = count > _LARGE or size > _LARGE_BYTES
    with _turn if is_large else nullcontext(), closing(DuckSql()) as session:
        session.has_many = count > MANY
        session.add("bronze", found)
        visible = f"(SELECT * FROM bronze WHERE {rows.visible})"
        session.define("changes", row_changes(visible, name, start, end_lsn, first, last, is_log=is_log))
        try:
            yield session
        except Exception:
            if failure := getattr(found, "failure", None):
                raise failure from None
            raise


def define_chunks(
    session: DuckSql,
    rows: ChangeRows,
    name: TableName,
    start: InputStart,
    end_lsn: LSN,
    step: WriteStep,
    *,
    is_log: bool = False,
) -> Generator[None]:
    """Define `changes` as each chunk of the rows that a step adds; with `is_log` every change is one."""
    copied = ("R",) if start.copy is not None else ()
    ops = copied if step.copy_id is not None else (*(("I", "U", "D", "T") if is_log else ("I",)), *copied)
    query = row_changes("bronze", name, start, end_lsn, step.start, step.end, is_log=is_log)
    for chunk in rows.chunks(name, start, end_lsn, ops):
        session.add("bronze", chunk)
        session.define("changes", query)
        yield


def why_left_to_spark(error: BaseException) -> str | None:
    """Return why the native writer has left a write to Spark, None if it has not."""
    if isinstance(error, NotNative):
        return str(error)
    is_large = isinstance(error, TooLargeError) or is_out_of_memory(error)
    return "its rows do not fit into the memory of this process" if is_large else None
