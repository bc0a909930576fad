"""What readers of a slot share by either route: a wait that another thread can end, and failure for good."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from psycopg.errors import Diagnostic

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection
from pipeline.postgres.replication.slot import notice_error
from pipeline.protocol.lsn import LSN


class Interrupt:
    """A pair of sockets whose reading end a selector watches with the server's."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)
        selector.register(self._receiver, selectors.EVENT_READ)

    def set(self) -> None:
        """Let the selector's wait return, the one in progress or the next; any thread may call this."""
        with suppress(OSError):  # it is set already, or closed
            self._sender.send(b"\0")

    def clear(self) -> bool:
        """Return whether it was set, and wait for the next time."""
        with suppress(OSError):
            return bool(self._receiver.recv(4096))
        return False

    def close(self) -> None:
        """Close both ends; idempotent, and nothing can be set or cleared afterwards."""
        self._receiver.close()
        self._sender.close()


class SlotReader:
    """Reads a slot over a connection until a failure, which closes the sessions and is raised ever after."""

    def __init__(
        self, connection: Connection, slot: str, received_lsn: LSN, close_sessions: Callable[[], None]
    ) -> None:
        self._slot = slot
        self._received_lsn = received_lsn
        self._close_sessions = close_sessions
        self._failure: SourceError | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection.pgconn.socket, selectors.EVENT_READ)
        self._interrupt = Interrupt(self._selector)
        connection.add_notice_handler(self._receive_notice)

    @property
    def received_lsn(self) -> LSN:
        """The LSN up to which (inclusive) read() has returned everything that was committed."""
        return self._received_lsn

    def interrupt(self) -> None:
        """Let read() return at once, the one in progress or the next; any thread may call this."""
        self._interrupt.set()

    def _end(self) -> None:
        """Close the sessions, and let every later call fail."""
        self._failure = self._failure or SourceError(f"The stream of the slot {self._slot} is closed.")
        self._selector.close()
        self._interrupt.close()
        self._close_sessions()

    def _receive_notice(self, diagnostic: Diagnostic) -> None:
        self._failure = notice_error(self._slot, diagnostic) or self._failure

    def _fail(self, failure: SourceError) -> NoReturn:
        # Decoding must not continue in a session after an error in it.
        self._failure = failure
        self._interrupt.close()
        self._close_sessions()
        raise failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
