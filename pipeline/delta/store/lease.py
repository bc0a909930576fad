"""A lease on an object store: one object that says which process holds it, and a thread that renews it.

A process acquires the lease by creating the object, or by replacing the one that it has read, on the
condition that no other process has done so meanwhile. Each acquisition has a greater number than the one
before it, with which writes can be fenced. The object stays when the lease is released, because it has the
number.

Clocks of two machines are never compared. A holder counts the time since it began its last renewal that
succeeded. A waiting process may take a lease over if the object has not changed for the length of the lease
while this process watched it. Because of that, a machine that stops for longer than the lease can lose it
without noticing: `check` notices it before a write, and the number excludes what that may be too late for.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from uuid import uuid4

from pipeline.delta.store.store import Store, StoreError
from pipeline.errors import FencedError, LakeError

SECONDS = 30.0
"""The length of a lease."""

_SHARE = 6  # renewals in the length of a lease; a holder stops one of them before the end
_POLLS = 15  # of a waiting process, in the length of a lease
_FIRST_POLL = 0.05  # seconds; the holder may be about to release it
_ATTEMPTS = 8  # of a change that other processes prevent


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The content of the object.

    `suspect` is the greatest number whose holder may still write: it did not release the lease, or a write of
    which it does not know the outcome may still arrive. `acquired` is for people.
    """

    number: int
    suspect: int
    token: str
    holder: str
    job: str
    acquired: str
    seconds: float
    renewals: int = 0
    is_released: bool = False

    @property
    def content(self) -> bytes:
        """The object's bytes, which no other record has: the token or the number of renewals differs."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


class LeaseHeldError(LakeError):
    """A lease that another process holds and renews."""


class Lease:
    """A lease that this process holds from `acquire` to `release`; threads may share it."""

    def __init__(self, store: Store, name: str, job: str, seconds: float = SECONDS) -> None:
        """Use the object `name` of a store whose requests end in less than the length of the lease.

        `job` is what the holder is called in sentences, such as `apply`.
        """
        self._entry = store.entry(name)
        self._job = job
        self._seconds = seconds
        self._place = f"{store.url}/{name}"
        self._record: LeaseRecord | None = None
        self._tag = ""
        self._deadline = 0.0
        self._lost: str | None = None
        self._error: StoreError | None = None  # of the last renewal
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def number(self) -> int:
        """The number of this acquisition."""
        return self._held.number

    @property
    def suspect(self) -> int:
        """The greatest number of an earlier acquisition whose holder may still write."""
        return self._held.suspect

    @property
    def token(self) -> str:
        """What tells this acquisition from all others in the object."""
        return self._held.token

    @property
    def place(self) -> str:
        """The address of the object."""
        return self._place

    @property
    def _held(self) -> LeaseRecord:
        assert self._record is not None, "the lease is not held"
        return self._record

    def acquire(
        self, waits: Callable[[str], None] = lambda sentence: None, stop: threading.Event | None = None
    ) -> None:
        """Acquire the lease and renew it from now on.

        Waits for a holder that does not renew it, and calls `waits` with a sentence then. Raises
        LeaseHeldError if the holder renews it, LakeError if `stop` is set meanwhile, StoreError if the store
        does not answer.
        """
        stop = stop or threading.Event()
        for _ in range(_ATTEMPTS):
            found = self._read()
            if found is not None and not found[0].is_released:
                found = self._wait(*found, waits, stop)
            if self._take(found):
                self._thread = threading.Thread(target=self._renew_always, name="lease", daemon=True)
                self._thread.start()
                return
        raise self._refusal(None)

    def find_holder(self) -> str | None:
        """Return who holds the lease, or has ended without releasing it; None if it is free."""
        found = self._read()
        if found is None or found[0].is_released:
            return None
        record = found[0]
        return f"{record.holder}, since {record.acquired}; if it was killed, for {record.seconds:g} s more"

    def check(self) -> None:
        """Raise FencedError unless this process holds the lease; renew it first if that is overdue."""
        if self._lost is None and _now() < self._deadline:
            return
        with self._lock:
            if self._lost is None and _now() >= self._deadline:
                self._try_to_renew()
            if self._lost is not None:
                raise FencedError(self._lost)
            if _now() < self._deadline:
                return
            reason = self._error or "the process or its machine was stopped"
            raise FencedError(
                f"The lease of {self._job} at {self._place} could not be renewed in time, so this "
                f"{self._job} ends before its next commit ({str(reason).rstrip('.')}). Nothing is lost. Run "
                "again."
            )

    def release(self, *, is_clean: bool = True) -> None:
        """Let the next process acquire the lease at once.

        If the store does not answer, that process waits for the end of the lease. A release that is not clean
        says that a write of this process may still arrive.
        """
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            if self._lost is not None:
                return
            held = self._held
            suspect = held.suspect if is_clean else held.number
            try:
                self._change(replace(held, is_released=True, suspect=suspect))
            except StoreError as error:
                self._error = error

    def _read(self) -> tuple[LeaseRecord, str] | None:
        try:
            content, tag = self._entry.read()
        except FileNotFoundError:
            return None
        try:
            return LeaseRecord(**json.loads(content)), tag
        except (TypeError, ValueError):
            raise LakeError(
                f"{self._place} is not a lease of pgdelta. Make sure that no {self._job} runs, remove it, "
                "and run again."
            ) from None

    def _take(self, found: tuple[LeaseRecord, str] | None) -> bool:
        """Write this process into the object as it was found; return False if another process was faster."""
        if found is None:
            # Tables may record numbers of an object that was removed, and all later ones must be greater. If
            # they are not, because a clock is far off, commits are refused.
            number = time.time_ns() // 1_000_000
            suspect = number - 1
        else:
            before = found[0]
            number = before.number + 1
            suspect = before.suspect if before.is_released else before.number
        acquired = datetime.now(timezone.utc).isoformat(timespec="seconds")
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        record = LeaseRecord(number, suspect, str(uuid4()), holder, self._job, acquired, self._seconds)
        began = _now()
        tag = (
            self._entry.create(record.content)
            if found is None
            else self._entry.replace(record.content, found[1])
        )
        if tag is None:
            return False
        self._record, self._tag = record, tag
        self._set_deadline(began)
        return True

    def _wait(
        self, record: LeaseRecord, tag: str, waits: Callable[[str], None], stop: threading.Event
    ) -> tuple[LeaseRecord, str] | None:
        """Wait until a lease is released or may be taken over, and return it; None if it was removed.

        Raises LeaseHeldError if it changes otherwise.
        """
        since = time.monotonic()
        waits(
            f"{self._place} is held by {record.holder}, which may have ended. Waiting up to "
            f"{record.seconds:g} seconds until its lease ends."
        )
        interval = _FIRST_POLL
        while time.monotonic() - since < record.seconds:
            if stop.wait(interval):
                raise LakeError(f"Stopped while {self._place} was held by {record.holder}. Run again.")
            found = self._read()
            if found is None or found[0].is_released:
                return found
            if found != (record, tag):
                raise self._refusal(found[0])
            interval = min(interval * 1.5, record.seconds / _POLLS)
        return record, tag

    def _refusal(self, record: LeaseRecord | None) -> LeaseHeldError:
        holder = f" ({record.holder})" if record is not None else ""
        return LeaseHeldError(
            f"Another {self._job} is running: it holds {self._place}{holder}. Stop it, or wait until it ends."
        )

    def _renew_always(self) -> None:
        while not self._ended.wait(self._seconds / _SHARE):
            with self._lock:
                if self._lost is not None:
                    return
                self._try_to_renew()

    def _try_to_renew(self) -> None:
        held = self._held
        try:
            self._change(replace(held, renewals=held.renewals + 1))
        except StoreError as error:
            self._error = error

    def _change(self, record: LeaseRecord) -> None:
        """Replace the record that this process wrote last, or find out who replaced it."""
        for _ in range(_ATTEMPTS):
            began = _now()
            tag = self._entry.replace(record.content, self._tag)
            if tag is not None:
                self._record, self._tag, self._error = record, tag, None
                self._set_deadline(began)
                return
            found = self._read()
            if found is None:
                self._lost = (
                    f"{self._place} was removed, so this {self._job} ends before its next commit. Nothing is "
                    "lost. Run again."
                )
                return
            if found[0].token != record.token:
                self._lost = (
                    f"Another {self._job} ({found[0].holder}) has taken over {self._place}, so this one "
                    "ends. Nothing is lost, and nothing is written twice."
                )
                return
            # an earlier change of this process was made although its answer was lost
            self._tag = found[1]

    def _set_deadline(self, began: float) -> None:
        self._deadline = began + self._seconds * (1 - 1 / _SHARE)


def _now() -> float:
    """Return the seconds since the machine started, with those in which it was suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
