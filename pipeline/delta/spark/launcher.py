"""The JVM that `spark-submit` starts a job under: its signals reach the job, and its death ends it.

`spark-submit jobs/…` is a JVM with the job as its child. A signal sent to the command hits that JVM, which
would end at once and take the commit under way with it; and a killed JVM would leave the job behind, holding
its replication slot. Where no JVM started this process there is nothing to do.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any


def is_launched_by_spark() -> bool:
    """Tell whether `spark-submit` started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def forward_signals(stop: Callable[[], None]) -> None:
    """Have SIGTERM and SIGINT call `stop` here instead of ending the JVM that started this process."""
    if not is_launched_by_spark():
        return
    from pyspark import SparkContext, java_gateway

    SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    # the one that foreachBatch uses too; Py4J has no types
    java: Any = java_gateway
    java.ensure_callback_server_started(gateway)
    for name in ("TERM", "INT"):
        gateway.jvm.sun.misc.Signal.handle(gateway.jvm.sun.misc.Signal(name), _Handler(stop))


def end_with_launcher(interval: float = 1.0) -> None:
    """End this process within `interval` seconds of the death of the JVM that started it."""
    if is_launched_by_spark():
        launcher = os.getppid()
        threading.Thread(target=_watch, args=(launcher, interval), name="launcher-watch", daemon=True).start()


def _watch(launcher: int, interval: float) -> None:
    while os.getppid() == launcher:
        time.sleep(interval)
    # the hard way: whatever this process still held, the slot above all, is free at once
    os._exit(1)


class _Handler:
    """Implement the JVM's signal handler in Python; Py4J looks for the names below."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def handle(self, signal: object) -> None:
        """Take one signal from the JVM."""
        del signal
        self._stop()

    class Java:
        """Name the interface for Py4J."""

        implements = ("sun.misc.SignalHandler",)
