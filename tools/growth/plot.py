"""Write the plot of a part: processor time over the number of rows, both logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from tools.growth.measure import Row

_COLORS = ("#3f51b5", "#b3261e", "#23804a", "#a87b00", "#7a4fa3", "#00838f")
_WIDTH, _HEIGHT = 660, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 410, 60, 350
_STYLE = (
    ".card{fill:#fff;stroke:#d5d9e6}.grid{stroke:#e3e6ef}"
    'text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,"DejaVu Sans",sans-serif;'
    "font-size:13px;fill:#4a5166}.b{font-size:15px;font-weight:600;fill:#1d2233}"
)


def write_plot(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as an SVG."""
    path.write_text(plot(rows), encoding="utf-8")


def plot(rows: Sequence[Row]) -> str:
    """Return the rows as an SVG: a line for each case."""
    cpu = [max(row.cost.cpu, 0.001) for row in rows]
    low, high = math.floor(math.log10(min(cpu))), math.ceil(math.log10(max(cpu)))
    sizes = [math.log10(row.size) for row in rows]
    first, last = min(sizes), max(max(sizes), min(sizes) + 1)

    def x(size: float) -> float:
        return round(_LEFT + (math.log10(size) - first) / (last - first) * (_RIGHT - _LEFT), 1)

    def y(value: float) -> float:
        part = (math.log10(max(value, 0.001)) - low) / max(1, high - low)
        return round(_BOTTOM - part * (_BOTTOM - _TOP), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-labelledby="t d">',
        '<title id="t">Processor time of a batch over the size of its table</title>',
        f'<desc id="d">{escape(_described(rows))}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="10"/>',
        '<text class="b" x="20" y="32">Processor seconds of a batch, by rows of the table</text>',
    ]
    for power in range(low, high + 1):
        level = y(10**power)
        parts.append(f'<path class="grid" d="M{_LEFT} {level}H{_RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{level + 4}" text-anchor="end">{10**power:g}</text>')
    for size in sorted({row.size for row in rows}):
        parts.append(f'<text x="{x(size)}" y="{_BOTTOM + 20}" text-anchor="middle">{size:,}</text>')
    for number, case in enumerate(dict.fromkeys(row.case for row in rows)):
        color = _COLORS[number % len(_COLORS)]
        points = [(x(row.size), y(row.cost.cpu)) for row in rows if row.case == case]
        line = "L".join(f"{a} {b}" for a, b in points)
        parts.append(f'<path d="M{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{a}" cy="{b}" r="3.5" fill="{color}"/>' for a, b in points]
        legend = _TOP + 24 * number
        parts.append(f'<rect x="{_RIGHT + 40}" y="{legend}" width="14" height="14" fill="{color}"/>')
        parts.append(f'<text x="{_RIGHT + 62}" y="{legend + 12}">{escape(case)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _described(rows: Sequence[Row]) -> str:
    return " ".join(f"{row.case}, {row.size:,} rows: {row.cost.cpu:.2f} s." for row in rows)
