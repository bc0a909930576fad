"""One thread that stages rows while the next messages arrive.

Decoding rows and writing them to Parquet works outside Python, so the thread that reads the stream goes on
meanwhile. At most one write is under way: memory has the rows of one batch more.
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

    def submit(self, write: Callable[[], None]) -> None:
        """Begin a write once the one before has ended; raise the error of that one."""
        self.flush()
        if self._pool is None:
            write()
        else:
            self._last = self._pool.submit(write)

    def flush(self) -> None:
        """Wait until everything is written; raise the error of the write that failed."""
        if self._last is not None:
            self._last.result()

    def settle(self) -> None:
        """Wait until no write is under way, whatever became of the last one."""
        if self._last is not None:
            wait([self._last])

    def close(self) -> None:
        """Wait like `settle`, and end the thread."""
        if self._pool is not None:
            self._pool.shutdown()
