"""Commits by the log stores for S3 and HDFS under a lease: refused once another process has taken it over."""

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.delta.spark.settings import LOG_STORES
from pipeline.delta.store.lease import Lease
from pipeline.delta.store.open_store import open_store
from pipeline.delta.store.store import Store
from tests.support.paths import ROOT
from tests.support.processes import ended
from tests.support.races.racer import java_command
from tests.support.stores.hdfs import Hdfs
from tests.support.stores.s3 import BUCKET, s3_server

NAME = "_pgdelta/locks/apply"


@dataclass(frozen=True, slots=True)
class Place:
    """A root, as Hadoop's client names it too, with its options, and what the class path has for it."""

    root: str
    hadoop: str
    options: Mapping[str, str]
    class_path: str

    def store(self) -> Store:
        return open_store(self.root, self.options, patience=20)

    def lease(self) -> Lease:
        return Lease(self.store(), NAME, "apply", 120)


@pytest.fixture(params=["s3", "hdfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "hdfs":
        hdfs: Hdfs = request.getfixturevalue("hdfs")
        root = f"{hdfs.url}/fenced/lake"
        for table in (
            "lake/silver/orders",
            "lake/_pgdelta/manifests",
            "lake/bronze/changes",
            "lake-2/silver/orders",
        ):
            hdfs.make_folder(f"fenced/{table}/_delta_log")  # as Delta does
        yield Place(root, root, {}, "")
        return
    jars: Path = request.getfixturevalue("s3_jars")
    with s3_server() as server:
        server.write_settings(tmp_path)
        yield Place(f"s3://{BUCKET}/lake", f"s3a://{BUCKET}/lake", server.options, f"{tmp_path}:{jars}/*:")


@pytest.mark.sample(1)
@pytest.mark.promise("one job at a time")
def test_a_commit_after_another_process_has_taken_over_is_refused(place: Place, racer: Path) -> None:
    lease = place.lease()
    lease.acquire()
    command = java_command(f"{place.class_path}{racer}", "FencedWrites")
    scheme = place.hadoop.partition(":")[0]
    command += [LOG_STORES[scheme], place.hadoop, lease.place, lease.token]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with ended(process):

        def write(table: str, version: int) -> str:
            return send(f"{place.hadoop}/{table}/_delta_log/{version:020}.json")

        def send(line: str) -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            return process.stdout.readline().rstrip()

        assert write("silver/orders", 0) == "written"
        lease.release()
        following = place.lease()
        following.acquire()
        refused = f"Another job has taken over {place.hadoop}/_pgdelta/locks/apply, so this one may not"
        assert write("silver/orders", 1).startswith(refused)
        assert write("_pgdelta/manifests", 0).startswith(refused)
        assert write("bronze/changes", 0) == "written"
        assert send(f"{place.hadoop}-2/silver/orders/_delta_log/{0:020}.json") == "written"
        following.release()
        place.store().entry(NAME).remove()
        assert "was removed, so this job may not commit" in write("silver/orders", 1)
        assert send("release") == "released"
        assert write("silver/orders", 1) == "written"
