"""Ends a wait for the server from another thread."""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress


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
