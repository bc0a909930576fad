"""The format version of a lake: recorded once, and a newer one is refused before anything is written."""

from pathlib import Path
from typing import cast

import pytest

import pipeline
from pipeline.cli.main import cli, main
from pipeline.delta import lake_format
from pipeline.delta.lake_format import FORMAT_VERSION, LakeFormat, format_table, record_format
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError
from tests.support.native_lakes import NativeLake, make_config

NEWER = LakeFormat(FORMAT_VERSION + 1, "9.8.7")
# commands that open no lake, or read what they can of any
OTHERS = {"setup", "init", "schema", "completion", "demo", "tail", "check", "capsule"}
ARGUMENTS = {
    "pause": ["--table", "public.t0000"],
    "resume": ["--table", "public.t0000"],
    "query": ["SELECT 1"],
    "history": ["public.t0000", "id=1"],
    "resync": ["--table", "public.t0000"],
    "rebuild": ["--table", "public.t0000"],
    "adopt": ["--table", "public.t0000", "/nowhere"],
    "forget": ["--table", "public.t0000", "--key", "1"],
}


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> NativeLake:
    """Give a lake of a later release, whose source cannot be reached."""
    found = NativeLake(tmp_path_factory.mktemp("newer") / "lake", 1)
    make_newer(found.lake)
    return found


def make_newer(lake: Lake) -> None:
    format_table(lake).replace([NEWER])
    lake_format._known.discard(lake.root)  # as in a new process


def files_of(lake: NativeLake) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in lake.root.rglob("*")}


@pytest.mark.promise("newer lakes are refused")
@pytest.mark.parametrize("name", sorted(cli.commands.keys() - OTHERS))
def test_a_command_refuses_a_newer_lake_and_writes_nothing(
    newer: NativeLake, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    before = files_of(newer)
    config = ["--config", str(newer.root.parent / "lake.yaml")]
    assert main([name, *ARGUMENTS.get(name, []), *config]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"pgdelta: The lake at file:{newer.root} has format version {NEWER.version}, of pgdelta 9.8.7, and"
        f" this is pgdelta {pipeline.__version__}, which reads versions up to {FORMAT_VERSION}. Nothing was"
        " changed. Install pgdelta 9.8.7 or later.\n"
    )
    assert files_of(newer) == before


def test_check_names_the_format_of_a_newer_lake(
    newer: NativeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--config", str(newer.root.parent / "lake.yaml")]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "has format version 2, of pgdelta 9.8.7, and this is" in said


def test_a_capsule_has_the_format_of_a_newer_lake(newer: NativeLake, tmp_path: Path) -> None:
    from pipeline.report.capsule import write_capsule

    found = write_capsule(newer.config, str(tmp_path / "capsule.tar.gz"), is_offline=True)
    assert "_pgdelta/format.json" in found.parts
    assert not [failure for failure in found.failures if "_pgdelta/" in failure]


def test_readers_in_python_refuse_a_newer_lake(newer: NativeLake) -> None:
    with pytest.raises(ConfigError, match="format version 2"):
        pipeline.live(config=str(newer.root.parent / "lake.yaml"))


def test_the_version_is_recorded_once(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    record_format(lake)
    [row] = format_table(lake).read()
    assert (row.version, row.release) == (FORMAT_VERSION, pipeline.__version__)
    record_format(lake)
    assert format_table(lake).read() == (row,)
    make_newer(lake)
    record_format(Lake(str(tmp_path), verifies=False))
    assert format_table(lake).read() == (NEWER,)


def test_a_release_that_knows_one_version_less_refuses_this_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_format(Lake(str(tmp_path)))
    monkeypatch.setattr(lake_format, "FORMAT_VERSION", FORMAT_VERSION - 1)
    monkeypatch.setattr(lake_format, "_known", set())
    with pytest.raises(ConfigError, match=f"of pgdelta {pipeline.__version__}, .* versions up to 0"):
        Lake(str(tmp_path))


def test_a_lake_without_a_version_has_the_first(tmp_path: Path) -> None:
    made = NativeLake(tmp_path / "lake", 1)
    assert not format_table(made.lake).table.exists()
    lake_format._known.discard(made.lake.root)
    assert Lake(make_config(made.root).storage).root == made.lake.root


def test_where_only_spark_reads_a_session_is_verified_first(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []
    monkeypatch.setattr(
        "pipeline.delta.lake_format.require_known_format", lambda lake: verified.append(lake.root)
    )
    monkeypatch.setattr(SparkProvider, "_check", lambda *_: None)
    monkeypatch.setattr(SparkProvider, "_set_hadoop", lambda *_: None)
    monkeypatch.setattr("pipeline.delta.spark.provider.require_client", lambda *_: None)
    lake = Lake("ofs://host/lake", cast("None", object()))
    assert verified == []
    for _ in range(2):
        _ = lake.table("bronze", "changes").spark
    assert verified == ["ofs://host/lake"]
