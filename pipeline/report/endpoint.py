"""An HTTP endpoint of a run: it serves an application on its own threads until it is closed.

It has no authentication and no TLS, so the caller chooses the address, by default this machine only. A client
that sends nothing is disconnected, and there are never more than `MAX_CLIENTS` at once.
"""

from __future__ import annotations

import errno
import io
import ipaddress
import socket
import threading
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from pipeline.errors import ConfigError, EndpointError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

MAX_CLIENTS = 32
_CLIENT_SECONDS = 10.0  # until a client that sends nothing is disconnected


class Endpoint:
    """Serves an application from its creation until `close`."""

    def __init__(self, host: str, port: int, application: WSGIApplication, *, option: str, name: str) -> None:
        """Listen on an address; `option` is that of the command line, `name` that of the thread.

        Raises EndpointError if the port cannot be used, ConfigError if the host is not this machine.
        """
        family, address = _resolve(host, port, option)
        try:
            self._server = _Server(family, address[:2], application)
        except OSError as error:
            raise _refusal(host, port, error, option) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name=name, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def is_local(host: str, port: int, option: str) -> bool:
    """Return whether a host is this machine's loopback; raise ConfigError if it is unknown."""
    return ipaddress.ip_address(_resolve(host, port, option)[1][0].partition("%")[0]).is_loopback


def _resolve(host: str, port: int, option: str) -> tuple[int, Any]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise ConfigError(f"{option}: Host {host} is unknown. Give an address of this machine.") from None
    family, *_, address = found[0]
    return family, address


def _refusal(host: str, port: int, error: OSError, option: str) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return EndpointError(
            f"{option}: Port {port} of {host} is in use. Stop the process that uses it, or choose another "
            "port."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"{option}: {host} is not an address of this machine. Give one that is.")
    return EndpointError(
        f"{option}: Cannot listen on port {port} of {host}: {error.strerror}. Choose another port."
    )


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, family: int, address: Any, application: WSGIApplication) -> None:
        self.address_family = family
        self._free = threading.Semaphore(MAX_CLIENTS)
        super().__init__(address, _RequestHandler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Bind without a reverse DNS lookup of the address, which may wait for a slow name service."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a client, or disconnect it if there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a client, then let another one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: a client that disconnects is not an error of the run."""


class _RequestHandler(WSGIRequestHandler):
    timeout = _CLIENT_SECONDS
    server_version = "pgdelta"
    sys_version = ""

    def get_stderr(self) -> io.StringIO:
        """Return a stream for stack traces that nothing reads: stderr is for sentences."""
        return io.StringIO()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write nothing about requests."""
