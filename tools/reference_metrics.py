"""Write docs/reference/metrics.md from the metrics that the code declares.

Run it as `python -m tools.reference_metrics`; a unit test compares the page with the code.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.report.metric import PREFIX, Metric
from pipeline.report.metrics import METRICS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "metrics.md"
_HEAD = f"""\
<!-- Generated from pipeline/report/metrics.py by `python -m tools.reference_metrics`. Do not edit. -->

# Metrics

`--metrics [HOST:]PORT` on `ingest`, `apply` and `run` serves these metrics for Prometheus at `/metrics` \
while the run lasts.

Every name starts with `{PREFIX}`, and every sample has the label `pipeline`. LSNs are numbers, so a \
difference is bytes of WAL. Counters start with the run. A sample appears once there is a value; tables \
appear once a manifest or this run knows them.
"""


def render_page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for group, metrics in METRICS.items():
        title = group[0].upper() + group[1:]
        parts.append(f"\n## {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
        parts += [_row(metric) for metric in metrics]
    return "".join(parts)


def _row(metric: Metric) -> str:
    name = f"`{PREFIX}{metric.name}`"
    if metric.kind == "summary":
        name = f"`{PREFIX}{metric.name}_count`, `{PREFIX}{metric.name}_sum`"
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| {name} | {metric.kind} | {labels} | {metric.help} |\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render_page(), encoding="utf-8")
