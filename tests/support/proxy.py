"""A link to a server on loopback that can be cut, stand still, or be tampered with."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

Frames = Callable[[bytes, bytes], bytes]
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST


class Proxy:
    """Forwards TCP connections to 127.0.0.1:`port`; `tamper` gets type and body of what the server sends.

    It returns the bytes that go on in the frame's place. With a `rate` the server's bytes go on at so many a
    second.
    """

    def __init__(self, port: int, tamper: Frames | None = None, rate: int | None = None) -> None:
        self.tamper = tamper
        self._rate = rate
        self.byte_count = 0  # from the server to its clients
        self.link_count = 0  # connections that were forwarded
        self._target = ("127.0.0.1", port)
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._links: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flows.set()
        self.cut()
        self._thread.join(10)

    @property
    def port(self) -> int:
        """Return where it listens."""
        return int(self._listener.getsockname()[1])

    def conninfo(self, conninfo: str) -> str:
        """Return a conninfo of the same database by way of this link, without TLS."""
        return f"{conninfo} port={self.port} sslmode=disable gssencmode=disable"

    def cut(self) -> None:
        """Reset all connections; new ones are taken."""
        links, self._links = self._links, []
        for link in links:
            _reset(link)

    def stall(self) -> None:
        """Forward nothing more in either direction; connections stay as they are, and new ones are taken."""
        self._flows.clear()

    def flow(self) -> None:
        """Forward again, what came meanwhile too."""
        self._flows.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:  # it is down: whoever asked learns it, and may ask again
                client.close()
                continue
            self.link_count += 1
            self._links += [client, server]
            for pump in (self._from_client, self._from_server):
                threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _from_client(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                self._flows.wait()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
        except OSError:  # one end is gone without a word: the other one learns it
            _reset(client)
            _reset(server)

    def _from_server(self, client: socket.socket, server: socket.socket) -> None:
        pending = b""
        try:
            while data := server.recv(65536):
                self._flows.wait()
                self.byte_count += len(data)
                if self._rate is not None:
                    time.sleep(len(data) / self._rate)
                if self.tamper is None:
                    client.sendall(data)
                    continue
                pending += data
                while len(pending) >= 5:
                    (length,) = struct.unpack_from(">i", pending, 1)
                    if len(pending) < 1 + length:
                        break
                    client.sendall(self.tamper(pending[:1], pending[5 : 1 + length]))
                    pending = pending[1 + length :]
            client.shutdown(socket.SHUT_WR)
        except OSError:
            _reset(client)
            _reset(server)


def _reset(link: socket.socket) -> None:
    with suppress(OSError):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        link.shutdown(socket.SHUT_RDWR)
    link.close()


def frame(kind: bytes, body: bytes) -> bytes:
    """Return a message of the protocol as it is sent."""
    return kind + struct.pack(">i", 4 + len(body)) + body
