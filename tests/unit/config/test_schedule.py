"""`silver.schedule`: which window a moment is in, until when, and what is refused."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pipeline.config.config import Config
from pipeline.config.load import load_config
from pipeline.config.schedule import NO_SCHEDULE, Schedule, Window, interval_at
from pipeline.errors import ConfigError
from pipeline.table_name import TableName

NIGHT, NOON = Window("22:00-06:00", 0), Window("12:00-13:30", 7200)
BERLIN = Schedule("Europe/Berlin", (NIGHT, NOON))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("now", "seconds", "window", "until"),
    [
        ("2026-01-15 20:59", 900, None, "2026-01-15 21:00"),  # 21:59 in Berlin
        ("2026-01-15 21:00", 0, NIGHT, "2026-01-16 05:00"),
        ("2026-01-16 04:59", 0, NIGHT, "2026-01-16 05:00"),
        ("2026-01-16 05:00", 900, None, "2026-01-16 11:00"),
        ("2026-01-16 11:00", 7200, NOON, "2026-01-16 12:30"),
        ("2026-01-16 12:30", 900, None, "2026-01-16 21:00"),
        ("2026-07-15 20:00", 0, NIGHT, "2026-07-16 04:00"),  # in summer the night begins at 20:00 UTC
        ("2026-03-28 21:30", 0, NIGHT, "2026-03-29 04:00"),  # the night in which clocks go forward
        ("2026-10-24 20:30", 0, NIGHT, "2026-10-25 05:00"),  # and back
    ],
)
def test_the_window_of_a_moment_counts(now: str, seconds: int, window: Window | None, until: str) -> None:
    assert interval_at(BERLIN, 900, utc(now)) == (seconds, window, utc(until))


def test_without_windows_the_interval_is_always_the_same() -> None:
    assert interval_at(NO_SCHEDULE, 900, utc("2026-01-15 12:00")) == (900, None, None)
    always = Schedule("UTC", (Window("00:00-24:00", 5),))
    assert interval_at(always, 900, utc("2026-01-15 00:00")) == (5, always.windows[0], None)


def test_the_first_window_that_includes_a_minute_counts() -> None:
    schedule = Schedule("UTC", (Window("10:00-11:00", 1), Window("08:00-18:00", 2)))
    found = [interval_at(schedule, 3, utc(f"2026-01-15 {hour:02}:00")).min_interval for hour in range(24)]
    assert found == [3] * 8 + [2, 2, 1, *[2] * 7] + [3] * 6


def test_every_minute_of_a_year_is_in_one_window_until_it_ends() -> None:
    now = utc("2026-01-01 00:00")
    while now < utc("2027-01-01 00:00"):
        found = interval_at(BERLIN, 900, now)
        assert found.until is not None
        for moment in (now, found.until - timedelta(minutes=1)):
            assert BERLIN.window_at(moment) == found.window
        assert BERLIN.window_at(found.until) != found.window
        now = found.until


def load(folder: Path, text: str) -> Config:
    (folder / "c.yaml").write_text(f"pipeline: s\n{text}", encoding="utf-8")
    return load_config(folder / "c.yaml", {})


def test_tables_without_an_interval_of_their_own_have_the_schedule(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """\
silver:
  min_interval: 15min
  schedule:
    time_zone: Europe/Berlin
    windows:
      - {hours: "22:00-06:00", min_interval: 0s}
tables:
  - {source: a.own, min_interval: 1h}
  - source: "a.*"
""",
    )
    night, day = utc("2026-01-15 23:00"), utc("2026-01-15 12:00")
    own, other = (config.rule_for(TableName("a", name)) for name in ("own", "other"))
    assert own is not None
    assert other is not None
    assert (own.interval_at(night), own.interval_at(day)) == (3600, 3600)
    assert (other.interval_at(night), other.interval_at(day)) == (0, 900)


@pytest.mark.parametrize(
    "hours",
    ["22:00", "22-06", "25:00-06:00", "10:00-10:00", "24:00-06:00", "10:60-11:00", "1:00-2:00", "a-b"],
)
def test_other_hours_are_refused_with_their_place(tmp_path: Path, hours: str) -> None:
    text = f'silver:\n  schedule:\n    windows:\n      - {{hours: "{hours}"}}\n'
    with pytest.raises(ConfigError, match=r"c\.yaml:5: silver\.schedule\.windows\[0\]\.hours: Expected "):
        load(tmp_path, text)


@pytest.mark.parametrize("zone", ["Berlin", "../etc/passwd", "/etc/localtime", "Europe"])
def test_an_unknown_time_zone_is_refused(tmp_path: Path, zone: str) -> None:
    with pytest.raises(ConfigError, match=r"silver\.schedule\.time_zone: Unknown time zone"):
        load(tmp_path, f'silver: {{schedule: {{time_zone: "{zone}"}}}}\n')
