"""An ingest that runs in a thread, and what tests wait for."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from pipeline.config.config import Config
from pipeline.ingest.job import run_ingest
from pipeline.operate.run import run_both
from pipeline.progress import IngestSummary
from pipeline.table_name import TableName
from tests.support.pipelines import Pipeline
from tests.support.threads import in_threads

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text)"
FILL = "INSERT INTO items SELECT g, 'item ' || g FROM generate_series({}, {}) g"
CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
  copy: never
storage:
  root: {root}
"""


class Running:
    """A continuous ingest on a thread of its own."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.stop = threading.Event()
        self.summary: IngestSummary | None = None
        self.captured = 0
        self.copied: set[TableName] = set()
        self.error: BaseException | None = None
        self._pipeline = pipeline
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.summary = self._pipeline.ingest(
                trigger="continuous", stop=self.stop, progress=self._remember
            )
        except BaseException as error:
            self.error = error

    def _remember(self, summary: IngestSummary) -> None:
        self.captured = summary.changes
        self.copied = {name for name, copy in summary.copies.items() if copy.is_complete}

    def join(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive()


@contextmanager
def continuous(pipeline: Pipeline) -> Iterator[Running]:
    running = Running(pipeline)
    try:
        yield running
    finally:
        running.stop.set()
        running.join()


def applying(pipeline: Pipeline) -> AbstractContextManager[None]:
    """Apply continuously in a thread during a block; raise what goes wrong."""
    return in_threads(lambda stop: pipeline.apply(trigger="continuous", stop=stop))


def ingesting(config: Config) -> AbstractContextManager[None]:
    """Ingest continuously in a thread during a block; raise what goes wrong."""
    return in_threads(lambda stop: run_ingest(config, trigger="continuous", stop=stop))


def running_both(config: Config, **options: Any) -> AbstractContextManager[None]:
    """Run both jobs continuously in a thread during a block; raise what goes wrong."""
    return in_threads(lambda stop: run_both(config, trigger="continuous", stop=stop, **options))
