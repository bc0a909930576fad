"""A server with S3's protocol on loopback, in memory."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from werkzeug.serving import WSGIRequestHandler, make_server

from tests.support.paths import ROOT

BUCKET = "lake"
_KEY = "test"  # of the server's only user, and its secret


class S3Server:
    """The server's application, and requests that tests make of it.

    Requests that write are handled one at a time, because a real store decides in one step whether a name
    exists and takes it. With `loses` every such request of that number is answered by an error after it was
    carried out, if it has a condition.

    `fault` is called with each request and returns what goes wrong with it, or None: `lost` (an error after
    it was carried out), `500`, `503`, `expired` (credentials), `denied`, `silent` (no answer for as long as a
    client waits, and the request is not carried out) or `cut` (the connection ends while it is read).
    """

    def __init__(self, loses: int = 0, latency: float = 0.0) -> None:
        # takes a second to import
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self.lost = 0
        self.requests = 0
        self.fault: Callable[[dict[str, Any]], str | None] = lambda request: None
        self.ignores_conditions = False
        self._closes = threading.Event()
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
        fault = self.fault(environ)
        if fault is not None:
            return self._fail(fault, environ, start_response)
        if self.ignores_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
            environ.pop("HTTP_IF_MATCH", None)
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            found = self._application(environ, start_response)
            return found
        with self._lock:
            if (environ.get("HTTP_IF_NONE_MATCH") or environ.get("HTTP_IF_MATCH")) and self._loses:
                self._creations += 1
                if self._creations % self._loses == 0:
                    self.lost += 1
                    return self._lose(environ, start_response)
            found = list(self._application(environ, start_response))
            return found

    def _lose(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        list(self._application(environ, lambda *_: None))
        return _answer(start_response, *_ERRORS["500"])

    def _fail(self, fault: str, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if fault == "lost":
            with self._lock:
                return self._lose(environ, start_response)
        if fault == "silent":
            self._closes.wait(120)
        if fault in ("silent", "cut"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return _answer(start_response, *_ERRORS["500"])
        return _answer(start_response, *_ERRORS[fault])

    def close(self) -> None:
        """Let requests without an answer end."""
        self._closes.set()

    def read(self, name: str) -> bytes:
        """Return an object's content."""
        return self.request("GET", f"{BUCKET}/{name}")

    def request(self, method: str, path: str, data: bytes | None = None) -> bytes:
        """Make a request, whose signature the server does not verify; return the answer."""
        headers = {"Authorization": f"AWS {_KEY}:", "Content-Type": "application/xml"}
        with urlopen(Request(f"{self.url}/{path}", data, headers, method=method)) as answer:
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

    def write_settings(self, folder: Path, provider: str | None = None) -> None:
        """Write what Hadoop's client needs to use the server, for a class path with this folder."""
        write_settings(folder, self.url, provider)


def write_settings(folder: Path, url: str, provider: str | None = None) -> None:
    """Write what Hadoop's client needs to use a server of tests, for a class path with this folder.

    `provider` is the class that has its credentials; without one they are in the settings.
    """
    values = {
        "endpoint": url,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": _KEY,
        "secret.key": _KEY,
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "connection.expect.continue": "false",  # the server of moto answers it wrongly
        "retry.interval": "50ms",
    }
    if provider is not None:
        del values["access.key"], values["secret.key"]
        values["aws.credentials.provider"] = provider
    properties = (
        f"<property><name>fs.s3a.{name}</name><value>{value}</value></property>"
        for name, value in values.items()
    )
    (folder / "core-site.xml").write_text(f"<configuration>{''.join(properties)}</configuration>")


def environ_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that say what options of a storage say."""
    return {
        "AWS_ENDPOINT_URL" if name == "aws_endpoint" else name.upper(): value
        for name, value in options.items()
    }


_ERRORS = {
    "500": ("500 Internal Server Error", "InternalError"),
    "503": ("503 Slow Down", "SlowDown"),
    "expired": ("400 Bad Request", "ExpiredToken"),
    "denied": ("403 Forbidden", "AccessDenied"),
}


def _answer(start_response: Any, status: str, code: str) -> Iterable[bytes]:
    content = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(content)))])
    return [content]


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
        found.close()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def s3_process(*, latency: float = 0.0) -> Iterator[dict[str, str]]:
    """Serve an empty bucket from a process of its own, and yield the options of its storage.

    A client in this process that does not let other threads run while it waits needs that.
    """
    command = [sys.executable, "-m", "tests.support.stores.s3", str(latency)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        options: dict[str, str] = json.loads(process.stdout.readline())
        yield options
    finally:
        process.communicate()  # the end of its input ends it


if __name__ == "__main__":
    with s3_server(latency=float(sys.argv[1])) as started:
        print(json.dumps(started.options), flush=True)
        sys.stdin.read()
