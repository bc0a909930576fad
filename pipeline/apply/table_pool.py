"""Write tables in parallel, and let a batch end while a slow table is still being written.

A batch hands in one job for each table. Small tables come first, and among tables of one size those whose
oldest change has waited longest. Unless a batch must be whole, it ends `PATIENCE_SECONDS` after the last
small table. A large table that is being written then stays busy: it keeps its thread, and a later batch takes
its result. A large table that found no thread is left to the next batch. One thread is never given to a large
table, so small ones never wait for it. If there is only one, every batch is whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from pipeline.config.scalars import MAX_AT_ONCE
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

PATIENCE_SECONDS = 1.0
"""How long a batch waits for slow tables: as long as a micro-batch waits for the next one at least."""
WHOLE_PATIENCE_SECONDS = 10.0
"""After this time a batch that must be whole shows what it has written, and goes on waiting."""
_POLL_SECONDS = 0.1

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Job(Generic[Result]):
    """The work on one table; `oldest_lsn` is that of the oldest change that waits for it."""

    name: TableName
    oldest_lsn: LSN
    is_large: bool
    run: Callable[[], Result]


def in_order(jobs: Iterable[Job[Result]], slow: Collection[TableName] = ()) -> list[Job[Result]]:
    """Return jobs in the order in which they start; a table that was slow the last time counts as large.

    LSNs are in the order of commits, so the lowest one has waited longest.
    """
    return sorted(jobs, key=lambda job: (job.is_large or job.name in slow, job.oldest_lsn, job.name))


class TablePool(Generic[Result]):
    """Runs the jobs of one batch after the other, each table's in a thread.

    `threads` is how many tables are written at once; it may change between two batches.
    """

    def __init__(
        self,
        threads: int = 1,
        patience: float = PATIENCE_SECONDS,
        whole_patience: float = WHOLE_PATIENCE_SECONDS,
    ) -> None:
        self.threads = threads
        self._patience = patience
        self._whole_patience = whole_patience
        self._executor = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="apply")  # starts what it needs
        self._busy: dict[TableName, Future[Result]] = {}
        self._slow: set[TableName] = set()  # that took longer than the patience, the last time

    @property
    def busy(self) -> Set[TableName]:
        """The tables that were being written when a batch ended, and whose result was not taken yet."""
        return set(self._busy)

    @property
    def ended(self) -> list[Result]:
        """The results of busy tables that are not being written any more; any thread may read them."""
        return [future.result() for future in list(self._busy.values()) if future.done()]

    def take_ended(self) -> dict[TableName, Result]:
        """Return the results of busy tables that are not being written any more."""
        ended = [name for name, future in self._busy.items() if future.done()]
        return {name: self._busy.pop(name).result() for name in ended}

    def wait(self) -> None:
        """Wait until no table is being written."""
        wait(self._busy.values())

    def close(self) -> None:
        """Wait until no table is being written, and end the threads."""
        self._executor.shutdown()

    def run(
        self,
        jobs: Iterable[Job[Result]],
        *,
        is_whole: bool,
        may_stay_busy: Callable[[TableName], bool] = lambda name: True,
        show: Callable[[Mapping[TableName, Result]], None] = lambda done: None,
    ) -> dict[TableName, Result]:
        """Run jobs and return the results of those that ended; `is_whole` waits for all of them.

        A table for which `may_stay_busy` is false is waited for. While a whole batch waits for slow tables,
        `show` is called with the results so far, at most once in `whole_patience` seconds.
        """
        is_whole = is_whole or self.threads == 1
        queue = in_order(jobs, self._slow)
        running: dict[Future[Result], Job[Result]] = {}
        done: dict[TableName, Result] = {}
        shown = 0
        try:
            last = time.monotonic()  # when a small table was last started or ended, or results were shown
            while True:
                for job in self._startable(queue, running.values(), is_whole=is_whole):
                    queue.remove(job)
                    running[self._executor.submit(self._run, job)] = job
                    last = last if self._is_large(job) else time.monotonic()
                if not running and (not queue or (not is_whole and all(map(self._is_large, queue)))):
                    break
                patience = self._patience_left(queue, last, is_whole=is_whole)
                if patience is not None and patience <= 0:
                    is_free = self._count(running.values()) < self.threads
                    if is_whole:
                        patience = None
                        if len(done) > shown:
                            show(done)
                            shown, last = len(done), time.monotonic()
                    elif is_free and all(may_stay_busy(job.name) for job in running.values()):
                        break
                    else:
                        patience = _POLL_SECONDS
                writing = [future for future in self._busy.values() if not future.done()]
                ended, _ = wait([*running, *writing], patience, FIRST_COMPLETED)
                for future in ended & running.keys():
                    job = running[future]
                    done[job.name] = future.result()
                    del running[future]
                    last = last if self._is_large(job) else time.monotonic()
        except BaseException:  # nothing may be written after the caller has failed
            wait([*running, *self._busy.values()])
            raise
        self._busy |= {job.name: future for future, job in running.items()}
        return done

    def _patience_left(self, queue: Sequence[Job[Result]], last: float, *, is_whole: bool) -> float | None:
        """Return the seconds that the batch still waits for slow tables, None while it has small ones."""
        if not all(map(self._is_large, queue)):
            return None
        return last + (self._whole_patience if is_whole else self._patience) - time.monotonic()

    def _startable(
        self, queue: Sequence[Job[Result]], running: Collection[Job[Result]], *, is_whole: bool
    ) -> list[Job[Result]]:
        """Return the jobs that start now; a large one leaves a thread to small ones."""
        count = self._count(running)
        found: list[Job[Result]] = []
        for job in queue:
            if count + len(found) >= self.threads:
                break
            is_bounded = self._is_large(job) and not is_whole
            if count + len(found) < self.threads - is_bounded:
                found.append(job)
        return found

    def _count(self, running: Collection[Job[Result]]) -> int:
        """Return how many threads have work, with the running jobs of this batch."""
        return len(running) + sum(not future.done() for future in self._busy.values())

    def _is_large(self, job: Job[Result]) -> bool:
        return job.is_large or job.name in self._slow

    def _run(self, job: Job[Result]) -> Result:
        began = time.monotonic()
        try:
            return job.run()
        finally:
            if time.monotonic() - began > self._patience:
                self._slow.add(job.name)
            else:
                self._slow.discard(job.name)
