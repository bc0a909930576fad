"""Lakes and their Spark session: which storage needs none, and that one starts once, where it is needed."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pipeline.config.storage import Storage
from pipeline.delta.features import Feature
from pipeline.delta.filesystem import default_scheme, is_within
from pipeline.delta.table import Lake
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.errors import ConfigError, LakeError
from pipeline.protocol.lsn import LSN

SITE = """<configuration><property><name>fs.defaultFS</name><value>{}</value></property></configuration>"""


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the sessions that are started from now on."""
    started: list[str] = []
    session = ModuleType("pipeline.delta.spark.session")

    def start_session(name: str) -> object:
        started.append(name)
        return object()

    cast(Any, session).start_session = start_session
    monkeypatch.setitem(sys.modules, session.__name__, session)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    return started


@pytest.mark.parametrize("names", ["", "/lake"])
def test_a_root_that_is_a_file_is_a_mistake(tmp_path: Path, names: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=rf"^{file} is a file\. Set storage\.root to a folder\.$"):
        Lake(f"{file}{names}")
    assert Lake(f"{tmp_path}/folder").working_root == f"{tmp_path}/folder"


@pytest.mark.spark
def test_a_root_of_an_unknown_scheme_is_a_mistake(spark: SparkSession) -> None:
    for scheme in ("foo", "wasbs"):
        with pytest.raises(ConfigError, match=f"^Spark has no client for {scheme}:, the scheme of storage"):
            Lake(f"{scheme}://bucket/lake", spark).table("bronze", "changes").exists()


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_local_lake_needs_no_session(tmp_path: Path, starts: list[str], prefix: str) -> None:
    lake = Lake.for_writing(f"{prefix}{tmp_path}/a b#%20", application="a job")
    assert lake.local_root == f"{tmp_path}/a b#%20"
    table = lake.table("silver", "a/b")
    table.ensure("id INT")
    table.append_rows([{"id": 1}], "id INT", TableCommit(TxnId("p"), LSN(1)))
    table.overwrite_rows([{"id": 2}], "id INT")
    assert table.rows().to_pylist() == [{"id": 2}]
    assert table.missing_features([Feature.COLUMN_MAPPING]) == [Feature.COLUMN_MAPPING]
    table.force_log()
    table.move(lake.path("archive", "t"))
    lake.table("archive", "t").remove()
    assert starts == []


def test_a_session_starts_once_for_all_threads(tmp_path: Path, starts: list[str]) -> None:
    lake = Lake(str(tmp_path), application="a job")
    tables = [lake.table(str(number)) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        sessions = set(pool.map(lambda table: table.spark, tables))
    assert (len(sessions), starts) == (1, ["a job"])


def test_other_storage_goes_through_the_session(starts: list[str]) -> None:
    lake = Lake("ofs://name/lake")
    assert lake.local_root is None
    with pytest.raises(Exception, match=r"_jvm|attribute|gateway|object"):
        lake.table("t").version()
    assert starts == ["pgdelta"]


def test_a_session_that_has_started_gets_the_address_of_the_store_at_once() -> None:
    settings: dict[str, str] = {}
    hadoop = SimpleNamespace(getPropertySources=lambda name: [], set=settings.__setitem__)
    context = SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: hadoop))
    options = {"endpoint": "http://127.0.0.1:9", "access_key_id": "a", "secret_access_key": "b"}
    # what uses the session itself never calls the lake for it
    session = cast(Any, SimpleNamespace(sparkContext=context))
    Lake(Storage("s3://bucket/lake", options), session, verifies=False)  # nothing answers there
    assert settings["fs.s3.impl"] == "org.apache.hadoop.fs.s3a.S3AFileSystem"
    assert settings["fs.s3a.endpoint"] == "http://127.0.0.1:9"
    assert settings["fs.s3a.secret.key"] == "b"


@pytest.mark.parametrize(("url", "is_local"), [("hdfs://name:8020", False), ("file:///", True)])
def test_a_path_without_a_scheme_is_on_hadoops_default_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, is_local: bool
) -> None:
    (tmp_path / "core-site.xml").write_text(SITE.format(url))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert (Lake("lake").local_root is not None) == is_local


@pytest.mark.parametrize("text", ["", "<no xml", "<configuration/>"])
def test_without_a_default_it_is_this_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert default_scheme(None) == "file"
    (tmp_path / "core-site.xml").write_text(text)
    assert default_scheme(None) == "file"


def test_a_folder_is_moved_to_a_free_path_only(tmp_path: Path, starts: list[str]) -> None:
    lake = Lake(str(tmp_path))
    for name in ("a", "b"):
        lake.table(name).ensure("id INT")
    with pytest.raises(LakeError, match="cannot be moved"):
        lake.table("a").move(lake.path("b"))
    lake.table("a").move(lake.path("deep", "c"))
    assert [lake.table(*names).version() for names in (("a",), ("b",), ("deep", "c"))] == [-1, 0, 0]


def test_a_table_in_the_place_of_another_is_read(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table("t")
    table.ensure("id INT")
    table.append_rows([{"id": 1}], "id INT")
    first = table.snapshot()
    table.remove()
    assert (table.version(), table.exists(), table.offsets()) == (-1, False, {})
    table.ensure("id BIGINT")
    assert (table.version(), table.snapshot().table_id != first.table_id) == (0, True)
    assert table.is_empty()


def test_rows_of_a_table_that_lacks_their_columns_are_refused(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table("t")
    table.ensure("id INT")
    with pytest.raises(LakeError, match="has no column tag"):
        table.append_rows([{"id": 1, "tag": "a"}], "id INT, tag STRING")


def test_a_path_is_in_a_folder_whatever_names_it(tmp_path: Path) -> None:
    lake, link = tmp_path / "lake", tmp_path / "link"
    (lake / "silver").mkdir(parents=True)
    link.symlink_to(lake / "silver")
    for path in (
        f"{lake}",
        f"file:{lake}/silver",
        f"file://{lake}/silver",
        f"{lake}/a/../silver",
        f"{link}/t",
    ):
        assert is_within(path, f"file:{lake}"), path
    for path in (f"file:{tmp_path}", f"file:{lake}2", "s3://bucket/lake"):
        assert not is_within(path, f"file:{lake}"), path
    assert is_within("s3://bucket/lake/silver", "s3://bucket/lake")
    assert not is_within("s3://bucket/lake2", "s3://bucket/lake")
