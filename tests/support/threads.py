"""Functions that run in threads while a test does something else, and what tests wait for."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def wait_until(is_true: Callable[[], object], seconds: float = 300, what: str = "") -> None:
    """Wait until a condition holds; fail when it does not within so many seconds, with `what`.

    What reads tables to find out leaves the processor to those whom it waits for most of the time.
    """
    deadline = (asked_at := time.monotonic()) + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"waited too long: {what}"
        time.sleep(min(1.0, max(0.02, 3 * (time.monotonic() - asked_at))))
        asked_at = time.monotonic()


@contextmanager
def in_threads(*jobs: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run functions in threads until the end of the block, which sets their event; raise what goes wrong."""
    stop, errors = threading.Event(), list[BaseException]()

    def run(job: Callable[[threading.Event], object]) -> None:
        try:
            job(stop)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads)
