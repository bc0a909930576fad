"""A slot looked at again and again by SQL, and never moved: each look begins where the slot stands.

What earlier looks have shown comes again: the reader knows it by its position. A look that is too short is
made again, and further; a server with much behind its slot is left alone between two looks for as long as
the last one took. While no look is under way the slot is free. Where its own reader moves it on meanwhile,
past what was shown here, the looks end: the messages between would be missing without anybody noticing.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Mapping
from typing import NoReturn

import psycopg
from psycopg.errors import Diagnostic

from pipeline.errors import GapError, SourceError
from pipeline.postgres.connection import Connection, connect, describe, read_flush_lsn, use_raw_encoding
from pipeline.postgres.peek import Peek
from pipeline.postgres.slot import busy_failure, check_source, lost_session, slot_failure
from pipeline.postgres.stream import last_end_lsn, refused_acknowledgement
from pipeline.protocol.lsn import LSN

#: The first look stops after the transaction in which it reaches so many messages; others go further.
LOOK_MESSAGES = 20_000
_IDLE_INTERVAL = 0.5
_BUSY_INTERVAL = 0.2
_MOST_MESSAGES = 2**31 - 1  # what an integer of the server holds


class Looks:
    """A slot read without moving it; a ChangeStream. Made by `start_looks`."""

    needs_acknowledgement = False

    def __init__(
        self,
        control: Connection,
        peeking: Connection,
        *,
        slot: str,
        publication: str,
        confirmed_lsn: LSN,
        options: Mapping[str, str],
        look_messages: int,
        busy_timeout: float,
    ) -> None:
        self._control = control
        self._peeking = peeking
        self._slot = slot
        self._publication = publication
        self._options = options
        self._limit = look_messages
        self._busy_timeout = busy_timeout
        self._sent_through = confirmed_lsn
        self._failure: SourceError | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(peeking.pgconn.socket, selectors.EVENT_READ)
        peeking.add_notice_handler(self._receive_notice)
        self._peek: Peek | None = None
        self._look_count = 0
        self._began = self._next_look = 0.0
        self._busy_since: float | None = None

    @property
    def sent_through(self) -> LSN:
        """Everything committed at or before this LSN has been returned by read() already."""
        return self._sent_through

    @property
    def session(self) -> int:
        """The number of the look that the messages of the last read() came from: each decodes anew."""
        return self._look_count

    def read(self, timeout: float) -> list[bytes]:
        """Return the next messages in order; none once `timeout` seconds passed or sent_through moved."""
        deadline = time.monotonic() + timeout
        while True:
            position = self._sent_through
            self._raise_failure()
            try:
                if self._peek is None:
                    self._peek = self._start_look()
                messages = self._pull(self._peek) if self._peek is not None else []
            except psycopg.Error as error:
                self._fail(lost_session(self._slot, describe(error)))
            if messages or self._sent_through > position:
                return messages
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return messages
            if self._peek is not None:
                self._selector.select(remaining)
            else:
                time.sleep(min(0.05, remaining))

    def acknowledge(self, lsn: LSN) -> None:
        """Refuse: who looks only acknowledges nothing."""
        raise refused_acknowledgement(self._slot, lsn, self._sent_through)

    def ping(self) -> None:
        """Do nothing: a look asks for the server's position itself."""

    def confirm(self, timeout: float) -> bool:
        """Return True: nothing was acknowledged that the slot could not have heard of."""
        del timeout
        return True

    def close(self) -> None:
        """End the sessions, and a look under way; idempotent."""
        if self._peek is not None and not self._peeking.closed:
            # A backend that decodes would keep the slot until it next writes to its client.
            self._peeking.cancel_safe(timeout=5)
        self._failure = self._failure or SourceError(f"The stream of the slot {self._slot} is closed.")
        self._selector.close()
        self._control.close()
        self._peeking.close()

    def _start_look(self) -> Peek | None:
        if time.monotonic() < self._next_look:
            return None
        try:
            upto_lsn = read_flush_lsn(self._control)
            if upto_lsn <= self._sent_through:
                self._next_look = time.monotonic() + 0.1
                return None
            confirmed_lsn = check_source(self._control, self._slot, self._publication).confirmed_flush_lsn
        except SourceError as error:
            self._fail(error)
        if confirmed_lsn > self._sent_through:
            self._fail(
                GapError(
                    f"The slot {self._slot} was moved on to {confirmed_lsn} by another reader, and only what"
                    f" was committed by {self._sent_through} had been shown: what lies between was not."
                )
            )
        self._began = time.monotonic()
        self._look_count += 1
        return Peek(self._peeking, self._slot, upto_lsn, self._limit, self._options)

    def _pull(self, peek: Peek) -> list[bytes]:
        messages = peek.pull()
        # A warning came in with these bytes: rows were left out, nothing after them may count.
        self._raise_failure()
        self._sent_through = max(self._sent_through, last_end_lsn(messages))
        if peek.is_done:
            self._peek = None
            self._finish_look(peek)
        return messages

    def _finish_look(self, peek: Peek) -> None:
        now = time.monotonic()
        if peek.refusal is not None:
            if not peek.is_busy:
                self._fail(slot_failure(self._slot, peek.refusal))
            self._busy_since = self._busy_since or now
            if now - self._busy_since >= self._busy_timeout:
                self._fail(busy_failure(self._slot, peek.refusal, self._busy_timeout))
            self._next_look = now + _BUSY_INTERVAL
            return
        self._busy_since = None
        if peek.message_count >= peek.limit:
            self._limit = min(2 * peek.limit, _MOST_MESSAGES)
            return
        self._sent_through = max(self._sent_through, peek.upto_lsn)
        self._next_look = now + max(_IDLE_INTERVAL, now - self._began)

    def _receive_notice(self, diagnostic: Diagnostic) -> None:
        text = diagnostic.message_primary or ""
        if "publication" in text:
            # From 18 on, rows of a publication that is not found are left out with a warning only.
            self._failure = slot_failure(self._slot, text)

    def _fail(self, failure: SourceError) -> NoReturn:
        # After an error in decoding a session is not to be used again: drop it at once.
        self._failure = failure
        self._control.close()
        self._peeking.close()
        raise failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def start_looks(
    conninfo: str,
    slot: str,
    publication: str,
    *,
    options: Mapping[str, str],
    busy_timeout: float = 10.0,
    look_messages: int = LOOK_MESSAGES,
    application_name: str = "pgdelta",
) -> Looks:
    """Return the looks at the slot from its confirmed position; a busy one is tried for `busy_timeout`."""
    control = connect(conninfo, application_name=application_name)
    try:
        confirmed_lsn = check_source(control, slot, publication).confirmed_flush_lsn
        peeking = connect(conninfo, application_name=application_name)
    except BaseException:
        control.close()
        raise
    use_raw_encoding(peeking)
    return Looks(
        control,
        peeking,
        slot=slot,
        publication=publication,
        confirmed_lsn=confirmed_lsn,
        options=options,
        look_messages=look_messages,
        busy_timeout=busy_timeout,
    )
