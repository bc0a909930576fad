"""How many requests a batch makes of a store, and what one process knows of another's commits."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.config import Config
from pipeline.config.storage import Storage
from pipeline.delta import checkpoints
from pipeline.delta.retry import SameWriteError
from pipeline.delta.rows import _vector_masks
from pipeline.delta.store.hadoop import hadoop_settings
from pipeline.delta.store.looks import is_looked_at, look_again, one_look
from pipeline.delta.store.mirror import Mirror, mirror_at
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.table_log import TableLog, look_at
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.errors import LakeError
from pipeline.postgres.connection import ServerIdentity
from pipeline.postgres.replication.slot_status import SourceStatus
from pipeline.protocol.lsn import LSN
from pipeline.report.status import read_status
from tests.support.native_lakes import NativeLake, make_config
from tests.support.statuses import shop_source
from tests.support.stores.s3 import BUCKET, S3Server, s3_process

TABLES = 12
DDL = "id INT, name STRING"


@pytest.fixture
def storage(s3: S3Server, request: pytest.FixtureRequest) -> Storage:
    return Storage(f"s3://{BUCKET}/{request.node.name}", s3.options)


def mirror_of(storage: Storage) -> Mirror:
    found = mirror_at(storage.root)
    assert found is not None
    return found


def as_another_process(table: LakeTable) -> None:
    """Forget what this process knows of a table."""
    assert table.local_path is not None
    TableLog.forget(table.local_path)
    found = mirror_at(table.path)
    assert found is not None
    found.drop_folder(table.local_path)


def made(storage: Storage) -> LakeTable:
    table = Lake(storage).table("t")
    table.ensure(DDL)
    return table


@pytest.mark.quick
def test_a_batch_makes_few_requests_for_each_table(storage: Storage, tmp_path: Path) -> None:
    config = replace(make_config(storage.root, tmp_path), storage=storage)
    lake = NativeLake(tmp_path, TABLES, config=config)
    applier, store = Applier(None, config), mirror_of(storage).store
    applier.apply_pending()
    counts = []
    for batch in range(2):
        lake.insert(lake.names, 5000 + 1000 * batch)
        before = store.requests
        assert applier.apply_pending().exit_code(strict=True) == 0
        counts.append(store.requests - before)
    assert counts[-1] <= 4 * TABLES + 25, counts
    for name in lake.names:
        rows = lake.lake.table("silver", *name).rows(["_commit_lsn"])
        assert max(rows["_commit_lsn"].to_pylist()) == 6000


def test_a_batch_lists_a_log_once_and_knows_its_own_commits(storage: Storage) -> None:
    table, store = Lake(storage).table("t"), mirror_of(storage).store
    table.ensure(DDL)
    with one_look() as known:
        look_at([table.path])
        assert known == {table.local_path}
        before = store.requests
        for number in range(3):
            table.append_rows([{"id": number}], DDL)
            assert table.version() == number + 1
        assert store.requests - before == 9  # two objects and a read for each commit
        look_again()
        assert not is_looked_at(str(table.local_path))
        before = store.requests
        assert [table.version(), table.version()] == [3, 3]
        assert store.requests - before == 2


def test_a_commit_of_another_process_after_the_listing_is_found(storage: Storage) -> None:
    table = made(storage)
    txn = TxnId("p")
    with one_look():
        look_at([table.path])
        other = mirror_of(storage).store
        line = '{"txn":{"appId":"' + str(txn) + '","version":7}}\n'
        other.create("t/_delta_log/00000000000000000001.json", line.encode())
        with pytest.raises(SameWriteError):
            table.append_rows([{"id": 1}], DDL, TableCommit(txn, LSN(7)))
        assert table.version() == 1
        table.append_rows([{"id": 1}], DDL, TableCommit(txn, LSN(7)))  # recorded already
        assert (table.version(), table.rows().num_rows) == (1, 0)


@pytest.mark.promise("slot status")
def test_status_refuses_no_source_whose_slot_went_on_meanwhile(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ingest, another process, commits and acknowledges after status has read bronze."""
    config = replace(make_config(storage.root, tmp_path), storage=storage)
    lake = NativeLake(tmp_path, 1, config=config)
    newer = LSN(lake.offset + 1000)
    identity = ServerIdentity("7", 1, "d", 1, 180000, newer, "UTF8")
    slot = shop_source().slot
    assert slot is not None
    source = replace(shop_source(), slot=replace(slot, confirmed_flush_lsn=newer), identity=identity)
    store, version = mirror_of(storage).store, lake.bronze.changes.version() + 1
    commits = [f'{{"txn":{{"appId":"{lake.bronze.txn}","version":{int(newer)}}}}}\n']

    def read(_: Config) -> SourceStatus:
        for line in commits:
            store.create(f"bronze/changes/_delta_log/{version:020}.json", line.encode())
        return source

    monkeypatch.setattr("pipeline.postgres.replication.slot_status.read_source_status", read)
    assert read_status(config).refusal is None
    commits.clear()
    source = replace(source, slot=replace(slot, confirmed_flush_lsn=LSN(newer + 1)))
    assert "ahead of bronze" in (read_status(config).refusal or "")


