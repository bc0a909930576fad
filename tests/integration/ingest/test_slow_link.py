"""A message that takes longer to arrive than a server may be silent is captured."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.ingest import job
from pipeline.postgres.replication.walsender import start_walsender
from tests.support.bronze.rows import bronze_rows
from tests.support.proxy import Proxy
from tests.support.servers import Database


@pytest.mark.promise("cut links")
def test_a_row_that_takes_long_to_arrive(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    config = database.config(root=str(tmp_path / "lake"), create_publication="all")
    job.run_ingest(config)
    database.run("INSERT INTO t VALUES (1, repeat('0123456789', 1000000))")
    patient = functools.partial(start_walsender, idle_timeout=3.0)
    monkeypatch.setattr(job, "start_walsender", patient)
    with Proxy(database.server.port, rate=1 << 20) as proxy:  # so the row takes ten seconds
        slow = replace(config.source, conninfo=proxy.conninfo(config.source.conninfo))
        job.run_ingest(replace(config, source=slow))
    assert [len(row["new"][1]) for row in bronze_rows(config, "changes", "new")] == [10_000_000]
