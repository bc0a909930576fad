"""Attempts of failed table copies: when each is made again, and when the table is held. Pure, but for time.

A table that is rewritten or altered while it is read is copied again, after intervals that double from a
second. After `MAX_REWRITES` times in a row it is held: it may change faster than it can be read. A table
that cannot be copied for another reason is tried at intervals that double from `RETRY_SECONDS`. What is
requested meanwhile is tried at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.table_name import TableName

MAX_REWRITES = 5
RETRY_SECONDS = 30.0
MAX_RETRY_SECONDS = 600.0
_REWRITE_SECONDS = 1.0
Requests = tuple[str, ...]
"""The ids of the requests that a copy answers."""


@dataclass(slots=True)
class _Attempts:
    requests: Requests
    rewrites: int = 0
    failures: int = 0
    due_at: float = 0.0  # monotonic


class CopyAttempts:
    """The attempts of one run to copy each table that failed last; for one thread."""

    def __init__(self) -> None:
        self._failed: dict[TableName, _Attempts] = {}

    def record_rewrite(self, name: TableName, requests: Requests) -> str | None:
        """Count that a table was rewritten while it was read; return why it is held, None if it is not."""
        attempts = self._attempts(name, requests)
        attempts.rewrites += 1
        _delay(attempts, _REWRITE_SECONDS, attempts.rewrites)
        if attempts.rewrites < MAX_REWRITES:
            return None
        return (
            f"It was truncated, rewritten or altered {attempts.rewrites} times in a row while it was read. "
            "Stop what rewrites it for the time of the copy (VACUUM FULL, TRUNCATE, ALTER TABLE), then run "
            f"{name.command('resync')}."
        )

    def record_failure(self, name: TableName, requests: Requests) -> None:
        """Count that a table could not be copied for another reason."""
        attempts = self._attempts(name, requests)
        attempts.failures += 1
        _delay(attempts, RETRY_SECONDS, attempts.failures)

    def record_success(self, name: TableName) -> None:
        """Forget the failures of a table that is copied."""
        self._failed.pop(name, None)

    def is_due(self, name: TableName, requests: Requests) -> bool:
        """Return whether to copy a table now."""
        attempts = self._failed.get(name)
        return attempts is None or attempts.requests != requests or time.monotonic() >= attempts.due_at

    def keep(self, candidates: Mapping[TableName, object]) -> None:
        """Forget all tables but these."""
        self._failed = {name: each for name, each in self._failed.items() if name in candidates}

    def _attempts(self, name: TableName, requests: Requests) -> _Attempts:
        found = self._failed.get(name)
        if found is None or found.requests != requests:
            found = self._failed[name] = _Attempts(requests)
        return found


def _delay(attempts: _Attempts, first: float, count: int) -> None:
    attempts.due_at = time.monotonic() + min(first * 2.0 ** min(count - 1, 32), MAX_RETRY_SECONDS)
