"""The sentences of the estimate of `pgdelta init`: what each is computed from, and what is not known."""

from dataclasses import replace

import pytest

from pipeline.operate.copy_estimate import BENCHMARK_RATE, CopyEstimate, CopySample, SampledPart
from pipeline.postgres.wal_rate import WalRate
from pipeline.units import format_about_duration, format_about_size

GIB = 1 << 30
MIB = 1 << 20
# a table of 8 GiB is read at 16 MiB/s, one of 2 GiB at 8 MiB/s
SAMPLE = CopySample(
    [SampledPart(8 * GIB, 16 * MIB, 1.0, 4 * MIB), SampledPart(2 * GIB, 8 * MIB, 1.0, 4 * MIB)]
)
RATES = (WalRate("checkpoint", 300 << 20, 250.0), WalRate("statistics", 400 * GIB, 10 * 86_400.0))


def test_every_figure_names_what_it_comes_from() -> None:
    estimate = CopyEstimate(3, 10 * GIB, "me", SAMPLE, RATES, 5 * GIB)
    found = dict(estimate.pairs())
    assert found["initial copy"] == (
        "13 min: 10 GiB in 3 tables at 13 MiB/s, as one session read 24 MiB of 2 tables in 2.0 s and encoded"
        " them. Apply then takes 13 min."
    )
    assert found["lake"] == "3 GiB in bronze, by the same rows, and about as much in silver."
    assert found["WAL"] == (
        "1.2 MiB/s since the last checkpoint, 4.2 min; 490 KiB/s on average of 10 days. That is 920 MiB"
        " during the copy, which ingest reads meanwhile, and 100 GiB for each day without ingest, which the"
        " slot keeps. max_slot_wal_keep_size, 5 GiB, lasts 71 min."
    )
    replica = dict(replace(estimate, is_logical=False).pairs())["WAL"]
    assert "the slot keeps. With wal_level = logical it is more. max_slot" in replica
    data = estimate.as_json()
    assert (data["copy_seconds"], data["bronze_bytes"]) == (768, 3 * GIB)
    assert data["wal"][0] == {"since": "checkpoint", "bytes": 300 << 20, "seconds": 250, "rate": 1258291}


def test_without_a_sample_the_rate_is_the_benchmarks_and_says_so() -> None:
    estimate = CopyEstimate(3, 100 * GIB, "me", None, (), None)
    found = dict(estimate.pairs())
    assert estimate.rate == BENCHMARK_RATE
    assert "the role me could read no rows, so nothing was measured here." in found["initial copy"]
    assert set(found) == {"initial copy", "WAL"}
    assert found["WAL"].startswith("Its rate is not known yet")
    assert estimate.as_json()["wal_during_copy"] is None


def test_a_small_database_has_no_rate() -> None:
    sample = CopySample([SampledPart(48 << 10, 48 << 10, 0.01, 9000)])
    found = dict(CopyEstimate(2, 48 << 10, "me", sample, RATES[:1], None).pairs())
    assert found["initial copy"] == "less than a minute: 48 KiB in 2 tables."
    assert "lake" not in found
    many = CopyEstimate(1000, 2 * GIB, "me", sample, (), None)
    assert "the largest are too small, so nothing was measured here." in dict(many.pairs())["initial copy"]
    assert "Apply then takes 2.4 min." in dict(many.pairs())["initial copy"]
    assert (many.rate, many.bronze_bytes) == (BENCHMARK_RATE, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "less than a minute"), (90, "1.5 min"), (754, "13 min"), (9000, "2.5 h"), (1e6, "12 days")],
)
def test_an_estimated_duration_has_two_digits(seconds: float, text: str) -> None:
    assert format_about_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1,000 B"), (1.26 * GIB, "1.3 GiB"), (131 << 20, "130 MiB")]
)
def test_an_estimated_size_has_two_digits(size: float, text: str) -> None:
    assert format_about_size(size) == text
