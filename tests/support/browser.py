"""A headless Chromium, driven by its DevTools protocol over pipes; no driver and no package is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_SECONDS = 120.0


def find_browser() -> str | None:
    """Return the path of Chromium, None if this machine has none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of a headless Chromium, until the end of a `with` block."""

    def __init__(self, folder: Path, *, scripts: bool = True) -> None:
        """Start it with a profile in a folder that does not exist; without `scripts` pages run none."""
        binary = find_browser()
        assert binary is not None, f"none of {', '.join(NAMES)} is installed"
        here, there = os.pipe(), os.pipe()

        def connect() -> None:
            # Chromium reads commands from descriptor 3 and writes to 4.
            read, write = os.dup(here[0]), os.dup(there[1])
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            [
                binary,
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
                *("--disable-dev-shm-usage", "--disable-background-networking", "--mute-audio"),
                *("--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"),
            ],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(here[0])
        os.close(there[1])
        self._commands = os.fdopen(here[1], "wb", buffering=0)
        self._answers = os.fdopen(there[0], "rb")
        self._number = 0
        self._buffer = b""
        self.errors: list[str] = []
        self._session: str | None = None
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._send("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._send(f"{domain}.enable")
        if not scripts:
            self._send("Emulation.setScriptExecutionDisabled", {"value": True})

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._commands.close()
        self._answers.close()

    def open(self, address: str, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> None:
        """Load a page in a window of this size, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._send("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._send("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._send("Page.navigate", {"url": address})
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, also if the page itself may run no script."""
        found = self._send("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 180.0) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < deadline, f"waited too long for {expression}"
            time.sleep(0.1)

    def picture(self, *, kind: str = "png", is_whole: bool = False, quality: int | None = None) -> bytes:
        """Return a picture of the window, or of the whole page."""
        options = {"format": kind, "captureBeyondViewport": is_whole}
        if quality is not None:
            options["quality"] = quality
        if is_whole:
            size = self._send("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return base64.b64decode(self._send("Page.captureScreenshot", options)["data"])

    def accessible_names(self) -> list[tuple[str, str]]:
        """Return the role and the name of each node that a screen reader gets."""
        nodes = self._send("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored")
        ]

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send any other command and return its result."""
        return self._send(method, parameters)

    def _send(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters or {}}
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        return self._receive(lambda answer: answer.get("id") == self._number, method)

    def _receive(self, is_it: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while True:
            assert time.monotonic() < deadline, f"no answer to {what}"
            while b"\0" not in self._buffer:
                part = os.read(self._answers.fileno(), 1 << 16)
                assert part, f"Chromium ended while it was to answer {what}"
                self._buffer += part
            text, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(str(answer["params"]["exceptionDetails"]))
            if answer.get("method") == "Log.entryAdded":
                self.errors.append(str(answer["params"]["entry"].get("text")))
            if is_it(answer):
                assert "error" not in answer, (what, answer["error"])
                found: dict[str, Any] = answer["result"]
                return found
