"""How often a continuous run commits: soon where little happens, in larger batches under load."""

import pytest

from pipeline.apply.first_batches import pause_after
from pipeline.ingest.capture import land_interval


@pytest.mark.parametrize(
    ("seconds", "interval"), [(0.0, 0.2), (0.05, 0.2), (0.15, 0.3), (0.3, 0.6), (2.0, 0.7)]
)
def test_a_landing_takes_no_more_than_half_of_the_time(seconds: float, interval: float) -> None:
    assert land_interval(seconds) == pytest.approx(interval)


@pytest.mark.parametrize(
    ("seconds", "poll", "pause"), [(0.0, 0.05, 0.05), (0.3, 0.05, 0.1), (5.0, 0.05, 0.5), (0.2, 0.5, 0.5)]
)
def test_batches_follow_each_other_sooner_the_shorter_they_are(
    seconds: float, poll: float, pause: float
) -> None:
    assert pause_after(seconds, poll) == pytest.approx(pause)
