"""The figures that `make bench` prints, and the limits that they are held to. Nothing here measures.

A figure without a limit explains another one. Limits are for full sizes on two cores that do nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

WIDTH = 80
_FIGURE = 48
_HEADINGS = ("figure", "measured", "limit", "")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what it is, its unit, and its limit (None: shown only).

    `unit` is s, MiB, /s or x (a ratio). A limit is the most that is allowed, or with `is_least` the least.
    """

    part: str
    key: str
    text: str
    unit: str
    limit: float | None = None
    is_least: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """The value of a figure in its unit; None if its part failed."""

    key: str
    value: float | None


def _one_table(load: str, text: str, capture: float | None, ideal: str, apply: float) -> tuple[Figure, ...]:
    return (
        Figure("one_table", f"{load}_reference", f"{text}, by pg_recvlogical", "s"),
        Figure("one_table", f"{load}_capture", "  by ingest", "s"),
        Figure(
            "one_table", f"{load}_capture_ratio", "  pg_recvlogical / ingest", "x", capture, is_least=True
        ),
        Figure("one_table", f"{load}_ideal", f"  net rows, {ideal} by warm Spark", "s"),
        Figure("one_table", f"{load}_apply", "  by apply, without its start", "s"),
        Figure("one_table", f"{load}_apply_ratio", "  Spark / apply", "x", apply, is_least=True),
        Figure("one_table", f"{load}_memory", "  peak memory of a job", "MiB", 1024),
    )


FIGURES = (
    Figure("start", "first_apply", "first apply of 60 tables, without Spark", "s", 4),
    Figure("start", "ingest_empty", "empty ingest", "s", 2),
    Figure("start", "ingest_empty_memory", "  its peak memory", "MiB", 300),
    Figure("start", "apply_lsn", "apply after a commit that only moves the LSN", "s", 1.2),
    Figure("start", "run", "pgdelta run, 5 changes in 2 of 60 tables", "s", 2),
    Figure("start", "run_memory", "  its peak memory", "MiB", 400),
    Figure("start", "apply_few", "pgdelta apply of the same", "s", 1.5),
    Figure("start", "apply_empty", "empty apply under spark-submit", "s", 8),
    Figure("start", "submit_few", "  5 changes in 2 tables", "s"),
    Figure("start", "submit_query", "  a bare empty query on a Delta table", "s"),
    Figure("start", "submit_extra", "  changes beyond the query", "s", 1),
    Figure("start", "spark_start", "  Spark's own start", "s"),
    Figure("commands", "commands_58", "slowest command that answers, 58 tables", "s", 1),
    Figure("commands", "commands_1000", "  1,000 tables", "s", 3),
    Figure("tables", "first_load", "first load of 60 tables, after Spark's start", "s", 15),
    Figure("tables", "first_load_ingest", "  of which ingest", "s"),
    Figure("tables", "native_table", "200 tables x 20 changes, per table", "s", 0.05),
    Figure("tables", "spark_table", "  the same with silver.writer: spark", "s", 0.6),
    Figure("latency", "bronze_p50", "1,000 changes/s, commit to bronze, p50", "s"),
    Figure("latency", "bronze_p99", "  p99", "s", 0.4),
    Figure("latency", "silver_p50", "1,000 changes/s, commit to silver, p50", "s", 0.4),
    Figure("latency", "silver_p99", "  p99", "s", 1),
    Figure("latency", "ingest_memory", "  peak memory of ingest", "MiB", 300),
    Figure("latency", "apply_memory", "  peak memory of apply", "MiB"),
    Figure("live", "live_p50", "1,000 changes/s, commit to a live read, p50", "s"),
    Figure("live", "live_p99", "  p99", "s", 2),
    Figure("live", "live_read", "  a live read of all rows of ten tables, p50", "s"),
    Figure("live", "live_memory", "  peak memory of the reader", "MiB"),
    Figure("mixed", "reference", "mixed load by pg_recvlogical", "s"),
    Figure("mixed", "capture", "  by ingest", "s"),
    Figure("mixed", "capture_ratio", "  pg_recvlogical / ingest", "x", 0.8, is_least=True),
    Figure("mixed", "mixed_ideal", "mixed load by warm ideal MERGEs", "s"),
    Figure("mixed", "end_to_end", "  by ingest and apply, to silver", "s"),
    Figure("mixed", "end_to_end_ratio", "  (pg_recvlogical + MERGE) / both", "x", 1, is_least=True),
    Figure("mixed", "mixed_memory", "  peak memory of both jobs", "MiB", 800),
    Figure("sustained", "sustained_rate", "changes of ten tables for ten minutes", "/s"),
    Figure("sustained", "sustained_bronze_p99", "  commit to bronze, p99", "s"),
    Figure("sustained", "sustained_p50", "  commit to silver, p50", "s"),
    Figure("sustained", "sustained_p99", "  p99", "s", 5),
    Figure("sustained", "sustained_growth", "  p50 of the last third / of the first", "x", 1.3),
    Figure("sustained", "sustained_ingest_cpu", "  processor time of ingest, of 1 M changes", "s"),
    Figure("sustained", "sustained_apply_cpu", "  of apply", "s"),
    Figure("sustained", "sustained_memory", "  peak memory of both jobs", "MiB", 800),
    Figure("apply", "apply_ideal", "100 k net changes into 1 M rows, ideal MERGE", "s"),
    Figure("apply", "apply_batch", "  by apply", "s"),
    Figure("apply", "apply_ratio", "  apply / MERGE", "x", 1.2),
    *_one_table("narrow", "5 columns, 1.2 M changes", None, "written as Delta", 0.8),
    *_one_table("wide", "100 columns, 200 k changes", 0.8, "merged", 1.0),
    *_one_table("very_wide", "400 columns, 200 k changes", 0.8, "merged", 1.0),
    Figure("copy", "copy_reference", "20 M copied rows, written as Delta by Spark", "s"),
    Figure("copy", "copy_ingest", "  copied to bronze", "s"),
    Figure("copy", "copy_silver", "  copied to bronze and applied to silver", "s"),
    Figure("copy", "copy_ratio", "  Spark / to silver", "x", 0.5, is_least=True),
    Figure("prove", "copy_out", "COPY of 5 M rows in ten tables to nowhere", "s"),
    Figure("prove", "proof_first", "  first proof, which reads silver's files", "s"),
    Figure("prove", "proof", "  a later proof, which reads none", "s"),
    Figure("prove", "proof_ratio", "  proof / COPY", "x", 1.2),
    Figure("prove", "proof_memory", "  its peak memory", "MiB"),
    Figure("prove", "reconcile", "  reconcile, which reads both sides", "s"),
    Figure("demo", "demo_lag", "make demo, greatest lag in its live table", "s", 3),
    Figure("demo", "demo_seconds", "  the whole demo", "s", 75),
    Figure("modes", "native_mirror", "5,000 changes into 50,000 rows, mirror", "s"),
    Figure("modes", "native_soft_delete", "  soft_delete / mirror", "x"),
    Figure("modes", "native_history", "  history / mirror", "x"),
    Figure("modes", "native_append", "  append / mirror", "x"),
    Figure("modes", "spark_mirror", "  the same by Spark, mirror", "s"),
    Figure("modes", "spark_soft_delete", "  by Spark, soft_delete / mirror", "x"),
    Figure("modes", "spark_history", "  by Spark, history / mirror", "x"),
    Figure("modes", "spark_append", "  by Spark, append / mirror", "x"),
)
BY_KEY = {figure.key: figure for figure in FIGURES}


