"""Conditional requests of Google's store, which compares generations: a lease is held and renewed there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipeline.delta.store.lease import Lease
from pipeline.delta.store.object_store import ObjectStore


class Handler(BaseHTTPRequestHandler):
    """Reads and writes objects as the XML API of Google's store does."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, tuple[bytes, int]]
    lock: threading.Lock

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        condition = self.headers.get("x-goog-if-generation-match")
        with self.lock:
            _, generation = self.objects.get(self.path, (b"", 0))
            if condition is not None and int(condition) != generation:
                self._answer(412)
                return
            self.objects[self.path] = content, generation + 7
            self._answer(200, generation=generation + 7)

    def do_GET(self) -> None:
        content, generation = self.objects.get(self.path, (b"", 0))
        self._answer(200 if generation else 404, content, generation)

    def do_DELETE(self) -> None:
        with self.lock:
            found = self.objects.pop(self.path, None)
        self._answer(404 if found is None else 204)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _answer(self, status: int, content: bytes = b"", generation: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", "Thu, 26 Nov 2026 05:00:00 GMT")
        self.send_header("ETag", '"the same for all"')
        self.send_header("x-goog-generation", str(generation))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def google_store(patience: float) -> Iterator[ObjectStore]:
    """Give a store of a server with some of the protocol of Google's."""
    handler = type("Objects", (Handler,), {"objects": {}, "lock": threading.Lock()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    account = {
        "gcs_base_url": f"http://127.0.0.1:{server.server_port}",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    try:
        options = {"google_service_account_key": json.dumps(account), "allow_http": "true"}
        yield ObjectStore("gs://bucket/lake", options, patience=patience)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_object_is_created_once_and_replaced_by_its_generation() -> None:
    with google_store(20) as store:
        first = store.create("lease", b"1")
        assert first
        assert store.create("lease", b"2") is None
        second = store.replace("lease", b"2", first)
        assert second not in (None, first)
        assert store.replace("lease", b"3", first) is None
        assert store.read("lease") == (b"2", second)


def test_objects_are_deleted_although_others_are_gone() -> None:
    with google_store(20) as store:
        names = [f"data/{number}" for number in range(20)]
        for name in names[::2]:
            store.create(name, b"1")
        store.delete([*names, "nothing"])
        for name in names:
            with pytest.raises(FileNotFoundError):
                store.read(name)


def test_a_lease_is_renewed_and_acquired_again() -> None:
    with google_store(2) as store:
        lease = Lease(store, "lock", "apply", 12)
        lease.acquire()
        lease._deadline = 0.0
        lease.check()  # renews it
        lease.release()
        again = Lease(store, "lock", "apply", 12)
        again.acquire()
        assert again.number == lease.number + 1
        again.release()
