"""Answer one SELECT about silver tables: live, as of a manifest, as a table, CSV or JSON.

Rows are written as they come. A table shows a limited number of them, because its columns are as wide as
what they hold.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console

from pipeline.config.config import Config
from pipeline.delta.spark.provider import NoSpark
from pipeline.delta.table import Lake
from pipeline.delta.table_log import local_path
from pipeline.errors import LakeError, one_line
from pipeline.protocol.lsn import LSN
from pipeline.reading.live import open_live
from pipeline.silver.read.as_of import find_silver
from pipeline.silver.read.missing_tables import why_missing
from pipeline.silver.read.query_session import QuerySession, ResultColumn
from pipeline.silver.read.silver_rows import SilverRows
from pipeline.table_name import TableName
from pipeline.terminal import plain
from pipeline.units import format_count

MAX_ROWS = 1000
"""Rows of a table for people, unless a limit is given."""
_LSN = re.compile(r"[0-9A-Fa-f]+/[0-9A-Fa-f]+")
_MIN_WIDTH = 4
_GAP = "  "


@dataclass(frozen=True, slots=True)
class SilverAt:
    """The tables of silver at one LSN, and those that cannot be read there, with reasons."""

    lsn: LSN
    commit_time: datetime | None
    tables: dict[TableName, SilverRows]
    refused: dict[TableName, str]
    config: Config
    lake: Lake

    def why_missing(self, name: TableName) -> str:
        """Return why a table is not there."""
        return why_missing(self.lake, name, (*self.tables, *self.refused), self.config)

    def describe(self) -> str:
        """Return what is shown, for people."""
        committed = f", committed {self.commit_time:%Y-%m-%d %H:%M:%S.%f}Z" if self.commit_time else ""
        return f"silver at {self.lsn}{committed}"


def silver_live(config: Config) -> SilverAt:
    """Return silver as of the last commit of bronze."""
    live = open_live(config).read()
    found = SilverAt(live.lsn, live.commit_time, {}, {**live.refused}, config, Lake(config.storage))
    for name in live:
        try:
            found.tables[name] = live[name]
        except LakeError as error:  # a type that only Spark reads
            found.refused[name] = str(error)
    return found


def silver_as_of(config: Config, point: str | None) -> SilverAt:
    """Return silver as of the newest manifest, or the newest at or before an LSN or a commit time."""
    lake = Lake(config.storage, NoSpark("pgdelta query reads without Spark."))
    if lake.working_root is None:
        raise LakeError(
            f"The lake {lake.root} is on storage that only Spark can read. Query it by Spark, with "
            "pgdelta.as_of or pgdelta.live."
        )
    is_lsn = point is not None and _LSN.fullmatch(point.strip()) is not None
    silver = find_silver(lambda: lake, lsn=point if is_lsn else None, timestamp=None if is_lsn else point)
    tables: dict[TableName, SilverRows] = {}
    refused: dict[TableName, str] = {}
    for name in (*silver, *silver.behind):
        found = silver.table(*name)
        if found.refusal:
            refused[name] = found.refusal
            continue
        try:
            table = lake.table_at(found.path)
            tables[name] = SilverRows(local_path(found.path), table.snapshot(found.version))
        except LakeError as error:
            refused[name] = str(error)
    return SilverAt(silver.lsn, silver.commit_time, tables, refused, config, lake)


def run_query(
    silver: SilverAt,
    sql: str,
    output: TextIO,
    console: Console,
    *,
    style: str = "table",
    limit: int | None = None,
) -> None:
    """Write the rows of a query as `table`, `csv` or `json`, at most `limit` of them.

    Raises ConfigError if the SQL is not one SELECT statement or is wrong, LakeError if rows cannot be read.
    """
    with closing(QuerySession(silver.tables, silver.refused, silver.why_missing)) as session:
        columns = session.columns(sql)
        match style:
            case "csv":
                _write_csv(session, sql, columns, output, limit)
            case "json":
                _write_json(session, sql, columns, output, silver, limit)
            case _:
                _print_table(session, sql, columns, console, silver, limit)


def _write_csv(
    session: QuerySession, sql: str, columns: Sequence[ResultColumn], output: TextIO, limit: int | None
) -> None:
    batches = _begun(_limited(session.csv_rows(sql, len(columns)), limit))
    output.write(",".join(map(_csv_cell, (column.name for column in columns))) + "\n")
    for batch in batches:
        output.writelines(f"{row}\n" for row in batch.column(0).to_pylist())


def _begun(batches: Iterator[Any]) -> Iterator[Any]:
    """Return batches whose first one is computed: a query that fails at once prints nothing."""
    first = next(batches, None)
    return batches if first is None else chain([first], batches)


def _csv_cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if re.search('[",\r\n]', text) or not text else text


def _write_json(
    session: QuerySession,
    sql: str,
    columns: Sequence[ResultColumn],
    output: TextIO,
    silver: SilverAt,
    limit: int | None,
) -> None:
    head = {
        "lsn": str(silver.lsn),
        "commit_time": silver.commit_time and silver.commit_time.isoformat(),
        "columns": [{"name": column.name, "type": column.type} for column in columns],
    }
    batches = _begun(_limited(session.json_rows(sql, columns), limit))
    output.write(f'{json.dumps(head)[:-1]}, "rows": [')
    separator = ""
    for batch in batches:
        if rows := batch.column(0).to_pylist():
            output.write(separator + ",".join(rows))
            separator = ","
    output.write("]}\n")


def _print_table(
    session: QuerySession,
    sql: str,
    columns: Sequence[ResultColumn],
    console: Console,
    silver: SilverAt,
    limit: int | None,
) -> None:
    """Print rows under the names of their columns, shortened to the width of the console."""
    most = MAX_ROWS if limit is None else limit
    batches = session.texts(sql, len(columns))
    rows = list(itertools.islice((row for batch in batches for row in _lists(batch)), most + 1))
    is_more, rows = len(rows) > most, rows[:most]
    names = [one_line(column.name) for column in columns]
    cells = [["" if value is None else one_line(value) for value in row] for row in rows]
    widths = [max(map(cell_len, each), default=0) for each in zip(names, *cells, strict=True)]
    widths = _fitted(widths, console.width)
    for line in (names, ["─" * width for width in widths], *cells):
        parts = []
        for text, width, column in zip(line, widths, columns, strict=True):
            is_right = column.is_number and line is not names
            parts.append(_aligned(text, width, is_right=is_right))
        console.print(plain(_GAP.join(parts).rstrip()), soft_wrap=True)
    count = format_count(len(rows), "row")
    if is_more and limit is None:
        count = f"the first {count}; --limit, --csv and --json show more"
    elif is_more:
        count = f"the first {count}"
    console.print(plain(f"({count}, {silver.describe()})"), soft_wrap=True)


def _fitted(widths: Sequence[int], most: int) -> list[int]:
    """Return widths that fit, the widest columns cut off; no column gets less than a few cells."""
    found = list(widths)
    excess = sum(found) + len(_GAP) * (len(found) - 1) - most
    while excess > 0 and max(found, default=0) > _MIN_WIDTH:
        widest = max(found)
        second = max([width for width in found if width < widest], default=0)
        place = found.index(widest)
        cut = min(excess, max(1, widest - max(second, _MIN_WIDTH)))
        found[place] -= cut
        excess -= cut
    return found


def _aligned(text: str, width: int, *, is_right: bool) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    space = " " * (width - cell_len(text))
    return space + text if is_right else text + space


def _lists(batch: Any) -> list[tuple[str | None, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _limited(batches: Iterator[Any], limit: int | None) -> Iterator[Any]:
    """Yield batches with at most `limit` rows."""
    left = limit
    for batch in batches:
        if left is None:
            yield batch
        elif left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows
        else:
            return
