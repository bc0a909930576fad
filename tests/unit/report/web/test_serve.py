"""The pages of a run over a real lake: what `--http` starts and ends."""

import threading
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest

from pipeline.cli.options import Address
from pipeline.errors import EndpointError
from pipeline.postgres.embedded import find_free_port
from pipeline.progress import ApplySummary
from pipeline.report.metrics import RunMetrics
from pipeline.report.observers import Observers, WatchOptions
from pipeline.report.web import history, serve
from tests.support.native_lakes import NativeLake
from tests.support.threads import wait_until
from tests.support.web_pages import parse_page


def test_apply_serves_the_tables_of_its_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "INTERVAL", 0.05)
    lake, port = NativeLake(tmp_path / "lake", 3), find_free_port()
    far = replace(lake.config.source, conninfo="host=127.0.0.1 port=1 dbname=shop password=geheim")
    config = replace(lake.config, source=far)
    options = WatchOptions("continuous", http=Address("127.0.0.1", port))
    before = {thread.name for thread in threading.enumerate()}
    with Observers(config, options, "apply") as observers:
        observers.on_apply(ApplySummary("p", lake.offset))

        def get(path: str) -> str:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                found: str = answer.read().decode()
                return found

        page = parse_page(get("/"))
        assert [name.text for name in page.by_id("tables").every("bdi")] == [
            "public.t0000",
            "public.t0001",
            "public.t0002",
        ]
        assert "Cannot connect" in page.by_id("slot").text
        assert "geheim" not in page.text
        assert "pgdelta_applied_lsn" in get("/metrics")
        table = parse_page(get("/tables/public.t0001"))
        assert next(table.every("h1")).text == "Table public.t0001"
        assert [each.attributes["id"] for each in table.every("section")] == ["facts", "columns", "schema"]
        assert "a value" not in table.text + page.text
        assert f'"{options.trigger}"' not in get("/healthz")
    assert {thread.name for thread in threading.enumerate()} <= before | {"source status"}


def test_the_lag_of_apply_alone_is_behind_bronze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "INTERVAL", 0.05)
    lake, metrics = NativeLake(tmp_path / "lake", 1), RunMetrics("p")
    metrics.on_apply(ApplySummary("p", lake.offset))
    with serve.serve_pages(lake.config, "apply", metrics, "127.0.0.1", find_free_port()) as site:
        wait_until(lambda: len(site.history.samples) > 1)
        end = lake.bronze.captured_offset()
    assert end is not None
    assert site.history.samples[-1].silver_lag == end.lsn - lake.offset


def test_an_address_that_is_used_starts_nothing(tmp_path: Path) -> None:
    config, port = NativeLake(tmp_path / "lake", 1).config, find_free_port()
    before = threading.active_count()
    options = WatchOptions(metrics=Address("127.0.0.1", port), http=Address("127.0.0.1", port))
    with pytest.raises(EndpointError, match=f"--http: Port {port}"), Observers(config, options, "apply"):
        pass
    assert threading.active_count() == before
