"""Both jobs and the commands on a real Spark cluster that shares only the store with its driver: S3 or HDFS.

Each worker is another account with a folder of its own, which no other one may enter. None can read the
driver's files, and none has credentials: executors have those of the store from the driver, and nothing of
the source's.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.config.load import load_config
from pipeline.delta.spark.dist import build_dist
from pipeline.delta.spark.releases import installed_release
from tests.support.clusters import Cluster, Driver, running_cluster
from tests.support.foreign_memory import Searches
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.servers import Database
from tests.support.stores.hdfs import Hdfs
from tests.support.stores.lakes import COLUMNS, StorePipeline
from tests.support.stores.s3 import BUCKET, s3_process
from tests.support.stores.seaweed import seaweed_server, weed

pytestmark = pytest.mark.postgres  # its sessions are those of other processes

PASSWORD, OTHER_PASSWORD, STORE_SECRET = "c4n4ry-of-a-source", "c4n4ry-of-a-file", "c4n4ry-of-a-store"
CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo} password='${{SHOP_PASSWORD}}'"
storage:
  root: {root}/{name}
silver:
  writer: spark
"""
OPTIONS = """\
  options:
    endpoint: ${LAKE_ENDPOINT}
    region: us-east-1
    access_key_id: ${LAKE_KEY}
    secret_access_key: ${LAKE_SECRET}
"""
OPTIONS_OF_RUNS = (
    # the server of moto answers it wrongly
    *("--conf", "spark.hadoop.fs.s3a.connection.expect.continue=false"),
    # queries run once: compiling them would take most of the time
    *("--conf", "spark.sql.codegen.wholeStage=false", "--conf", "spark.sql.codegen.factoryMode=NO_CODEGEN"),
    *("--conf", "spark.sql.shuffle.partitions=2"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A root, the text of its options in the configuration, and the environment of the jobs."""

    root: str
    options: str
    environ: Mapping[str, str]


@pytest.fixture(params=["moto", "moto by the environment", "seaweedfs", "hdfs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "hdfs":
        hdfs: Hdfs = request.getfixturevalue("hdfs")
        yield Place(hdfs.url, "", {})
        return
    with ExitStack() as servers:
        if request.param == "seaweedfs":
            if weed() is None:
                pytest.skip("make stores installs SeaweedFS")
            folder = tmp_path / "seaweed"
            folder.mkdir(mode=0o700)
            options = servers.enter_context(seaweed_server(folder))
            secret = options["aws_secret_access_key"]
        else:
            options = servers.enter_context(s3_process())
            secret = STORE_SECRET  # the server does not verify it
        values = (options["aws_endpoint"], options["aws_access_key_id"], secret)
        own = request.param == "moto by the environment"
        names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        names = names if own else ("LAKE_ENDPOINT", "LAKE_KEY", "LAKE_SECRET")
        environ = dict(zip(names, values, strict=True))
        environ |= {"AWS_REGION": "us-east-1"} if own else {}
        yield Place(f"s3://{BUCKET}", "" if own else OPTIONS, environ)


@pytest.fixture(params=[("nobody", "daemon")], ids=["two workers"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with running_cluster(*request.param) as started:
        yield started


@pytest.fixture
def driver(
    cluster: Cluster,
    store: Place,
    tmp_path: Path,
    database: Database,
    s3_jars: Path,
) -> Driver:
    if installed_release().replaces_hadoop:
        pytest.skip("the workers' Spark needs another Hadoop")
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "tmp").mkdir()
    environ = {
        **store.environ,
        "PGPASSWORD": PASSWORD,
        "SHOP_PASSWORD": OTHER_PASSWORD,
        "TMPDIR": str(private / "tmp"),
    }
    made = Driver(cluster, private, OPTIONS_OF_RUNS, environ)
    text = CONFIG.format(name=database.name, conninfo=database.conninfo, root=store.root)
    made.config.write_text(text.replace("silver:", store.options + "silver:"))
    build_dist(private / "dist", with_packages=False, s3_jars=s3_jars)
    return made


def run(driver: Driver, *steps: str) -> None:
    """Run jobs on the cluster, and commands with their arguments."""
    for step in steps:
        name, *arguments = step.split()
        runs_as = driver.submit if name in ("ingest", "apply") else driver.command
        done = runs_as(name, *arguments)
        assert done.returncode == 0, step + "\n" + done.stdout + done.stderr


@pytest.mark.promise("clusters")
@pytest.mark.parametrize(("store", "cluster"), [("moto", ["nobody"])], indirect=True)
def test_executors_have_the_store_and_nothing_of_the_source(
    cluster: Cluster, driver: Driver, database: Database
) -> None:
    users = {account.pw_uid for account in cluster.accounts if account is not None}
    secrets = {"PGPASSWORD": PASSWORD, "conninfo": OTHER_PASSWORD, "store": STORE_SECRET}
    database.run(*ORDERS, FILL[0])
    with database.connect() as source, Searches(users, secrets) as searches:
        lake = StorePipeline(load_config(driver.config, {**os.environ, **driver.environ}), source)
        lake.ingest()  # which needs no executors
        run(driver, "apply")
        lake.assert_equal("orders", *COLUMNS["orders"])
        assert searches.search_folder(cluster.work_folder(0)) > 0
    if users:
        assert searches.found == {"store"}


@pytest.mark.promise("clusters")
@pytest.mark.slow
def test_only_the_store_is_shared(
    cluster: Cluster,
    driver: Driver,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for path in (driver.config, driver.private / "dist" / "pipeline.zip"):
        assert not cluster.can_read(path)
    for name, value in driver.environ.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    users = {account.pw_uid for account in cluster.accounts if account is not None}
    secrets = {"PGPASSWORD": PASSWORD, "conninfo": OTHER_PASSWORD, "store": STORE_SECRET}
    database.run(*ORDERS, *LINES, *LOG, *FILL)
    with database.connect() as source, Searches(users, secrets) as searches:
        lake = StorePipeline(load_config(driver.config, {**os.environ, **driver.environ}), source)
        run(driver, "ingest", "apply")
        lake.assert_orders_equal()
        database.run(
            *CHANGE,
            "INSERT INTO orders SELECT g, 'item', repeat('n', 200), 1 FROM generate_series(1000, 6000) g",
            "ALTER TABLE orders ADD COLUMN more int",
            "UPDATE orders SET more = id WHERE id % 2 = 0",
        )
        run(driver, "ingest", "apply")
        lake.assert_orders_equal()
        lake.assert_equal("orders", "id", "more")
        database.run("TRUNCATE lines", "UPDATE orders SET item = 'again' WHERE id % 3 = 0")
        run(driver, "resync --table public.orders", "ingest", "apply")
        lake.assert_orders_equal()
        run(driver, "reconcile --run", "maintain --spark", "rebuild --table public.orders", "audit")
        lake.assert_orders_equal()
        for number in range(len(cluster.accounts)):
            assert searches.search_folder(cluster.work_folder(number)) > 0
    applications = cluster.applications()
    assert applications[0] == applications[1], "both workers took part"
    assert len(applications[0]) >= 5
    if users:
        # the servers of the cluster, and some executors
        assert len(searches.searched) >= 5
        # proof that the search finds what is there
        found = {"store"} if STORE_SECRET in driver.environ.values() else set()
        assert searches.found == found
    left = [path for path in (driver.private / "tmp").rglob("*") if path.is_file()]
    assert not left, "nothing is left on the driver"
