"""The native reader of logs and rows against `deltalake`, on logs that `deltalake` wrote."""

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake

from pipeline.delta.rows import read_rows
from pipeline.delta.table_log import TableLog, data_path

ROWS = pa.table(
    {
        "n": pa.array([1, 2, None], pa.int64()),
        "s": ["a", None, "ü"],
        "l": pa.array([[1], [], None], pa.list_(pa.int32())),
        "t": pa.array([0, 1, None], pa.timestamp("us", tz="UTC")),
    }
)


def agree(path: Path) -> None:
    theirs = DeltaTable(str(path))
    for log in (TableLog.of(str(path)), TableLog(str(path))):
        ours = log.snapshot()
        assert ours.version == theirs.version()
        assert ours.table_id == str(theirs.metadata().id)
        assert json.loads(ours.schema_string) == json.loads(theirs.schema().to_json())
        files = sorted(unquote(data_path(str(path), add["path"])) for add in ours.files.values())
        assert files == sorted(unquote(unquote(uri.removeprefix("file://"))) for uri in theirs.file_uris())
        found = read_rows(str(path), ours, ["n", "s"])
        query = QueryBuilder().register("t", theirs).execute("SELECT n, s FROM t").read_all()
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, pa.table(query).to_pylist()))


def test_what_deltalake_writes(tmp_path: Path) -> None:
    path = tmp_path / "a table"
    for number in range(4):
        properties = CommitProperties(app_transactions=[Transaction("app", number)])
        write_deltalake(path, ROWS, mode="append", commit_properties=properties)
        agree(path)
    table = DeltaTable(str(path))
    table.delete("n = 1")
    agree(path)
    table.create_checkpoint()
    write_deltalake(path, ROWS, mode="append")
    table.update_incremental()
    table.optimize.compact()
    agree(path)
    assert TableLog(str(path)).snapshot().offsets == {"app": 3}
    for file in (path / "_delta_log").glob("0000000000000000000[0-3].json"):
        file.unlink()
    agree(path)
    write_deltalake(path, ROWS.append_column("more", pa.array([1, 2, 3])), mode="append", schema_mode="merge")
    agree(path)
    write_deltalake(path, ROWS, mode="overwrite", schema_mode="overwrite")
    agree(path)


def test_partitions(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS.select(["n", "s"]), partition_by=["s"])
    agree(tmp_path / "t")
