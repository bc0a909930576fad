"""Handle signals to, and the death of, the JVM that starts a job under `spark-submit`.

`spark-submit jobs/…` is a JVM with the job as its child. A signal to the command goes to that JVM, which
would end at once and interrupt the current commit; and if the JVM is killed, the job would keep running and
hold its replication slot. Without such a JVM nothing is done.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any


def is_launched_by_spark() -> bool:
    """Return whether `spark-submit` started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def forward_signals(stop: Callable[[], None]) -> None:
    """Call `stop` on SIGTERM and SIGINT, instead of ending the JVM that started this process."""
    if not is_launched_by_spark():
        return
    from pyspark import SparkContext, java_gateway

    SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    # foreachBatch uses the same server; Py4J has no types
    java: Any = java_gateway
    java.ensure_callback_server_started(gateway)
    for name in ("TERM", "INT"):
        gateway.jvm.sun.misc.Signal.handle(gateway.jvm.sun.misc.Signal(name), _Handler(stop))


def end_with_launcher() -> None:
    """End this process within a second after the JVM that started it has ended."""
    if is_launched_by_spark():
        launcher = os.getppid()
        threading.Thread(target=_watch, args=(launcher,), name="launcher-watch", daemon=True).start()


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(1.0)
    # at once, so that the replication slot is free
    os._exit(1)


class _Handler:
    """The JVM's signal handler in Python; Py4J requires the names below."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def handle(self, signal: object) -> None:
        """Handle a signal to the JVM."""
        self._stop()

    class Java:
        """The Java interface, for Py4J."""

        implements = ("sun.misc.SignalHandler",)
