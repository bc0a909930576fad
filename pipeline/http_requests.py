"""HTTP requests by urllib: with timeouts, without redirects, and failures that name no host and no secret."""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.error
import urllib.request
from typing import Any

from pipeline import __version__


class RequestFailed(Exception):
    """A request that got no answer; its text is why."""


class _AnyAnswer(urllib.request.HTTPErrorProcessor):
    """Returns each answer as it is. urllib would send a GET without the body where a redirect points to."""

    def http_response(self, request: urllib.request.Request, response: Any) -> Any:
        """Return the answer."""
        return response

    https_response = http_response


def send_request(
    method: str,
    address: str,
    body: bytes | None = None,
    *,
    token: str | None = None,
    seconds: float,
    longest: int = 0,
) -> tuple[int, bytes]:
    """Return the status of the answer, and its first bytes; raise RequestFailed if there is none.

    The body is JSON, and `seconds` is the limit of each step: connect, send, each read.
    """
    headers = {"User-Agent": f"pgdelta/{__version__}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        request = urllib.request.Request(address, body, headers, method=method)
        with urllib.request.build_opener(_AnyAnswer).open(request, timeout=seconds) as answer:
            return answer.status, answer.read(longest)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RequestFailed(_reason(error, seconds)) from None


def _reason(error: BaseException, seconds: float) -> str:
    """Return why a request failed, without names of hosts."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {seconds:.0f} s"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed ({cause.reason or type(cause).__name__})"
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno)
    if isinstance(cause, OSError) and not isinstance(cause, ConnectionError):
        return "its host is unknown, or cannot be reached"
    return "the connection broke off, or the answer is not HTTP"
