"""A server with what a lake needs of the XML API of Google's store: no server that can be installed has it.

Objects are in memory. Requests are not authenticated.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import format_datetime
from hashlib import md5
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.http_doubles import listening

BUCKET = "bucket"
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Object:
    content: bytes
    generation: int
    modified: datetime


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, _Object]
    uploads: dict[str, dict[int, bytes]]
    lock: threading.Lock

    def do_PUT(self) -> None:
        name, query = self._place()
        content = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if "uploadId" in query:
            self.uploads[query["uploadId"]][int(query["partNumber"])] = content
            self._answer(200, found=_Object(content, 1, datetime.now(timezone.utc)))
            return
        source = self.headers.get("x-goog-copy-source")
        if source is not None:
            found = self.objects.get(unquote(source).lstrip("/").partition("/")[2])
            if found is None:
                self._answer(404)
                return
            content = found.content
        self._store(name, content, self.headers.get("x-goog-if-generation-match"))

    def do_POST(self) -> None:
        name, query = self._place()
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        if "uploads" in query:
            number = str(len(self.uploads))
            self.uploads[number] = {}
            upload = f"<UploadId>{number}</UploadId>"
            text = f"<InitiateMultipartUploadResult>{upload}</InitiateMultipartUploadResult>"
            self._answer(200, text.encode())
            return
        parts = self.uploads.pop(query["uploadId"])
        self._store(name, b"".join(parts[number] for number in sorted(parts)), None, is_upload=True)

    def do_GET(self) -> None:
        name, query = self._place()
        if not name:
            self._list(query)
            return
        found = self.objects.get(name)
        self._answer(404 if found is None else 200, b"" if found is None else found.content, found)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        with self.lock:
            found = self.objects.pop(self._place()[0], None)
        self._answer(404 if found is None else 204)

    def _place(self) -> tuple[str, dict[str, str]]:
        """Return the name of the object, empty for the bucket, and the query."""
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        return unquote(url.path).lstrip("/").partition("/")[2], query

    def _store(self, name: str, content: bytes, condition: str | None, *, is_upload: bool = False) -> None:
        with self.lock:
            before = self.objects.get(name)
            generation = before.generation if before else 0
            if condition is not None and int(condition) != generation:
                self._answer(412)
                return
            now = datetime.now(timezone.utc)
            found = self.objects[name] = _Object(content, generation + 7, now)
        text = f"<CompleteMultipartUploadResult><ETag>{_etag(found)}</ETag></CompleteMultipartUploadResult>"
        self._answer(200, text.encode() if is_upload else b"", found)

    def _list(self, query: Mapping[str, str]) -> None:
        prefix = query.get("prefix", "")
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        with self.lock:
            names = sorted(name for name in self.objects if name.startswith(prefix) and name > after)
            page = [(name, self.objects[name]) for name in names[:_PAGE]]
        text = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(found.content)}</Size>"
            f"<LastModified>{found.modified.isoformat()}</LastModified><ETag>{_etag(found)}</ETag></Contents>"
            for name, found in page
        )
        if names[_PAGE:]:
            text += f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>"
        self._answer(200, f"<ListBucketResult>{text}</ListBucketResult>".encode())

    def _answer(self, status: int, content: bytes = b"", found: _Object | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if found is not None:
            self.send_header("Last-Modified", format_datetime(found.modified, usegmt=True))
            self.send_header("ETag", _etag(found))
            self.send_header("x-goog-generation", str(found.generation))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _etag(found: _Object) -> str:
    return f'"{md5(found.content).hexdigest()}"'


@contextmanager
def google_server() -> Iterator[dict[str, str]]:
    """Give the options of a storage on a server."""
    shared = {"objects": {}, "uploads": {}, "lock": threading.Lock()}
    with listening(type("Handler", (_Handler,), shared)) as port:
        account = {
            "gcs_base_url": f"http://127.0.0.1:{port}",
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        yield {"google_service_account_key": json.dumps(account), "allow_http": "true"}
