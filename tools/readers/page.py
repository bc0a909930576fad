"""`docs/reference/readers.md`: what each reader did with each feature, as a table with footnotes. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

READS, REFUSES, WRONG, LACKS = "reads", "refuses", "**WRONG**", "—"
_MAX_CHARACTERS = 160  # of a reader's sentence
_HEAD = """\
# Readers

What other programs read of silver. `make readers` makes a lake with pgdelta, lets each reader read each
table, compares the values with those that pgdelta wrote, and writes this page. It fails if a reader does not
read what the page says that it reads.

- **reads**: every value is the same, to the last digit.
- **refuses**: the reader ends with an error, which the footnote shows; it shows no wrong value.
- **WRONG**: the reader shows other values, without an error. Do not read such columns with it.
- **—**: the reader offers nothing of the kind.

A reader that refuses column mapping or type widening reads a table whose rule has
[`readers: widest`](../guides/schema-changes.md#for-readers-without-table-features).

"""
_CALLS = """
delta-rs is `deltalake` for Python, into Arrow; pandas reads by it, with columns of Arrow's types
(`to_pandas(types_mapper=pandas.ArrowDtype)`), and DataFusion queries its table. Polars is `read_delta`.
DuckDB has its own extension `delta`, and ClickHouse is `deltaLakeLocal` in `chdb`. Trino is not tried.
Spark 3.5 reads dates before 1582 and times before 1900 with
`spark.sql.parquet.datetimeRebaseModeInRead=CORRECTED`.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """What a reader did, and why: its error, or the first value that differs."""

    state: str
    why: str = ""


def compared(rows: Sequence[str], found: Sequence[str]) -> Cell:
    """Return whether a reader found the rows that it should."""
    if list(rows) == list(found):
        return Cell(READS)
    if len(rows) != len(found):
        return Cell(WRONG, f"It reads {len(found)} rows for {len(rows)}.")
    pairs = (pair for row, other in zip(rows, found, strict=True) for pair in _values(row, other))
    value, other = next((value, other) for value, other in pairs if value != other)
    return Cell(WRONG, f"It reads {other} for {value}.")


def _values(row: str, other: str) -> Iterator[tuple[str, str]]:
    """Yield the values of two rows, as JSON."""
    for value, found in zip(json.loads(row), json.loads(other), strict=True):
        yield json.dumps(value, ensure_ascii=False), json.dumps(found, ensure_ascii=False)


def shortened(sentence: str) -> str:
    """Return an error as one line without paths and ids of this run."""
    line = " ".join(sentence.split())
    line = re.sub(r"(file:)?/+(?:[\w.%=-]+/)+[\w.%=-]*", "…", line)
    if (error := re.search(r"\[[A-Z][A-Z_.]+\] .*", line)) is not None:
        line = error[0]  # of Spark, after the call that failed
    line = re.sub(r"\s*(JVM stacktrace|SQLSTATE|Stack trace|== SQL).*", "", line)
    line = line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS].rstrip()}…"
    return line.replace("|", r"\|").replace("<", "&lt;").replace("`", "'")


def page(columns: Mapping[str, Sequence[Cell]], titles: Sequence[str]) -> str:
    """Return the page, given the cells of each reader by its name with its version."""
    notes: dict[str, int] = {}
    lines = [f"| feature | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for number, title in enumerate(titles):
        cells = (_cell(found[number], notes) for found in columns.values())
        lines.append(f"| {title} | {' | '.join(cells)} |")
    footnotes = [f"{number}. {why}" for why, number in notes.items()]
    return _HEAD + "\n".join(lines) + "\n\n" + "\n".join(footnotes) + "\n" + _CALLS


def _cell(cell: Cell, notes: dict[str, int]) -> str:
    if not cell.why:
        return cell.state
    number = notes.setdefault(shortened(cell.why), len(notes) + 1)
    return f"{cell.state}<sup>{number}</sup>"


def stated(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (feature, reader without its version, state) of a page."""
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    if not rows:
        return
    readers = [label.strip().partition(" (")[0] for label in rows[0][1:]]
    for title, *cells in rows[1:]:
        for reader, cell in zip(readers, cells, strict=True):
            yield title.strip(), reader, cell.strip().partition("<sup>")[0]


def worse(before: str, after: str) -> list[str]:
    """Return what readers do not read any more, or read wrongly and the page did not say so."""
    known = {(title, reader): state for title, reader, state in stated(before)}
    return [
        f"{reader}, {title}: {state} (stated: {known.get((title, reader), 'nothing')})"
        for title, reader, state in stated(after)
        if state not in (READS, known.get((title, reader)))
        and (state == WRONG or known.get((title, reader)) == READS)
    ]
