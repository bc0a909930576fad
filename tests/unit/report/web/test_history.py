"""The last hour of a run: samples, their bound, and the plots with their tables."""

import threading

import pytest

from pipeline.postgres.replication.slot_status import SourceWal
from pipeline.progress import ApplySummary, IngestSummary, TableState
from pipeline.protocol.lsn import LSN
from pipeline.report.metrics import RunMetrics
from pipeline.report.web.history import RunHistory, Sample, plots, sample_of
from pipeline.table_name import TableName
from tests.support.threads import wait_until
from tests.support.web_pages import Element, parse_page

NOON = 1795348800.0  # 12:00 UTC


def figures(samples: list[Sample]) -> list[Element]:
    html = f'<html lang="en"><title>t</title><h1>t</h1><main>{plots(samples)}</main></html>'
    return list(parse_page(html).every("figure"))


def an_hour() -> list[Sample]:
    """Return samples of an hour: 50 changes/s captured, 40 applied, growing lags."""
    return [
        Sample(NOON - 3600 + n * 10, n * 500, n * 400, n * 1024, None if 100 < n < 110 else n * 4096)
        for n in range(361)
    ]


def test_a_sample_has_the_numbers_of_the_summaries() -> None:
    metrics = RunMetrics("shop")
    assert sample_of(metrics.scrape(), None, 5.0) == (5.0, None, None, None, None)
    metrics.on_ingest(IngestSummary("shop", "slot", LSN(1000), changes=7))
    assert sample_of(metrics.scrape(), None, 5.0) == (5.0, 7, None, None, None)
    metrics.on_source(lambda: SourceWal(LSN(1500)))
    states = {
        TableName("public", "t"): TableState(changes=3),
        TableName("public", "u"): TableState(changes=2),
    }
    metrics.on_apply(ApplySummary("shop", LSN(900), states))
    assert sample_of(metrics.scrape(), None, 5.0) == (5.0, 7, 5, 500, 600)
    alone = RunMetrics("shop")
    alone.on_apply(ApplySummary("shop", LSN(900)))
    assert sample_of(alone.scrape(), LSN(1000), 5.0) == (5.0, None, 0, None, 100)
    assert sample_of(alone.scrape(), None, 5.0) == (5.0, None, 0, None, None)


def test_the_history_is_bounded_and_outlives_a_sample_that_fails() -> None:
    number = iter(range(10**9))

    def sample(now: float) -> Sample:
        if next(number) % 2:
            raise ValueError("geheim")
        return Sample(now, 1, 1, 1, 1)

    history = RunHistory(sample, interval=3600 / 4)
    assert history._samples.maxlen == 5
    history.close()
    fast = RunHistory(sample, interval=0.001)
    wait_until(lambda: len(fast.samples) > 3)
    fast.close()
    assert "page history" not in [thread.name for thread in threading.enumerate()]


def test_plots_have_lines_words_and_a_table() -> None:
    throughput, lag = figures(an_hour())
    [svg] = throughput.every("svg")
    assert svg.attributes["role"] == "img"
    label = svg.attributes["aria-label"]
    assert label == (
        "Changes per second over 60 minutes. Now: captured 50; applied 40. The table below has the figures."
    )
    assert len(list(throughput.every("polyline"))) == 2
    assert [text.text for text in svg.every("text")] == ["0", "25", "50", "11:00", "11:30", "12:00"]
    rows = [[cell.text for cell in row.every("th", "td")] for row in throughput.every("tr")]
    assert rows[:2] == [["UTC", "captured", "applied"], ["11:55 to 12:00", "50", "40"]]
    assert len(rows) == 13
    assert len(list(lag.every("polyline"))) == 3  # silver's has a gap
    rows = [[cell.text for cell in row.every("th", "td")] for row in lag.every("tr")]
    assert rows[1] == ["11:55 to 12:00", "360 KiB", "1.4 MiB"]
    [svg] = lag.every("svg")
    for line in svg.every("polyline"):
        points = (line.attributes["points"] or "").split()
        assert all(0 <= float(x) <= 420 and 0 <= float(y) <= 190 for x, y in (p.split(",") for p in points))


def test_a_new_start_of_a_count_is_a_gap() -> None:
    counts = (10, 20, 0, 30)
    samples = [Sample(NOON + n, count, None, None, None) for n, count in enumerate(counts)]
    throughput, lag = figures(samples)
    assert len(list(throughput.every("polyline"))) == 2
    assert "no figures" in lag.text
    assert "applied" not in throughput.text


def test_a_rate_is_the_mean_of_a_minute() -> None:
    """A batch of apply every 30 s is a level line, and no comb."""
    samples = [Sample(NOON + n * 10, None, n // 3 * 300, None, None) for n in range(60)]
    throughput, _ = figures(samples)
    [line] = throughput.every("polyline")
    heights = {point.split(",")[1] for point in (line.attributes["points"] or "").split()[7:]}
    assert len(heights) == 1
    assert "Now: applied 10." in (next(throughput.every("svg")).attributes["aria-label"] or "")


@pytest.mark.parametrize("count", [0, 1])
def test_without_two_samples_there_is_a_sentence(count: int) -> None:
    assert "begin with the second sample" in plots([Sample(NOON, 1, 1, 1, 1)] * count)
