"""Draw where the time of the tests goes: a bar a topic, divided by kinds of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

_COLORS = ("#3f51b5", "#b3261e", "#23804a", "#a87b00", "#7a4fa3", "#00838f", "#9aa1b4")
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 760, 190, 700, 24, 84
_MAX_TOPICS = 14
_STYLE = (
    ".card{fill:#fff;stroke:#d5d9e6}"
    'text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,"DejaVu Sans",sans-serif;'
    "font-size:13px;fill:#4a5166}.b{font-size:15px;font-weight:600;fill:#1d2233}"
)


def write_picture(path: Path, topics: Mapping[str, Mapping[str, float]], kinds: Sequence[str]) -> None:
    """Write the seconds of topics by kind as an SVG; small topics are one bar."""
    rows = [(name, [topic.get(kind, 0.0) for kind in kinds]) for name, topic in topics.items()]
    rest = rows[_MAX_TOPICS:]
    rows = rows[:_MAX_TOPICS]
    if rest:
        rows.append((f"{len(rest)} more", [sum(values[i] for _, values in rest) for i in range(len(kinds))]))
    most = max(sum(values) for _, values in rows)
    height = _TOP + _ROW * len(rows) + 20
    described = "; ".join(f"{name} {sum(values):.0f} s" for name, values in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="t d">',
        '<title id="t">Seconds of the tests by topic and kind of work</title>',
        f'<desc id="d">{escape(described)}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="10"/>',
        '<text class="b" x="20" y="32">Seconds of all test processes, by topic</text>',
    ]
    place = 20.0
    for color, kind in zip(_COLORS, kinds, strict=True):
        parts.append(f'<rect x="{place:.0f}" y="46" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{place + 18:.0f}" y="57">{escape(kind)}</text>')
        place += 34 + 7.4 * len(kind)
    for number, (name, values) in enumerate(rows):
        y, x = _TOP + _ROW * number, float(_LEFT)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        for color, value in zip(_COLORS, values, strict=True):
            width = value / most * (_RIGHT - _LEFT)
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="17" fill="{color}"/>')
            x += width
        parts.append(f'<text x="{x + 6:.0f}" y="{y + 13}">{sum(values):.0f}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")
