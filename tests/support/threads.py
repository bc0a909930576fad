"""Functions that run in threads while a test does something else."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
