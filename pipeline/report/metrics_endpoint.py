"""Metrics by HTTP, for as long as a run goes on: `GET /metrics` and nothing else, on threads of their own."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from pipeline.errors import ConfigError, EndpointError
from pipeline.report.metrics import CONTENT_TYPE, Family, render

_CLIENT_SECONDS = 10.0  # that a client may say nothing


class MetricsEndpoint:
    """Serves metrics from when it is made until `close`."""

    def __init__(self, host: str, port: int, families: Callable[[], list[Family]]) -> None:
        """Listen, or raise EndpointError where the port is taken, ConfigError where the host is none."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError:
            raise ConfigError(
                f"--metrics: there is no host {host}; give an address of this machine"
            ) from None
        family, *_, address = found[0]
        try:
            self._server = _Server(family, address[:2], families)
        except OSError as error:
            raise _refusal(host, port, error) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Take no further request; the port is free again."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _refusal(host: str, port: int, error: OSError) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return EndpointError(f"--metrics: port {port} of {host} is in use: end who uses it, or give another")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"--metrics: {host} is no address of this machine; give one that is")
    return EndpointError(f"--metrics: cannot listen on port {port} of {host}: {error.strerror}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, family: int, address: Any, families: Callable[[], list[Family]]) -> None:
        self.address_family = family
        self.families = families
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without asking the name service what this machine is called."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is its own affair."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_SECONDS
    server_version = "pgdelta"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with all metrics."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is here")
            return
        text = render(self.server.families()).encode("utf-8", "backslashreplace")
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing of requests."""
