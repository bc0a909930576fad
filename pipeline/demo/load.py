"""The demo's load: it changes the shop at a steady rate, counts its changes, and samples the server's WAL.

Counts are the server's row counts of committed transactions.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_right
from collections import Counter
from typing import Any

from pipeline.demo.shop import CANCELLED, MILESTONES, OPENING, ROUND, Step
from pipeline.postgres.connection import Connection, read_flush_lsn
from pipeline.protocol.lsn import LSN

#: The least that a load does unless it is stopped.
MINIMUM = {
    "inserts": 300,
    "updates": 300,
    "deletes": 300,
    "key_changes": 300,
    "toast_updates": 300,
    "truncates": 1,
    "ddl": 2,
}
_ROUNDS_PER_SECOND = 5
_ROUNDS_PER_CANCELLATION = 5


class Load:
    """Changes the shop over one connection; `log` maps LSNs to the times at which the WAL reached them."""

    def __init__(self, connection: Connection, seed: int = 1) -> None:
        self.counts: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()  # by table, as of the last commit
        self.log: list[tuple[LSN, float]] = []  # end of the WAL, and when (monotonic)
        self._connection = connection
        self._random = random.Random(seed)
        self._round = 0

    def open_shop(self) -> LSN:
        """Fill the shop and return an LSN after it."""
        self._commit(OPENING)
        return self._mark()

    def run(self, seconds: float, stop: threading.Event) -> None:
        """Change the shop for some seconds and until the minimum is reached, or until `stop`."""
        started = time.monotonic()
        milestones, routine = list(MILESTONES), list(ROUND)
        while not stop.is_set():
            elapsed = time.monotonic() - started
            if elapsed >= seconds and not milestones and self.has_minimum:
                break
            if milestones and elapsed >= seconds * milestones[0].fraction:
                milestone = milestones.pop(0)
                self._commit(milestone.steps)
                if milestone.then:
                    routine.append(milestone.then)
            self._round += 1
            for steps in routine:
                self._commit(steps)
            if self._round % _ROUNDS_PER_CANCELLATION == 0:
                self._commit(CANCELLED, is_cancelled=True)
            self.log.append((read_flush_lsn(self._connection), time.monotonic()))
            if elapsed < seconds:
                stop.wait(started + self._round / _ROUNDS_PER_SECOND - time.monotonic())

    def close_shop(self) -> LSN:
        """Return an LSN after every change."""
        return self._mark()

    def _mark(self) -> LSN:
        last = read_flush_lsn(self._connection)
        self.log.append((last, time.monotonic()))
        # a commit after the LSN, so that replication passes it although nothing else happens
        self._connection.execute("SELECT pg_catalog.pg_logical_emit_message(true, 'pgdelta', 'mark')")
        return last

    @property
    def has_minimum(self) -> bool:
        """Whether every kind of change reached its minimum."""
        return all(self.counts[kind] >= count for kind, count in MINIMUM.items())

    def lag_of(self, offset: LSN) -> tuple[float, int]:
        """Return the lag of an offset behind the shop, in seconds and bytes of WAL."""
        unseen = bisect_right(self.log, offset, key=lambda entry: entry[0])
        if unseen >= len(self.log):
            return 0.0, 0
        return time.monotonic() - self.log[unseen][1], self.log[-1][0] - offset

    def _commit(self, steps: tuple[Step, ...], *, is_cancelled: bool = False) -> None:
        values = self._values()
        with self._connection.transaction(force_rollback=is_cancelled):
            done = [self._connection.execute(s.statement.encode(), values).rowcount for s in steps]
        if is_cancelled:
            return
        for step, count in zip(steps, done, strict=True):
            self.counts[step.kind] += max(count, 0) if step.kind not in ("truncates", "ddl") else 1
            if step.kind == "truncates":
                self.rows[step.table] = 0
            self.rows[step.table] += {"inserts": count, "deletes": -count}.get(step.kind, 0)

    def _values(self) -> dict[str, Any]:
        number, place = self._round, self._random.random()
        this, that = self._random.sample(range(1, 301), 2)
        return {
            "round": number,
            "new_customer": 1001 + 3 * number,
            "new_product": 301 + number,
            "new_order": 1501 + 6 * number,
            "customers": int(place * (1000 + 3 * number)),
            "products": int(place * 290),
            "orders": int(place * (1490 + 6 * number)),
            "this": this,
            "that": that,
        }
