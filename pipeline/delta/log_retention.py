"""Retention of a table's log: versions are kept by their age, and by their number.

Delta counts by age alone (`delta.logRetentionDuration`), which lets a log with a commit every 3 seconds grow
to 28,800 commits in a day. Tables with `pgdelta.logRetentionCommits` also let versions go that are older than
`KEPT_SECONDS` and are not among the newest of that number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

LOG_RETENTION = "delta.logRetentionDuration"
FILE_RETENTION = "delta.deletedFileRetentionDuration"
LOG_COMMITS = "pgdelta.logRetentionCommits"
SET_BY_US = "pgdelta.logRetentionDuration"
"""The value of both durations if pgdelta has set them."""
KEPT_SECONDS = 3600.0
"""No version younger than this expires by number: a reader may be about to read it."""
DAY = 86_400
COMMITS = 2000
_DEFAULT_SECONDS = 30.0 * DAY
_UNITS = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86_400.0,
    "week": 604_800.0,
}
_DURATION = re.compile(r"([0-9]+)\s+([a-z]+?)s?(?=\s|$)")


@dataclass(frozen=True, slots=True)
class LogRetention:
    """Versions expire after `seconds`, and earlier if more than `commits` are newer; 0 is no limit."""

    seconds: float = _DEFAULT_SECONDS
    commits: int = 0

    @classmethod
    def of(cls, configuration: Mapping[str, str]) -> LogRetention:
        """Return the retention that a table's properties set.

        The number does not count if the table's owner has set the duration.
        """
        seconds = seconds_of(configuration.get(LOG_RETENTION), _DEFAULT_SECONDS)
        is_ours = configuration.get(LOG_RETENTION) == configuration.get(SET_BY_US)
        text = configuration.get(LOG_COMMITS, "") if is_ours else ""
        return cls(seconds, int(text) if text.isascii() and text.isdigit() else 0)

    def is_expired(self, age: float, newer: int) -> bool:
        """Return whether a version expires that is `age` seconds old, with so many newer ones."""
        if age > self.seconds:
            return True
        return 0 < self.commits <= newer and age > KEPT_SECONDS


def short_log(seconds: int = DAY, commits: int = COMMITS) -> dict[str, str]:
    """Return the properties of a table that belongs to the pipeline: its readers need few old versions.

    `seconds` is also how long removed files stay on disk. 0 for `seconds` sets no durations, and 0 for
    `commits` sets no number.
    """
    text = f"interval {seconds} seconds"
    durations = {LOG_RETENTION: text, FILE_RETENTION: text, SET_BY_US: text} if seconds else {}
    return durations | ({LOG_COMMITS: str(commits)} if commits else {})


def seconds_of(text: str | None, default: float) -> float:
    """Return the seconds of an interval such as `interval 30 days`, or the default if the text is not one."""
    found = _DURATION.findall((text or "").lower().replace("interval", " "))
    if not found or any(unit not in _UNITS for _, unit in found):
        return default
    return sum(int(number) * _UNITS[unit] for number, unit in found)
