"""Sessions that are ended while another thread waits on them.

Behind something that answers for a server that is gone, a query that was sent is waited for without end, and
so is the thread that waits. Its socket is shut down here; the thread then fails as if the server had ended.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from contextlib import suppress
from typing import Any

import psycopg

_OPEN: weakref.WeakKeyDictionary[psycopg.Connection[Any], str] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def remember(connection: psycopg.Connection[Any], application_name: str) -> None:
    """Note a session of this process, as long as it lives."""
    with _LOCK:
        _OPEN[connection] = application_name


def break_off(application_name: str) -> int:
    """Shut down all open sessions of this process that have a name; return how many there were."""
    with _LOCK:
        found = [c for c, name in _OPEN.items() if name == application_name and not c.closed]
    for connection in found:
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
    return len(found)
