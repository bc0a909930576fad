"""A receiver of webhooks on this machine, which answers, refuses, hangs or is gone."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.http_doubles import listening

PATH = "/services/planted-secret"


@dataclass
class Receiver:
    """What a receiver got, by its answers: `codes` are used up, then `code` is the answer."""

    port: int = 0
    code: int = 200
    codes: list[int] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of messages that were accepted
    attempts: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)
    hangs: threading.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    def alerts(self) -> list[tuple[str, str, str | None]]:
        """Return (state, rule, table) of each alert that was accepted, in order."""
        return [
            (each["state"], each["rule"], each["table"]) for body in self.bodies for each in body["alerts"]
        ]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Give a receiver that listens on a free port until the block ends."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.attempts += 1
            found.requests.append((self.path, self.headers["Content-Type"]))
            if found.hangs is not None:
                found.hangs.wait(60)
                return
            code = found.codes.pop(0) if found.codes else found.code
            if code < 300:
                found.bodies.append(json.loads(body))
            self.send_response(code)
            if code in (301, 302, 307):
                self.send_header("Location", f"http://127.0.0.1:{found.port}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with listening(Handler) as found.port:
        try:
            yield found
        finally:
            if found.hangs is not None:
                found.hangs.set()
