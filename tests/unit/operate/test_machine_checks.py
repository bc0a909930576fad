"""What the jobs would lack on this machine is said before they run."""

import os
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pipeline.config.config import Config
from pipeline.config.jobs import Catalog, CatalogService
from pipeline.operate.machine_checks import check_catalogs, check_machine
from pipeline.postgres.checks.table_checks import Check
from tests.support.unity_server import CATALOG, TOKEN, unity_server


def checked(root: str) -> dict[str, Check]:
    config = cast(Config, SimpleNamespace(storage=SimpleNamespace(root=root)))
    return {check.name: check for check in check_machine(config)}


def test_the_lake_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    new = checked("./lake")["lake"]
    assert new.ok
    assert f"A new lake will be created in {tmp_path / 'lake'}." == new.sentence
    assert "relative" in new.fix
    assert not checked(str(tmp_path / "lake"))["lake"].fix
    (tmp_path / "lake" / "bronze" / "changes").mkdir(parents=True)
    assert checked(f"file:{tmp_path}/lake")["lake"] == Check(
        "lake", True, f"The lake is {tmp_path / 'lake'}."
    )


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    below_file = checked(f"{tmp_path}/file/lake")["lake"]
    assert below_file.sentence.endswith(f"{tmp_path / 'file'} is a file.")
    assert below_file.fix == "Set storage.root to another folder."
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not checked(f"{tmp_path}/lake")["lake"].ok


def test_a_file_system_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    lake = checked(f"{tmp_path}/lake")["lake"]
    assert not lake.ok
    assert lake.sentence == f"The file system of {tmp_path} has only 5.0 MiB left."


def test_a_folder_without_hard_links_is_refused_and_no_probe_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checked(str(tmp_path))["lake"].ok
    assert list(tmp_path.iterdir()) == []

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    lake = checked(f"{tmp_path}/lake")["lake"]
    assert not lake.ok
    assert f"The file system of {tmp_path} has no hard links" in lake.sentence
    assert list(tmp_path.iterdir()) == []


def test_a_lake_that_cannot_be_checked_is_left_to_the_jobs() -> None:
    sentence = checked("ofs://host/lake")["lake"].sentence
    assert sentence == "The lake is at ofs://host/lake. The jobs verify that it can be written."


def test_a_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked("/")["Java"].ok
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    java = checked("/")["Java"]
    assert (java.ok, java.sentence) == (
        False,
        "JAVA_HOME has no Java. Install Java 17 (a headless JRE is enough).",
    )


def test_catalogs_without_spark_are_tested_where_tables_are_registered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        hive = CatalogService("hive", uri=f"thrift://127.0.0.1:{closed.getsockname()[1]}")
    with unity_server() as server:
        found = CatalogService("unity", uri=server.uri, catalog=CATALOG, token=TOKEN)
        missing = CatalogService("unity", uri=server.uri, catalog="other", token=TOKEN)
        services = (CatalogService("spark"), hive, found, missing)
        checks = [*check_catalogs(Config("shop", catalog=Catalog("{schema}", targets=services)))]
        assert [*check_catalogs(Config("shop", catalog=Catalog(targets=services)))] == []
    assert [(check.name, check.ok) for check in checks] == [
        *(("catalog hive", False), ("catalog unity", True), ("catalog unity", False)),
    ]
    assert checks[0].sentence == "The Hive metastore failed: ConnectionRefusedError."
    assert checks[0].fix.startswith("Check that it runs at the uri")
    assert checks[1].sentence == "Tables will be registered in Unity Catalog."
    assert checks[2].sentence == "Unity Catalog has no catalog other."
