"""Credentials of a profile of ~/.aws, by the client of the lake and by Hadoop's, against a server."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta.spark.jars import check_java, spark_folder
from pipeline.delta.spark.settings import LOG_STORES
from pipeline.delta.store.aws_profile import HADOOPS_PROVIDER
from pipeline.delta.store.hadoop import hadoop_settings
from pipeline.delta.store.object_store import ObjectStore
from pipeline.errors import ConfigError
from tests.support.paths import ROOT as CHECKOUT
from tests.support.stores.s3 import BUCKET, S3Server, s3_server

ROOT = f"s3://{BUCKET}/lake"
PROVIDER = "fs.s3a.aws.credentials.provider"
CREDENTIALS = """\
[keys]
aws_access_key_id = KEYOFTHEPROFILE
aws_secret_access_key = secret

[empty]
region = us-east-1
"""
PROGRAM = """\
[profile program]
credential_process = {program}
"""
PRINTED = (
    '{"Version": 1, "AccessKeyId": "KEYOFTHEPROGRAM", "SecretAccessKey": "s", "SessionToken": "t",'
    ' "Expiration": "2099-01-01T00:00:00Z"}'
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    (tmp_path / "credentials").write_text(CREDENTIALS)
    script = tmp_path / "program.py"
    script.write_text(f"print({PRINTED!r})")
    (tmp_path / "config").write_text(PROGRAM.format(program=f"{sys.executable} {script}"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with s3_server() as found:
        yield found


def options_of(server: S3Server) -> Mapping[str, str]:
    return {name: value for name, value in server.options.items() if "key" not in name}


def watch_keys(server: S3Server) -> set[str]:
    """Return a set that gets the key of each request from now on."""
    seen: set[str] = set()

    def see(request: dict[str, Any]) -> None:
        found = re.search(r"Credential=(\w+)/", request.get("HTTP_AUTHORIZATION", ""))
        seen.add(found[1] if found else "")

    server.fault = see
    return seen


@pytest.mark.parametrize(("profile", "key"), [("keys", "KEYOFTHEPROFILE"), ("program", "KEYOFTHEPROGRAM")])
def test_requests_have_the_credentials_of_the_profile(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, profile: str, key: str
) -> None:
    monkeypatch.setenv("AWS_PROFILE", profile)
    seen = watch_keys(server)
    assert ObjectStore(ROOT, options_of(server)).create("a", b"1") is not None
    assert seen == {key}
    assert hadoop_settings(ROOT, options_of(server))[PROVIDER] == HADOOPS_PROVIDER


def test_keys_come_before_a_profile(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "keys")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEYOFTHEENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    seen = watch_keys(server)
    ObjectStore(ROOT, options_of(server)).write("a", b"1")
    assert seen == {"KEYOFTHEENVIRONMENT"}
    assert PROVIDER not in hadoop_settings(ROOT, options_of(server))
    seen.clear()
    ObjectStore(ROOT, server.options).write("a", b"1")
    assert seen == {server.options["aws_access_key_id"]}


@pytest.mark.parametrize("profile", ["empty", "another"])
def test_a_profile_without_credentials_is_named(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    monkeypatch.setenv("AWS_PROFILE", profile)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConfigError, match=f"AWS_PROFILE names the profile {profile}, which gives no cred"):
        ObjectStore(ROOT, options_of(server))


def test_reading_a_profile_needs_boto3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "keys")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"reading profiles needs boto3\. Run pip install boto3"):
        ObjectStore(ROOT, options_of(server))


@pytest.mark.spark
@pytest.mark.slow
def test_sparks_client_reads_the_profile(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, racer: Path, s3_jars: Path
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "keys")
    server.write_settings(tmp_path, HADOOPS_PROVIDER)
    seen = watch_keys(server)
    class_path = f"{tmp_path}:{racer}:{s3_jars}/*:{spark_folder() / 'jars'}/*"
    command = [str(check_java()), "-Xmx256m", "-cp", class_path, "FencedWrites", LOG_STORES["s3a"]]
    command += ["s3a://another/lake", "s3a://another/lease", "token"]
    entry = f"s3a://{BUCKET}/lake/t/_delta_log/{0:020}.json\n"
    done = subprocess.run(
        command, cwd=CHECKOUT, input=entry, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == "written\n"
    assert seen == {"KEYOFTHEPROFILE"}
