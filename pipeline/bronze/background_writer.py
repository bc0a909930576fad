"""A thread that stages rows while the next messages arrive.

Decoding rows and writing them to Parquet works outside Python, so the thread that reads the stream goes on
meanwhile. At most one write of a writer is under way: memory has the rows of one batch more.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait


class BackgroundWriter:
    """Runs writes one after the other, in the order of `submit`; none follows one that failed."""

    def __init__(self, *, has_thread: bool = True) -> None:
        """Run writes in a thread; without one, `submit` runs them."""
        # starts its thread when needed
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stage") if has_thread else None
        self._last: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a write is under way."""
        return self._last is not None and not self._last.done()

    def submit(self, write: Callable[[], None]) -> None:
        """Begin a write once the one before has ended; raise the error of that one."""
        self.flush()
        if self._pool is None:
            write()
        else:
            self._last = self._pool.submit(write)

    def submit_after(self, other: "BackgroundWriter", write: Callable[[], None]) -> None:
        """Begin a write once the one before and those submitted to another writer so far have ended."""
        before = other._last

        def write_after() -> None:
            if before is not None:
                before.result()
            write()

        self.submit(write_after)

    def flush(self) -> None:
        """Wait until everything is written; raise the error of the write that failed."""
        if self._last is not None:
            self._last.result()

    def settle(self, timeout: float | None = None) -> None:
        """Wait until no write is under way, whatever became of the last one, or for so many seconds."""
        if self._last is not None:
            wait([self._last], timeout)

    def close(self) -> None:
        """Wait like `settle`, and end the thread."""
        if self._pool is not None:
            self._pool.shutdown()
