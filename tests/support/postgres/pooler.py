"""A pooler that gives each transaction a session of the server, as pgbouncer does in that mode."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType

from psycopg.conninfo import conninfo_to_dict

_SPECIAL = {80877103, 80877104}  # requests of TLS and of GSSAPI
_READY = b"Z"


class TransactionPooler:
    """Listens on a port of loopback, until it is closed, for clients that the server trusts."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._free: list[socket.socket] = []  # sessions of the server, the last one that was used last
        self._lock = threading.Lock()
        self._greeting = b""
        self._links: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> TransactionPooler:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for link in (self._listener, *self._links):
            link.close()

    def conninfo(self, conninfo: str) -> str:
        """Return a conninfo of the same database by way of the pooler."""
        user = conninfo_to_dict(conninfo)["user"]
        port = self._listener.getsockname()[1]
        return f"{conninfo} port={port} user={user} sslmode=disable gssencmode=disable"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self._links.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, EOFError):
            while (startup := _read(client, *struct.unpack("!I", _exactly(client, 4))))[:4] in map(
                struct.Struct("!I").pack, _SPECIAL
            ):
                client.sendall(b"N")
            server = self._session(startup)
            self._free.append(server)
            # the parameters of the server, and a process ID of the pooler
            key = b"K" + struct.pack("!III", 12, 4_000_000_000, 1)
            client.sendall(self._greeting + key + b"Z" + struct.pack("!Ic", 5, b"I"))
            session: socket.socket | None = None
            while True:
                kind, message = _message(client)
                if kind == b"X":
                    return
                if session is None:
                    session = self._session(startup)
                session.sendall(message)
                if kind in b"QS" and self._relay(session, client) == b"I":
                    self._free.append(session)
                    session = None

    def _relay(self, session: socket.socket, client: socket.socket) -> bytes:
        """Send what the server answers; return the state of its transaction."""
        while True:
            kind, message = _message(session)
            client.sendall(message)
            if kind == _READY:
                return message[-1:]

    def _session(self, startup: bytes) -> socket.socket:
        """Return the session that was used last, or another one."""
        with self._lock:
            if self._free:
                return self._free.pop()
        session = socket.create_connection(self._target)
        self._links.append(session)
        session.sendall(struct.pack("!I", len(startup) + 4) + startup)
        greeting = b""
        while True:
            kind, message = _message(session)
            if kind == _READY:
                break
            if kind in b"RS":
                greeting += message
        self._greeting = self._greeting or greeting
        return session


def _message(link: socket.socket) -> tuple[bytes, bytes]:
    """Return the type of the next message, and the message."""
    head = _exactly(link, 5)
    return head[:1], head + _read(link, *struct.unpack("!I", head[1:]))


def _read(link: socket.socket, length: int) -> bytes:
    return _exactly(link, length - 4)


def _exactly(link: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = link.recv(count - len(found))
        if not part:
            raise EOFError
        found += part
    return found
