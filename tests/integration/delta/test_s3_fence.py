"""Commits by the log store for S3 under a lease: refused once another process has taken it over."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipeline.delta.spark.jars import check_java, spark_folder
from pipeline.delta.spark.settings import LOG_STORES
from pipeline.delta.store.lease import Lease
from pipeline.delta.store.object_store import ObjectStore
from tests.support.paths import ROOT
from tests.support.processes import ended
from tests.support.stores.s3 import BUCKET, S3Server, s3_server

pytestmark = pytest.mark.spark
LAKE = f"{BUCKET}/lake"
NAME = "_pgdelta/locks/apply"


@pytest.fixture
def class_path(racer: Path, s3_jars: Path, tmp_path: Path) -> str:
    return f"{tmp_path}:{racer}:{s3_jars}/*:{spark_folder() / 'jars'}/*"


def lease_of(server: S3Server) -> Lease:
    return Lease(ObjectStore(f"s3://{LAKE}", server.options, patience=20), NAME, "apply", 120)


def test_a_commit_after_another_process_has_taken_over_is_refused(class_path: str, tmp_path: Path) -> None:
    with s3_server() as server:
        server.write_settings(tmp_path)
        lease = lease_of(server)
        lease.acquire()
        command = [str(check_java()), "-XX:+UseSerialGC", "-Xmx256m", "-cp", class_path, "FencedWrites"]
        command += [LOG_STORES["s3a"], f"s3a://{LAKE}", lease.place, lease.token]
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
                return send(f"s3a://{LAKE}/{table}/_delta_log/{version:020}.json")

            def send(line: str) -> str:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(f"{line}\n")
                process.stdin.flush()
                return process.stdout.readline().rstrip()

            assert write("silver/orders", 0) == "written"
            lease.release()
            following = lease_of(server)
            following.acquire()
            refused = "Another job has taken over s3a://lake/lake/_pgdelta/locks/apply, so this one may not"
            assert write("silver/orders", 1).startswith(refused)
            assert write("_pgdelta/manifests", 0).startswith(refused)
            assert write("bronze/changes", 0) == "written"
            assert send(f"s3a://{LAKE}-2/silver/orders/_delta_log/{0:020}.json") == "written"
            following.release()
            ObjectStore(f"s3://{LAKE}", server.options).delete([NAME])
            assert "was removed, so this job may not commit" in write("silver/orders", 1)
            assert send("release") == "released"
            assert write("silver/orders", 1) == "written"
