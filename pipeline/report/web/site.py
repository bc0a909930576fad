"""Site that a job serves with `--http`: its page, a page for each table, its metrics, and `/healthz`.

Pages are read from the lake and the source on one thread of its own, when they are requested and at most a
quarter of the time, so that no number of readers slows the job. Requests get the newest page that was read.
Only GET and HEAD are answered. On a loopback address the Host header has to name this machine, so that no
other site can read the pages by a name that leads here.
"""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from pipeline import __version__
from pipeline.delta.sql import utc_text
from pipeline.errors import report_error
from pipeline.report.metrics import RunMetrics, serve_registry
from pipeline.report.web import script
from pipeline.report.web.facts import PageFacts
from pipeline.report.web.history import RunHistory, plots
from pipeline.report.web.page import PageFrame, render_notice, render_page, render_table_page
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

AGE = 4.0  # seconds from which on a page is read again
MAX_PAGES = 32
_DUTY = 3.0  # the pause after a read, in times of its duration
_LONGEST_PAUSE = 30.0
_PATIENCE = 30.0  # until a page was read for the first time
_UPDATE_PATIENCE = 1.0
_HTML = "text/html; charset=utf-8"
_TABLES = "/tables/"
_HEADERS = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", f"{script.SERVED_POLICY}; frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
)


class Answer(NamedTuple):
    """What a request gets."""

    status: str
    body: str
    kind: str = _HTML


class Pages:
    """Pages by table, None for that of the pipeline, each read again when it is requested and old."""

    def __init__(self, read: Callable[[TableName | None], Answer]) -> None:
        self._read = read
        self._changed = threading.Condition()
        self._read_pages: OrderedDict[TableName | None, tuple[float, Answer]] = OrderedDict()
        self._requested: OrderedDict[TableName | None, None] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def get(self, key: TableName | None) -> Answer | None:
        """Return the newest page, None if none could be read in time; wait little for a newer one."""
        with self._changed:
            found = self._read_pages.get(key)
            if found is not None and time.monotonic() - found[0] < AGE:
                return found[1]
            if len(self._requested) >= MAX_PAGES and key not in self._requested:
                return found and found[1]
            self._requested[key] = None
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(target=self._run, name="page reader", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._is_closing or self._read_pages.get(key) is not found,
                _PATIENCE if found is None else _UPDATE_PATIENCE,
            )
            newest = self._read_pages.get(key)
            return newest and newest[1]

    def close(self) -> None:
        """End the thread; a read that hangs is abandoned."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._requested)
                if self._is_closing:
                    return
                key, _ = self._requested.popitem(last=False)
            began = time.monotonic()
            answer = self._read(key)
            ended = time.monotonic()
            with self._changed:
                self._requested.pop(key, None)  # whoever requested it meanwhile gets this page
                self._read_pages[key] = (ended, answer)
                self._read_pages.move_to_end(key)
                while len(self._read_pages) > MAX_PAGES:
                    self._read_pages.popitem(last=False)
                self._changed.notify_all()
                pause = min(_DUTY * (ended - began), _LONGEST_PAUSE)
                self._changed.wait_for(lambda: self._is_closing, pause)


class Site:
    """The application; `read` returns the facts of the pipeline, or with the details of one table."""

    def __init__(
        self,
        pipeline: str,
        command: str,
        metrics: RunMetrics,
        history: RunHistory,
        read: Callable[[TableName | None], PageFacts],
        *,
        hosts: frozenset[str] | None = None,
    ) -> None:
        """Serve the pages; `hosts` are the names that a Host header may have, None for any."""
        self.started = datetime.now(timezone.utc)
        self._pipeline = pipeline
        self._command = command
        self._serve_metrics = serve_registry(metrics.registry)
        self.history = history
        self._read_facts = read
        self._hosts = hosts
        self._pages = Pages(self._read)
        self._tables: frozenset[TableName] = frozenset()

    def close(self) -> None:
        """End the thread that reads."""
        self._pages.close()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if not _is_allowed(environ.get("HTTP_HOST"), self._hosts):
            answer = Answer(
                "403 Forbidden", "Use the address of this machine.\n", "text/plain; charset=utf-8"
            )
        elif method not in ("GET", "HEAD"):
            text = "Only GET and HEAD are answered.\n"
            answer = Answer("405 Method Not Allowed", text, "text/plain; charset=utf-8")
        elif path == "/metrics":
            return self._serve_metrics(environ, start_response)
        else:
            answer = self._answer(path)
        body = answer.body.encode("utf-8")
        headers = [("Content-Type", answer.kind), ("Content-Length", str(len(body))), *_HEADERS]
        if answer.status.startswith("405"):
            headers.append(("Allow", "GET, HEAD"))
        start_response(answer.status, headers)
        return [] if method == "HEAD" else [body]

    def _answer(self, path: str) -> Answer:
        if path == "/":
            return self._page(None)
        if path == "/healthz":
            return Answer("200 OK", f"{json.dumps(self._health())}\n", "application/json")
        if path.startswith(_TABLES):
            text = path[len(_TABLES) :].encode("latin-1").decode("utf-8", "replace")
            if not self._tables:
                self._page(None)  # which has the names of the tables
            for name in self._tables:
                if text == str(name):
                    return self._page(name)
            return _notice("404 Not Found", f"Pipeline {self._pipeline} has no table {text}.")
        return _notice("404 Not Found", "There is no page at this address.")

    def _page(self, key: TableName | None) -> Answer:
        answer = self._pages.get(key)
        return answer or _notice(
            "503 Service Unavailable", "The status could not be read yet. Load this again."
        )

    def _health(self) -> dict[str, Any]:
        return {
            "pipeline": self._pipeline,
            "command": self._command,
            "version": __version__,
            "started": utc_text(self.started),
        }

    def _read(self, key: TableName | None) -> Answer:
        try:
            facts = self._read_facts(key)
            self._tables = frozenset(table.name for table in facts.status.tables)
            if key is None:
                return Answer("200 OK", render_page(facts, self._frame("")))
            if key not in facts.details:
                return _notice("404 Not Found", f"Pipeline {self._pipeline} has no table {key} any more.")
            return Answer("200 OK", render_table_page(facts, key, self._frame("../")))
        except Exception as error:  # a page that cannot be read is no failure of the run
            sentence = report_error(error)
            return _notice("503 Service Unavailable", f"The status cannot be read: {sentence}")

    def _frame(self, root: str) -> PageFrame:
        return PageFrame(
            link=lambda name: f"{root}tables/{quote(str(name), safe='', errors='replace')}",
            home=root or "./",
            head=script.HEAD,
            controls=script.CONTROLS,
            hour=plots(self.history.samples),
            scripts=script.ELEMENT,
            policy=script.SERVED_POLICY,
        )


def allowed_hosts(host: str) -> frozenset[str]:
    """Return what a Host header may name if the pages are served at a loopback address."""
    return frozenset({"localhost", host.lower()})


def _is_allowed(header: str | None, hosts: frozenset[str] | None) -> bool:
    """Return whether a Host header names this machine: any loopback address does, at any port."""
    if hosts is None or header is None:
        return True
    name = header.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name in hosts:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _notice(status: str, sentence: str) -> Answer:
    title = status.partition(" ")[2].capitalize()
    return Answer(status, render_notice(title, sentence, script.SERVED_POLICY))
