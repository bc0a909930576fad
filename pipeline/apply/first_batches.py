"""The batches that run without a query of Spark, or while one starts.

A query takes seconds to begin. What waits is applied meanwhile by a thread, which ends once the query signals
that bronze has grown. Without a query it goes on as long as the run.
"""

from __future__ import annotations

import threading
import time

from pipeline.apply.applier import Applier

LOOK_SECONDS = 0.5
"""How often bronze is polled on an object store, and the longest pause between two batches."""
_LOCAL_LOOK_SECONDS = 0.05  # on this machine, where a poll costs two calls of the system


def pause_after(seconds: float, poll_seconds: float) -> float:
    """Return for how long to wait after a batch that took some seconds.

    Under load batches so become larger, and silver's logs do not grow for nothing.
    """
    return max(poll_seconds, min(seconds / 3, LOOK_SECONDS))


class FirstBatches:
    """Applies in a thread during a block: once or, if it `goes_on`, until `end`.

    An error is kept as `error` of the applier, as that of a batch of the query is.
    """

    def __init__(self, applier: Applier, *, goes_on: bool) -> None:
        self._applier = applier
        self._goes_on = goes_on
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="first-batches")

    def __enter__(self) -> FirstBatches:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def wait_for_work(self) -> bool:
        """Wait until a batch has something to do, and return True, or until there is nothing to do."""
        while self._thread.is_alive() and not self._applier.has_work.wait(0.01):
            pass
        return self._applier.has_work.is_set() and self._applier.error is None

    def end(self) -> None:
        """Wait for the batch that runs, and run no other."""
        self._is_ending.set()
        self._thread.join()

    def _run(self) -> None:
        bronze, applied = self._applier.bronze, None
        poll_seconds = _LOCAL_LOOK_SECONDS if bronze.lake.local_root is not None else LOOK_SECONDS
        try:
            while True:
                pause = poll_seconds
                # tables that wait for another reason are tried again when they are due
                if (end := bronze.captured_offset()) != applied:
                    began = time.monotonic()
                    self._applier.apply_pending(end)
                    applied = end
                    pause = pause_after(time.monotonic() - began, poll_seconds)
                if not self._goes_on or self._is_ending.wait(pause):
                    break
        except BaseException as error:
            self._applier.error = error
