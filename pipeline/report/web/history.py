"""History of a run over the last hour, sampled into a list of bounded length, and its plots.

A sample is what the run's own summaries say; apply alone also reads how far bronze is. `plots` is pure.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from pipeline.errors import report_error
from pipeline.protocol.lsn import LSN
from pipeline.report.metric import Scrape
from pipeline.report.web.markup import Html, join, tag
from pipeline.units import format_size

INTERVAL = 10.0  # seconds between two samples
HOUR = 3600.0
_MINUTE = 60.0
_SHORTEST = 600.0  # seconds that a plot shows at least
_ROWS = 12  # of the table of a plot

_SIGNS = {"first": "\N{EM DASH}", "second": "\N{HYPHEN}\N{HYPHEN}"}  # as the lines are drawn

_WIDTH, _HEIGHT = 420, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 12, 12, 26


class Sample(NamedTuple):
    """One moment: changes so far, and lags in bytes of WAL; None if the run does not know it."""

    time: float
    captured: int | None
    applied: int | None
    bronze_lag: int | None
    silver_lag: int | None


class Series(NamedTuple):
    """One line of a plot: its name, and its values at times, None where there is none."""

    name: str
    points: Sequence[tuple[float, float | None]]


def sample_of(scrape: Scrape, bronze_end: LSN | None, now: float) -> Sample:
    """Return the sample of a run; `bronze_end` is how far bronze is, for a run without ingest."""
    ingest, apply = scrape.ingest, scrape.apply
    captured = ingest.captured_offset if ingest is not None else bronze_end
    source = scrape.read_source() if ingest is not None else None
    end = source and source.lsn
    applied = apply.applied_offset if apply is not None else None
    newest = end or captured
    return Sample(
        now,
        None if ingest is None else ingest.changes,
        None if apply is None else sum(state.changes for state in dict(apply.tables).values()),
        max(0, end - captured) if end and captured else None,
        max(0, newest - applied) if newest and applied else None,
    )


class RunHistory:
    """The samples of the last hour, taken on a thread of its own until `close`."""

    def __init__(self, sample: Callable[[float], Sample], interval: float | None = None) -> None:
        """Call `sample` with the time every `interval` seconds, 10 by default."""
        interval = interval or INTERVAL
        self._sample = sample
        self._interval = interval
        self._samples: deque[Sample] = deque(maxlen=int(HOUR / interval) + 1)
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="page history", daemon=True)
        self._thread.start()

    @property
    def samples(self) -> list[Sample]:
        """The samples so far, the oldest first."""
        return list(self._samples)

    def close(self) -> None:
        """End the thread; a read that hangs is abandoned."""
        self._is_closing.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                self._samples.append(self._sample(time.time()))
            except Exception as error:  # the run goes on without this sample
                report_error(error)
            self._is_closing.wait(self._interval)


def plots(samples: Sequence[Sample]) -> Html:
    """Return the plots of throughput and of lag, each with its figures as a table."""
    if len(samples) < 2:
        return tag("p", "The plots begin with the second sample, some seconds after the start of the run.")
    rates = [
        Series("captured", _rates([(sample.time, sample.captured) for sample in samples])),
        Series("applied", _rates([(sample.time, sample.applied) for sample in samples])),
    ]
    lags = [
        Series("bronze", [(sample.time, sample.bronze_lag) for sample in samples]),
        Series("silver", [(sample.time, sample.silver_lag) for sample in samples]),
    ]
    figures = [
        _figure("throughput", "Changes per second", rates, _rate_text, _nice_number),
        _figure("lag", "Lag in WAL", lags, _size_text, _nice_size),
    ]
    return tag("div", *figures, class_="plots")


def _rates(points: Sequence[tuple[float, int | None]]) -> list[tuple[float, float | None]]:
    """Return the growth per second over the minute before each sample; None where a count is new or unknown.

    Apply counts a batch at its end, so that shorter parts of the time would be all or nothing.
    """
    found: list[tuple[float, float | None]] = []
    minute: deque[tuple[float, int]] = deque()  # known samples that grow
    for at, value in points:
        if value is None or (minute and value < minute[-1][1]):
            minute.clear()
        while len(minute) > 1 and minute[1][0] <= at - _MINUTE:
            minute.popleft()
        is_known = value is not None and bool(minute) and at > minute[0][0]
        found.append((at, (value - minute[0][1]) / (at - minute[0][0]) if is_known else None))  # type: ignore[operator]
        if value is not None:
            minute.append((at, value))
    return found[1:]


def _figure(
    key: str,
    title: str,
    series: Sequence[Series],
    text: Callable[[float], str],
    nice: Callable[[float], float],
) -> Html:
    shown = [
        (one, kind)
        for one, kind in zip(series, ("first", "second"), strict=True)
        if any(value is not None for _, value in one.points)
    ]
    if not shown:
        return tag("figure", tag("figcaption", title), tag("p", "This run has no figures for it yet."))
    end = max(one.points[-1][0] for one, _ in shown)
    start = min(max(end - HOUR, min(one.points[0][0] for one, _ in shown)), end - _SHORTEST)
    top = nice(max(value for one, _ in shown for _, value in one.points if value is not None))

    def place(at: float, value: float) -> tuple[float, float]:
        x = _LEFT + (at - start) / (end - start) * (_WIDTH - _LEFT - _RIGHT)
        return x, _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        *_grid(start, end, top, text, place),
        *(part for one, kind in shown for part in _line(one, kind, start, place)),
    ]
    now = "; ".join(f"{one.name} {_newest(one, text)}" for one, _ in shown)
    legend = join(
        tag(
            "span",
            tag("span", _SIGNS[kind], aria_hidden="true", class_=f"{kind}-sign"),
            f" {one.name} ",
            class_="whole quiet",
        )
        for one, kind in shown
    )
    minutes = round((end - start) / 60)
    svg = tag(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"{title} over {minutes} minutes. Now: {now}. The table below has the figures.",
    )
    caption = tag("figcaption", f"{title} ", legend)
    return tag("figure", caption, svg, _as_table(key, title, [one for one, _ in shown], start, end, text))


def _grid(
    start: float,
    end: float,
    top: float,
    text: Callable[[float], str],
    place: Callable[[float, float], tuple[float, float]],
) -> Iterator[Html]:
    for value in (0.0, top / 2, top):
        _, y = place(start, value)
        yield tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid")
        yield tag("text", text(value), x=_LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end")
    for at, anchor in ((start, "start"), ((start + end) / 2, "middle"), (end, "end")):
        x, _ = place(at, 0)
        yield tag("text", _clock(at), x=f"{x:.1f}", y=_HEIGHT - 6, text_anchor=anchor)


def _line(
    one: Series, kind: str, start: float, place: Callable[[float, float], tuple[float, float]]
) -> Iterator[Html]:
    """Give the pieces of a line between its gaps, and a dot at its end."""
    piece: list[tuple[float, float]] = []
    newest = one.points[-1]
    for at, value in [*one.points, (newest[0], None)]:
        if value is not None and at >= start:
            piece.append(place(at, value))
        elif piece:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in piece)
            yield tag("polyline", points=points, class_=f"series {kind}")
            piece = []
    if newest[1] is not None:
        x, y = place(newest[0], newest[1])
        yield tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3, class_=f"{kind}-end")


def _as_table(
    key: str, title: str, series: Sequence[Series], start: float, end: float, text: Callable[[float], str]
) -> Html:
    """Return the highest value of each series in parts of the time, the newest first."""
    width = (end - start) / _ROWS
    rows = []
    for number in reversed(range(_ROWS)):
        low, high = start + number * width, start + (number + 1) * width
        cells = []
        for one in series:
            values = [value for at, value in one.points if value is not None and low < at <= high + 0.001]
            cells.append(tag("td", text(max(values)) if values else "no figure", class_="number"))
        if any("no figure" not in cell for cell in cells):
            rows.append(tag("tr", tag("th", f"{_clock(low)} to {_clock(high)}", scope="row"), *cells))
    heads = [tag("th", one.name, scope="col", class_="number") for one in series]
    table = tag(
        "table",
        tag("caption", f"{title}: the highest figure of each part of the time"),
        tag("thead", tag("tr", tag("th", "UTC", scope="col"), *heads)),
        tag("tbody", *rows),
    )
    return tag("details", tag("summary", f"{title} as a table"), table, id=f"plot-{key}")


def _newest(one: Series, text: Callable[[float], str]) -> str:
    value = one.points[-1][1]
    return "no figure" if value is None else text(value)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%H:%M}"


def _rate_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _size_text(value: float) -> str:
    return format_size(round(value)) if value else "0"


def _nice_number(value: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is not below a value."""
    step = 1.0
    while step * 5 < value:
        step *= 10
    return next(factor * step for factor in (1, 2, 5) if factor * step >= value)


def _nice_size(value: float) -> float:
    """Return the smallest power of two that is not below a value, 1 KiB at least."""
    return float(max(1024, 1 << max(0, int(value) - 1).bit_length()))