def test_a_log_in_the_place_of_another_is_noticed(storage: Storage) -> None:
    table = made(storage)
    table.append_rows([{"id": 1}], DDL)
    first = table.snapshot()
    store = mirror_of(storage).store
    store.delete([each.name for each in store.list("t")])
    table.ensure("other STRING")  # as another process does, after the objects were removed
    table.append_rows([{"other": "x"}], "other STRING")
    assert table.snapshot().table_id != first.table_id
    assert table.rows().to_pylist() == [{"other": "x"}]


def test_a_new_process_lists_the_logs_of_many_tables_at_once() -> None:
    with s3_process(latency=0.02) as options:
        lake = Lake(Storage(f"s3://{BUCKET}/many", options))
        tables = [lake.table(f"t{number}") for number in range(12)]
        for table in tables:
            table.ensure(DDL)
            table.append_rows([{"id": 1}], DDL)
            as_another_process(table)
        with one_look() as known:
            look_at([table.path for table in tables])
            assert len(known) == 12
            assert {table.version() for table in tables} == {1}


def test_checkpoints_are_read_and_old_versions_too(storage: Storage) -> None:
    table = made(storage)
    for number in range(12):
        table.append_rows([{"id": number}], DDL)
    as_another_process(table)
    store = mirror_of(storage).store
    before = store.requests
    assert table.version() == 12
    assert store.requests - before <= 5  # a list, the checkpoint, and the commits since
    assert sorted(table.rows()["id"].to_pylist()) == list(range(12))
    assert table.snapshot(3).row_count == 3
    table.remove()
    assert not table.exists()
    assert list(store.list("t")) == []


def test_a_long_run_keeps_few_files_of_a_log(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.delta.table_log._MIRRORED_COMMITS", 4)
    monkeypatch.setattr(checkpoints, "_LEAST_SECONDS", 0.0)  # as if the commits took minutes
    table = made(storage)
    for number in range(25):
        table.append_rows([{"id": number}], DDL)
    assert table.version() == 25
    here = [each.name for each in (table.folder / "_delta_log").iterdir()]
    assert len([name for name in here if name.endswith(".json")]) <= 12  # those of the last checkpoint too
    assert [name for name in here if "checkpoint" in name] == ["00000000000000000020.checkpoint.parquet"]
    assert table.snapshot(3).row_count == 3
    assert table.rows().num_rows == 25


def test_a_mirror_keeps_no_more_files_than_it_may(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.delta.store.mirror._KEPT", 0.0)
    monkeypatch.setattr("pipeline.delta.store.mirror._MAX_FILES", 2)
    table = made(storage)
    for number in range(6):
        table.append_rows([{"id": number}], DDL)
    assert len(list(table.folder.glob("*.parquet"))) <= 3
    assert table.rows().num_rows == 6


@pytest.mark.quick
def test_a_missing_file_is_named(storage: Storage) -> None:
    table = made(storage)
    table.append_rows([{"id": 1}], DDL)
    as_another_process(table)
    store = mirror_of(storage).store
    store.delete([each.name for each in store.list("t") if each.name.endswith(".parquet")])
    with pytest.raises(LakeError, match=r"The file .*\.parquet is missing in the store"):
        table.rows()


def test_a_mirror_keeps_no_more_than_it_may(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(storage)
    for number in range(4):
        table.append_rows([{"id": number}], DDL)
    folder = table.folder
    assert len(list(folder.glob("*.parquet"))) == 4
    monkeypatch.setattr("pipeline.delta.store.mirror._KEPT", 0.0)
    monkeypatch.setattr(mirror_of(storage), "_max_bytes", 1)
    assert table.rows().num_rows == 4
    assert len(list(folder.glob("*.parquet"))) <= 1


def test_deltalake_reads_deletion_vectors_of_a_store() -> None:
    with s3_process() as options:
        table = Lake(Storage(f"s3://{BUCKET}/deltalake", options)).table("t")
        table.ensure(DDL)
        table.append_rows([{"id": 1, "name": "x"}], DDL)
        snapshot = table.snapshot()
        assert _vector_masks(snapshot.path, snapshot) == {}


def test_hadoop_gets_what_the_store_needs(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hadoop_settings("s3://b/lake", {**s3.options, "aws_session_token": "t"}) == {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint": s3.url,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": "test",
        "fs.s3a.secret.key": "test",
        "fs.s3a.session.token": "t",
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    }
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store")
    assert hadoop_settings("s3a://b", {})["fs.s3a.endpoint"] == "https://store"
    assert hadoop_settings("hdfs://b", {"dfs.replication": "2"}) == {"dfs.replication": "2"}
    assert hadoop_settings("gs://b", {"endpoint": "x"}) == {}
