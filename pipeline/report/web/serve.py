"""Serve the pages of a run: its history is sampled, its status is read when a page is requested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import LSN
from pipeline.report.endpoint import Endpoint, is_local
from pipeline.report.metrics import RunMetrics
from pipeline.report.web.facts import PageFacts
from pipeline.report.web.history import RunHistory, sample_of
from pipeline.report.web.site import Site, allowed_hosts
from pipeline.table_name import TableName

OPTION = "--http"


@contextmanager
def serve_pages(config: Config, command: str, metrics: RunMetrics, host: str, port: int) -> Iterator[Site]:
    """Serve the pages in a block; raise as `Endpoint` does."""

    def read(name: TableName | None) -> PageFacts:
        from pipeline.report.status import read_page_facts

        return read_page_facts(config, is_detailed=lambda each: each == name)

    hosts = allowed_hosts(host) if is_local(host, port, OPTION) else None
    read_bronze: Callable[[], LSN | None] = _bronze_reader(config) if command == "apply" else lambda: None
    with ExitStack() as stack:
        history = RunHistory(lambda now: sample_of(metrics.scrape(), read_bronze(), now))
        stack.callback(history.close)
        site = Site(config.pipeline, command, metrics, history, read, hosts=hosts)
        stack.callback(site.close)
        stack.callback(Endpoint(host, port, site, option=OPTION, name="pages").close)
        yield site


def _bronze_reader(config: Config) -> Callable[[], LSN | None]:
    """Return a function that reads up to which LSN bronze is complete, for a run that does not write it."""

    @cache
    def bronze() -> Bronze:
        lake = Lake(config.storage, application=f"pgdelta status {config.pipeline}")
        return Bronze(lake, config.pipeline)

    def read() -> LSN | None:
        point = bronze().captured_offset()
        return point.lsn if point else None

    return read
