"""The jobs on a real Spark cluster with a shared folder, with nothing but what `make dist` builds.

Driver and workers share one folder, the lake, by a group; everything else of the driver's lies in a folder
that only it may enter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.delta.spark.dist import build_dist
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.clusters import Cluster, Driver, running_cluster
from tests.support.servers import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
storage:
  root: {root}
silver:
  writer: spark
"""
# what dist's README.txt asks for where driver and workers are different users of a shared folder
OPTIONS = ("--conf", "spark.hadoop.fs.permissions.umask-mode=002")

pytestmark = pytest.mark.spark


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Give a running cluster of one account, with a lake's folder for its group."""
    # not the user that the embedded server takes
    with running_cluster("nobody", "nobody") as started:
        lake = started.folder / "lake"
        lake.mkdir()
        account = started.accounts[0]
        if account is not None:
            os.chown(lake, -1, account.pw_gid)
        lake.chmod(0o2775)
        yield started


@pytest.mark.promise("jobs need nothing else")
@pytest.mark.slow
def test_dist_runs_on_a_cluster_of_another_user(
    cluster: Cluster, tmp_path: Path, database: Database, spark: SparkSession
) -> None:
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, item text, price numeric(10,2), tags text[])",
        f"CREATE PUBLICATION {database.name} FOR TABLE orders",
        f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')",
        "INSERT INTO orders SELECT g, 'no ' || g, g / 7.0, ARRAY['a', NULL] FROM generate_series(1, 5000) g",
        "UPDATE orders SET id = id + 100000 WHERE id <= 100",
        "DELETE FROM orders WHERE id BETWEEN 201 AND 207",
    )
    driver = Driver(cluster, tmp_path / "private", OPTIONS)
    driver.private.mkdir(mode=0o700)
    driver.config.write_text(
        CONFIG.format(name=database.name, conninfo=database.conninfo, root=cluster.folder / "lake")
    )
    driver.config.chmod(0o600)
    build_dist(driver.private / "dist", with_packages=False)
    assert not list((cluster.spark_home / "jars").glob("delta*")), "Delta comes by --jars"
    for secret in (driver.config, driver.private / "dist" / "pipeline.zip"):
        assert not cluster.can_read(secret)

    done = driver.submit("ingest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\ningest {database.name}: 5,107 changes of 3 transactions" in done.stdout
    assert "copied public.orders: 4,993 rows" in done.stdout
    done = driver.submit("apply")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"apply {database.name}: 4,993 changes to 1 table")

    applications = cluster.applications()
    assert len(applications[0]) == 1, "ingest needs no executors"
    assert applications[0] == applications[1], "both workers took part"
    written = list((cluster.folder / "lake" / "silver" / "public" / "orders").glob("*.parquet"))
    assert written
    account = cluster.accounts[0]
    if account is not None:
        assert {path.stat().st_uid for path in written} == {account.pw_uid}
    with database.connect() as connection:
        root = str(cluster.folder / "lake")
        oracle.assert_silver_equals_source(connection, spark, root, [TableName("public", "orders")])
