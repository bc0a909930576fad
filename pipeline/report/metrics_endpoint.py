"""The HTTP endpoint of a run's metrics: `GET /metrics` and nothing else, on threads of its own.

prometheus_client chooses the format and writes it; the server is that of the standard library. There is no
authentication and no TLS, so the caller chooses the address, by default this machine only.
"""

from __future__ import annotations

import errno
import io
import socket
import threading
from collections.abc import Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from pipeline.errors import ConfigError, EndpointError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_CLIENT_SECONDS = 10.0  # until a client that sends nothing is disconnected


class MetricsEndpoint:
    """Serves a registry from its creation until `close`."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Listen on an address.

        Raises EndpointError if the port cannot be used, ConfigError if the host is not this machine.
        """
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError:
            raise ConfigError(
                f"--metrics: Host {host} is unknown. Give an address of this machine."
            ) from None
        family, *_, address = found[0]
        try:
            self._server = _Server(family, address[:2], _only_metrics(make_wsgi_app(registry)))
        except OSError as error:
            raise _refusal(host, port, error) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _refusal(host: str, port: int, error: OSError) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return EndpointError(
            f"--metrics: Port {port} of {host} is in use. Stop the process that uses it, or choose another "
            "port."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"--metrics: {host} is not an address of this machine. Give one that is.")
    return EndpointError(
        f"--metrics: Cannot listen on port {port} of {host}: {error.strerror}. Choose another port."
    )


def _only_metrics(application: WSGIApplication) -> WSGIApplication:
    """Return the application behind `/metrics`, also for HEAD; other paths are not found."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"Only /metrics is here.\n"]
        if environ["REQUEST_METHOD"] == "HEAD":
            application({**environ, "REQUEST_METHOD": "GET"}, start_response)
            return []
        return application(environ, start_response)

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, family: int, address: Any, application: WSGIApplication) -> None:
        self.address_family = family
        super().__init__(address, _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Bind without a reverse look-up of the address, which may wait for a slow name service."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: a client that disconnects is not an error of the run."""


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_SECONDS
    server_version = "pgdelta"
    sys_version = ""

    def get_stderr(self) -> io.StringIO:
        """Return a stream for stack traces that nothing reads: stderr is for sentences."""
        return io.StringIO()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write nothing about requests."""
