"""The section `silver.schedule`: at which hours of the day tables are written how often. Pure.

Hours are those of a time zone, also when its clocks change: a window of an hour that a day lacks is skipped,
and one that a day has twice lasts twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

from pipeline.config.scalars import FileSection, Hours, Seconds, TimeZone, key, minutes_of


@dataclass(frozen=True, slots=True)
class Window(FileSection):
    """Hours of every day, and the least time between two writes to a table during them."""

    hours: Annotated[
        Hours,
        key(
            "Hours of the day, such as `22:00-06:00`: from the first minute on, up to the second, which is"
            " not included.",
            examples=["22:00-06:00", "08:00-18:30", "00:00-24:00"],
        ),
    ]
    min_interval: Annotated[
        Seconds,
        key(
            "Least time between two writes to a table during these hours, in place of `silver.min_interval`.",
            examples=["0s", "1h"],
        ),
    ] = 0

    def includes(self, minute: int) -> bool:
        """Return whether a minute of the day is in the window, which may include midnight."""
        start, end = minutes_of(self.hours)
        return start <= minute < end if start < end else minute >= start or minute < end


@dataclass(frozen=True, slots=True)
class Schedule(FileSection):
    """Windows of the day in a time zone; the first one that includes a minute decides."""

    time_zone: Annotated[
        TimeZone, key("Time zone of the hours, by its IANA name.", examples=["Europe/Berlin", "UTC"])
    ] = "UTC"
    windows: Annotated[
        tuple[Window, ...],
        key(
            "Hours of the day and how often tables are written then; the first window that includes a minute"
            " decides. At all other times `silver.min_interval` applies.",
            default="none",
        ),
    ] = ()

    def window_at(self, now: datetime) -> Window | None:
        """Return the window that includes a moment, None if there is none."""
        local = now.astimezone(ZoneInfo(self.time_zone))
        minute = local.hour * 60 + local.minute
        return next((window for window in self.windows if window.includes(minute)), None)


NO_SCHEDULE = Schedule()


class ScheduledInterval(NamedTuple):
    """The least time between two writes now, by which window, and until when; None is for ever."""

    min_interval: int
    window: Window | None
    until: datetime | None


def interval_at(schedule: Schedule, min_interval: int, now: datetime) -> ScheduledInterval:
    """Return what applies at a moment; `min_interval` applies outside of all windows."""
    window = schedule.window_at(now)
    later = (moment for moment in _boundaries(schedule, now) if moment > now)
    until = next((moment for moment in later if schedule.window_at(moment) != window), None)
    return ScheduledInterval(seconds_at(schedule, min_interval, now), window, until)


def seconds_at(schedule: Schedule, min_interval: int, now: datetime) -> int:
    """Return the least seconds between two writes at a moment; `min_interval` outside of all windows."""
    window = schedule.window_at(now)
    return min_interval if window is None else window.min_interval


def _boundaries(schedule: Schedule, now: datetime) -> Sequence[datetime]:
    """Return when windows begin and end in the days around a moment, sorted."""
    zone = ZoneInfo(schedule.time_zone)
    today = now.astimezone(zone).date()
    found = {
        datetime.combine(today + timedelta(days=day), time(minute // 60 % 24, minute % 60), zone)
        for day in range(3)
        for window in schedule.windows
        for minute in minutes_of(window.hours)
    }
    return sorted(moment.astimezone(timezone.utc) for moment in found)