@dataclass(frozen=True, slots=True)
class Row:
    """A figure with what was measured."""

    figure: Figure
    value: float | None

    @property
    def is_ok(self) -> bool | None:
        """Whether the limit is met; None for a figure that has no limit and was measured."""
        if self.value is None:
            return False
        if self.figure.limit is None:
            return None
        return self.value >= self.figure.limit if self.figure.is_least else self.value <= self.figure.limit

    def line(self) -> str:
        """Return the row as text of at most 80 columns."""
        limit = ""
        if self.figure.limit is not None:
            limit = f"{'≥' if self.figure.is_least else '≤'} {_format(self.figure.limit, self.figure.unit)}"
        measured = "failed" if self.value is None else _format(self.value, self.figure.unit)
        verdict = {True: "ok", False: "missed", None: ""}[self.is_ok]
        return _line((self.figure.text, measured, limit, verdict))

    def as_json(self) -> dict[str, Any]:
        """Return the row as data."""
        return {
            "part": self.figure.part,
            "figure": self.figure.key,
            "text": self.figure.text.strip(),
            "unit": self.figure.unit,
            "measured": None if self.value is None else round(self.value, 4),
            "limit": self.figure.limit,
            "is_least": self.figure.is_least,
            "ok": self.is_ok,
        }


def heading() -> str:
    """Return the first line of the table."""
    return _line(_HEADINGS)


def rows_of(measured: Iterable[Measured]) -> Iterator[Row]:
    """Give a row for each figure that was measured; raise KeyError for one that is not listed."""
    return (Row(BY_KEY[each.key], each.value) for each in measured)


def rows_missing(part: str, rows: Iterable[Row]) -> list[Row]:
    """Return rows without a value for the figures of a part that are not among `rows`."""
    known = {row.figure.key for row in rows}
    return [Row(figure, None) for figure in FIGURES if figure.part == part and figure.key not in known]


def _line(cells: tuple[str, str, str, str]) -> str:
    figure, measured, limit, verdict = cells
    return f"{figure:<{_FIGURE}} {measured:>11} {limit:>11}  {verdict}".rstrip()


def _format(value: float, unit: str) -> str:
    if unit == "MiB":
        return f"{value:,.0f} MiB"
    if unit == "/s":
        return f"{value:,.0f} /s"
    if unit == "x":
        return f"{value:.2f}"
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1
    return f"{value:.{digits}f} s".replace(".000 s", " s").replace(".00 s", " s").replace(".0 s", " s")
