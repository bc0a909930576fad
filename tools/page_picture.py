"""Write docs/images/page.webp: the page of a made-up pipeline, as a browser shows it.

Run it as `python -m tools.page_picture`. It needs Chromium (`apt-get install chromium`) and no network.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.report.web.facts import PageFacts
from pipeline.report.web.history import Sample
from tests.support.browser import Browser, find_browser
from tests.support.statuses import NOON, shop_status
from tests.support.web_pages import PageSource, served_pages

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "page.webp"
WIDTH, HEIGHT = 1280, 1480


def shop_facts() -> PageFacts:
    """Return a pipeline with one table held, one copied and one behind; the others are current."""
    status = shop_status()
    shown = [
        table
        for table in status.tables
        if str(table.name).isascii()
        and str(table.name).isprintable()
        and len(str(table.name)) < 40
        and table.state in ("held", "current", "behind")
        and not table.awaits_copy
    ]
    first = replace(shown[0], state="copying", copy_share=0.62, sentence="31 of 50 chunks are copied.")
    shown = [first, *shown[1:]]
    events = [replace(table.event, recorded_at=NOON) for table in shown if table.event]
    return PageFacts(replace(status, tables=tuple(shown)), NOON, events=events)


def an_hour() -> Sequence[Sample]:
    """Return samples of an hour: a rate with two peaks, lags that follow it."""
    samples, captured, applied = [], 0, 0
    for number in range(361):
        peaks = math.exp(-(((number - 110) / 40) ** 2)) + 0.7 * math.exp(-(((number - 260) / 50) ** 2))
        captured += round(10 * (120 + 900 * peaks))
        if number % 3 == 0:
            applied = captured - round(2000 * peaks)
        lag = round(30_000 + 250_000 * peaks)
        samples.append(Sample(NOON.timestamp() - 3600 + number * 10, captured, applied, lag // 4, lag))
    return samples


def main() -> int:
    """Write the picture; return 1 if there is no browser."""
    if find_browser() is None:
        print(
            "No Chromium is installed. Install it, for example with apt-get install chromium.",
            file=sys.stderr,
        )
        return 1
    with (
        tempfile.TemporaryDirectory() as folder,
        served_pages(PageSource(shop_facts()), an_hour()) as port,
        Browser(Path(folder) / "profile") as browser,
    ):
        browser.open(f"http://127.0.0.1:{port}/", width=WIDTH, height=HEIGHT)
        PICTURE.write_bytes(browser.picture(kind="webp", quality=82))
    print(f"wrote {PICTURE.name}: {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
