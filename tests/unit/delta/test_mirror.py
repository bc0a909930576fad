"""A lake on an object store, worked on by its copy on this machine; the store is in memory."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import MemoryStore

from pipeline.delta import native_write
from pipeline.delta.data_files import DataFile
from pipeline.delta.native_commit import Operation, removing_uncommitted
from pipeline.delta.retry import ConflictError
from pipeline.delta.schema import TableSchema
from pipeline.delta.store import mirror, object_store
from pipeline.delta.store.object_store import ObjectStore
from pipeline.delta.store.store import StoreError, is_store, parts_of
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.vacuum import find_unneeded

OPERATION = Operation("WRITE")


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lake:
    store = MemoryStore()
    monkeypatch.setattr(object_store, "_open", lambda *arguments: store)
    monkeypatch.setattr(object_store, "_PAUSES", (0.0, 0.0))
    monkeypatch.setenv(mirror.CACHE_VARIABLE, str(tmp_path / "cache"))
    return Lake(f"s3://bucket/{uuid4().hex}")


def table_of(lake: Lake, name: str, *ids: int) -> LakeTable:
    table = lake.table("silver", "public", name)
    table.ensure("id BIGINT")
    native_write.append(table.folder, table.snapshot(), [{"id": each} for each in ids], None)
    return table


def ids(table: LakeTable) -> list[int]:
    return sorted(row["id"] for row in table.rows().to_pylist())


def stored(table: LakeTable) -> list[str]:
    """Return the data files that the store has."""
    found = mirror.mirror_at(table.path)
    assert found is not None
    return [name for name, _ in found.names(table.local_path or "") if name.endswith(".parquet")]


def test_what_others_have_in_the_folder_for_mirrors_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "scratch"
    (folder / "photos").mkdir(parents=True)
    (folder / "photos" / "one").write_text("1")
    (folder / "thesis").write_text("2")
    own = folder / f"pgdelta-{os.getuid()}"
    (own / "notes").mkdir(parents=True)
    dead = own / uuid4().hex
    dead.mkdir()
    monkeypatch.setenv(mirror.CACHE_VARIABLE, str(folder))
    made = mirror._make_folder()
    assert made.parent == own.resolve()
    assert not dead.exists()
    kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*")} - {f"{own.name}/{made.name}"}
    assert kept == {"photos", "photos/one", "thesis", own.name, f"{own.name}/notes"}


@pytest.mark.parametrize("name", ["orders#old", "orders?old", "orders %23", "orders#"])
def test_a_name_with_signs_of_urls_is_a_table_of_its_own(lake: Lake, name: str) -> None:
    orders, other = table_of(lake, "orders", 1), table_of(lake, name, 2, 3)
    assert (ids(orders), ids(other)) == ([1], [2, 3])
    other.remove()
    assert (ids(orders), other.exists()) == ([1], False)


def test_roots_that_differ_by_signs_of_urls_are_two() -> None:
    assert mirror._normal("s3a://b/la#1/") == "s3://b/la#1" != mirror._normal("s3://b/la#2")


def test_a_root_of_hdfs_may_have_one_slash() -> None:
    assert parts_of("hdfs:/lake") == parts_of("hdfs:///lake") == ("hdfs", "", "/lake")
    assert [is_store(url) for url in ("hdfs:/lake", "file:/lake", "/lake", "C:/lake")] == [True] + [False] * 3


def add_and_fail(table: LakeTable, error: BaseException) -> str:
    """Upload a file whose commit ends with an error; return its name."""
    before = table.snapshot()
    files: list[DataFile] = []
    with suppress(type(error)), removing_uncommitted(table.folder, before.version, files):
        files.append(native_write.rows_file(table.folder, before, [{"id": 2}]))
        found = mirror.mirror_of(table.folder)
        assert found is not None
        found.upload(str(table.folder / files[0].name))
        raise error
    return files[0].name


@pytest.mark.promise("committed files exist")
def test_files_stay_if_the_store_may_yet_make_the_commit(lake: Lake) -> None:
    table = table_of(lake, "t", 1)
    for error in (StoreError("no answer"), KeyboardInterrupt()):
        name = add_and_fail(table, error)
        assert name in stored(table)
        assert not (table.folder / name).exists()  # it is not counted here


def test_files_of_a_commit_that_another_one_excluded_are_removed(lake: Lake) -> None:
    table = table_of(lake, "t", 1)
    assert add_and_fail(table, ConflictError("another")) not in stored(table)
    assert len(stored(table)) == 1


@pytest.mark.promise("committed files exist")
def test_a_refused_commit_that_is_not_there_is_no_conflict(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(lake, "t", 1)
    before = table.snapshot()
    put = obstore.put

    def refuse(*arguments: Any, **options: Any) -> Any:
        if options.get("mode") == "create":
            raise AlreadyExistsError("409 Conflict")
        return put(*arguments, **options)

    monkeypatch.setattr(obstore, "put", refuse)
    file = native_write.rows_file(table.folder, before, [{"id": 2}])
    with pytest.raises(StoreError, match=r"does not have it\. Run again\."):
        table.commit(before, [file.action()], {}, OPERATION)
    assert file.name in stored(table)


@pytest.mark.promise("committed files exist")
def test_a_commit_does_not_name_a_file_that_was_removed_before_its_upload(lake: Lake) -> None:
    table = table_of(lake, "t", 1)
    before = table.snapshot()
    file = native_write.rows_file(table.folder, before, [{"id": 2}])
    (table.folder / file.name).unlink()
    with pytest.raises(StoreError, match="removed before it was uploaded"):
        table.commit(before, [file.action()], {}, OPERATION)
    assert table.version() == before.version


def test_a_file_that_only_the_store_has_can_be_added_again(lake: Lake) -> None:
    table = table_of(lake, "t", 1)
    before = table.snapshot()
    (add,) = before.files.values()
    found = mirror.mirror_of(table.folder)
    assert found is not None
    found.drop(str(table.folder / add["path"]))
    table.commit(before, [{"add": {**add, "dataChange": False}}], {}, OPERATION)
    assert ids(table) == [1]


def test_errors_name_the_clock_before_the_rights() -> None:
    store = ObjectStore.__new__(ObjectStore)
    store.url = "s3://bucket/lake"
    from obstore.exceptions import PermissionDeniedError

    error = PermissionDeniedError("403: <Code>RequestTimeTooSkewed</Code>")
    assert "clock is wrong" in str(store._translate(error, "read", "x"))


def test_partitions_are_vacuumed_whatever_their_columns_name(lake: Lake) -> None:
    table = lake.table("silver", "public", "t")
    schema, folder = TableSchema.of_ddl("id BIGINT, _day STRING"), table.folder
    native_write.create(folder, schema, {}, "{}", partition_by=["_day"])
    names = [f"_day={day}/part-1.parquet" for day in ("2026", ".x", "_")]
    found = mirror.mirror_at(table.path)
    assert found is not None
    for name in (*names, "_other/part-1.parquet", "_day=_/.part-2.parquet"):
        found.store.create(found.name(folder / name), b"rows that a writer did not commit")
    unneeded = find_unneeded(folder, table.snapshot(), time.time() + 30 * 86_400)
    assert sorted(path.relative_to(folder).as_posix() for path in unneeded) == sorted(names)
