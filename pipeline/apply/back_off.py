"""Back-off of held and failed tables in a continuous run: when each is tried again.

A table that has not changed is not surveyed and written again by each batch, but at intervals that double
from `FIRST_SECONDS` to `MAX_SECONDS`. A table whose offset, copies, requests or folder have changed is tried
at once, and its intervals begin again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from pipeline.protocol.lsn import INVALID
from pipeline.silver.decision import FailedAttempt, TableFacts
from pipeline.table_name import TableName

FIRST_SECONDS = 10.0
MAX_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Attempt:
    facts: TableFacts
    sentence: str
    pause: float  # seconds
    due_at: float  # monotonic


class BackOff:
    """The tables that were held or failed in this process; several threads may record."""

    def __init__(self) -> None:
        self._last: dict[TableName, _Attempt] = {}

    def record_stop(self, facts: TableFacts, sentence: str) -> None:
        """Record that a table with these facts was held or failed now."""
        last = self._last.get(facts.name)
        is_repeated = last is not None and _is_unchanged(last.facts, facts)
        pause = min(2 * last.pause, MAX_SECONDS) if last and is_repeated else FIRST_SECONDS
        self._last[facts.name] = _Attempt(facts, sentence, pause, time.monotonic() + pause)

    def record_success(self, name: TableName) -> None:
        """Record that a table was written."""
        self._last.pop(name, None)

    def last_stop(self, facts: TableFacts) -> FailedAttempt | None:
        """Return why a table was not written, None if it is to be tried now."""
        last = self._last.get(facts.name)
        if last is None or not _is_unchanged(last.facts, facts):
            return None
        seconds = last.due_at - time.monotonic()
        return FailedAttempt(last.sentence, seconds) if seconds > 0 else None


def _is_unchanged(before: TableFacts, now: TableFacts) -> bool:
    """Return whether an attempt is expected to end as before.

    A table that was current when it failed is afterwards found at the offset in its own log, which is lower.
    """
    return now.offset <= before.offset and _lasting(before) == _lasting(now)


def _lasting(facts: TableFacts) -> TableFacts:
    """Return the facts without what each batch changes."""
    return replace(
        facts,
        end_lsn=INVALID,
        offset=INVALID,
        is_behind=False,
        is_being_written=False,
        counts=None,
        is_replaced=False,
        since_write=None,
        last_stop=None,
    )
