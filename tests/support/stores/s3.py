"""A server with S3's protocol on loopback, in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "lake"
_KEY = "test"  # of the server's only user, and its secret


class S3Server:
    """The server's application, and requests that tests make of it.

    Requests that write are handled one at a time, because a real store decides in one step whether a name
    exists and takes it. With `loses` every such request of that number is answered by an error after it was
    carried out, if it creates an object on the condition that there is none.
    """

    def __init__(self, loses: int = 0, latency: float = 0.0) -> None:
        # takes a second to import
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self.lost = 0
        self.requests = 0
        self._loses = loses
        self._latency = latency
        self._creations = 0
        self._application: Any = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self.url = ""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Handle a request, after the latency in seconds."""
        found: Iterable[bytes]
        self.requests += 1
        time.sleep(self._latency)
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            found = self._application(environ, start_response)
            return found
        with self._lock:
            if environ.get("HTTP_IF_NONE_MATCH") and self._loses:
                self._creations += 1
                if self._creations % self._loses == 0:
                    self.lost += 1
                    list(self._application(environ, lambda *_: None))
                    start_response("500 Internal Server Error", [("Content-Length", "0")])
                    return []
            found = list(self._application(environ, start_response))
            return found

    def read(self, name: str) -> bytes:
        """Return an object's content."""
        return self.request("GET", f"{BUCKET}/{name}")

    def request(self, method: str, path: str) -> bytes:
        """Make a request, whose signature the server does not verify; return the answer."""
        headers = {"Authorization": f"AWS {_KEY}:"}
        with urlopen(Request(f"{self.url}/{path}", method=method, headers=headers)) as answer:
            content: bytes = answer.read()
            return content

    @property
    def options(self) -> dict[str, str]:
        """What `storage.options` need to use the server."""
        return {
            "aws_endpoint": self.url,
            "aws_region": "us-east-1",
            "aws_access_key_id": _KEY,
            "aws_secret_access_key": _KEY,
        }

    def write_settings(self, folder: Path) -> None:
        """Write what Hadoop's client needs to use the server, for a class path with this folder."""
        values = {
            "endpoint": self.url,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": _KEY,
            "secret.key": _KEY,
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "connection.expect.continue": "false",  # the server answers it wrongly
            "retry.interval": "50ms",
        }
        properties = (
            f"<property><name>fs.s3a.{name}</name><value>{value}</value></property>"
            for name, value in values.items()
        )
        (folder / "core-site.xml").write_text(f"<configuration>{''.join(properties)}</configuration>")


class _QuietHandler(WSGIRequestHandler):
    """A handler that keeps connections open and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def s3_server(*, loses: int = 0, latency: float = 0.0) -> Iterator[S3Server]:
    """Serve an empty bucket for the block."""
    found = S3Server(loses, latency)
    server = make_server("127.0.0.1", 0, found, threaded=True, request_handler=_QuietHandler)
    thread = threading.Thread(target=server.serve_forever, name="s3-server", daemon=True)
    thread.start()
    try:
        found.url = f"http://127.0.0.1:{server.server_port}"
        found.request("POST", "moto-api/reset")  # all servers of a process have one memory
        found.request("PUT", BUCKET)
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
