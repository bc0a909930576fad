"""Silver live without Spark: what is refused, what a read costs, and that nothing is written."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.compute as pc
import pytest

import pgdelta
from pipeline.bronze import change_rows
from pipeline.bronze.relations import relation_version
from pipeline.delta.merge import merge_groups, plain_layout, plan_table
from pipeline.delta.merge_plan import MergeLimits
from pipeline.errors import ConfigError, LakeError
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Column, Relation
from pipeline.reading.live import LiveReader
from pipeline.reading.live_tables import Live
from pipeline.silver.read import silver_rows
from pipeline.table_name import TableName
from tests.support.native_lakes import NativeLake, change, make_config
from tests.support.paths import ROOT


@pytest.fixture
def lake(tmp_path: Path) -> NativeLake:
    """Give a lake of four tables with the rows 0 to 19 each."""
    return NativeLake(tmp_path / "lake", 4)


def live_of(lake: NativeLake) -> Live:
    return LiveReader(lake.config).read()


def land(lake: NativeLake, lsn: int, *rows: tuple[int, str, dict[str, Any]]) -> None:
    """Land a transaction of changes (number of the table, operation, other columns)."""
    changes = []
    for ordinal, (number, op, more) in enumerate(rows):
        name = lake.names[number]
        version = lake.versions[name].id
        changes.append(change(name, version, ordinal, lsn, op, relation_id=number + 1, **more))
    lake.land(LSN(lsn + 8), changes)


def rows_of(live: Live, name: TableName) -> list[tuple[int, str]]:
    rows = live[name].to_table(columns=["id", "name"]).to_pylist()
    return sorted((row["id"], row["name"]) for row in rows)


def files_of(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


@pytest.mark.promise("live reads")
def test_a_read_shows_all_changes_of_bronze_and_writes_nothing(lake: NativeLake) -> None:
    one, two = lake.names[:2]
    land(
        lake,
        2000,
        (0, "I", {"new": ["100", "new"]}),
        (0, "U", {"new": ["3", "changed"]}),
        (0, "D", {"old_kind": "K", "old": ["4", None], "new": None}),
        (0, "U", {"old_kind": "K", "old": ["5", None], "new": ["105", None], "unsent": [1]}),
        (1, "T", {"new": None}),
        (1, "I", {"new": ["7", "after"]}),
    )
    before = files_of(lake.root)
    live = live_of(lake)
    expected = [(n, "a value") for n in range(20) if n not in (3, 4, 5)]
    assert rows_of(live, one) == sorted([*expected, (3, "changed"), (100, "new"), (105, "a value")])
    assert rows_of(live, two) == [(7, "after")]
    assert (str(live.lsn), len(live), live.refused) == ("0/7D8", 4, {})
    assert live[one].count_rows() == 20
    assert live[one].count_rows(filter=pc.field("id") > 99) == 2
    assert {row["_commit_lsn"] for row in live[two].to_table().to_pylist()} == {2000}
    land(lake, 3000, (1, "I", {"new": ["8", "later"]}))
    assert rows_of(live, two) == [(7, "after")]
    assert rows_of(live.refresh(), two) == [(7, "after"), (8, "later")]
    assert {path: time for path, time in files_of(lake.root).items() if path in before} == before


def test_a_read_costs_what_is_pending_and_reads_it_once(
    lake: NativeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[change_rows.FilePart] = []
    whole = change_rows._read

    def record(part: change_rows.FilePart, columns: Sequence[str]) -> Any:
        read.append(part)
        return whole(part, columns)

    monkeypatch.setattr(change_rows, "_read", record)
    live = live_of(lake)
    for name in live:
        assert live[name].to_table().num_rows == 20
    assert not read, "without a change, bronze is not read"
    lake.insert(lake.names[:3], 2000, 5)
    lake.insert(lake.names[:3], 3000, 5)
    live = live_of(lake)
    assert live[lake.names[3]].to_table().num_rows == 20
    assert not read, "the rows of other tables are not read"
    for name in live:
        assert live[name].to_table().num_rows == 20
        assert live[name].has_changes == (name != lake.names[3])
    assert len(read) == len(set(read)) == 2, "each file once for all tables"


def test_files_that_maintenance_replaces_are_read_as_they_were(lake: NativeLake) -> None:
    name = lake.names[0]
    for lsn in (2000, 3000, 4000):
        lake.insert([name], lsn, 5)
    live = live_of(lake)
    table = lake.lake.table("silver", *name)
    for each in (table, lake.bronze.changes):
        snapshot = each.snapshot()
        limits = MergeLimits(1, 1 << 20, 1 << 20)
        merge_groups(each, snapshot, plan_table(snapshot, limits), plain_layout(snapshot))
    assert lake.bronze.changes.snapshot().file_count < len(live._found.changes.snapshot().files)
    assert sorted(live[name].to_table().column("id").to_pylist()) == list(range(20))
    lake.insert([name], 5000, 25)
    assert live_of(lake)[name].count_rows() == 25


def test_a_missing_file_is_reported_with_its_table(lake: NativeLake) -> None:
    live = live_of(lake)
    for path in (lake.root / "silver" / "public" / "t0000").glob("*.parquet"):
        path.unlink()
    with pytest.raises(LakeError, match=r"A file of the table in .*t0000 is missing: VACUUM removes"):
        live[lake.names[0]].to_table()


@pytest.mark.promise("live reads")
def test_a_change_of_columns_is_refused_by_name(lake: NativeLake) -> None:
    name = lake.names[0]
    columns = (Column(True, "id", 23, -1), Column(False, "name", 25, -1), Column(False, "more", 25, -1))
    version = relation_version(Relation(1, *name, "d", columns), None, LSN(2000))
    lake.writer.record_relations([version])
    row = change(name, version.id, 0, 2000, new=["50", "b", "c"])
    lake.land(LSN(2008), [row])
    live = live_of(lake)
    assert [*live.refused] == [name]
    assert name not in live
    assert len(live) == 3
    with pytest.raises(
        LakeError, match=r"Table public\.t0000 cannot be read at 0/7D8: its columns change at"
    ):
        live[name]
    with pytest.raises(KeyError):
        live[TableName("public", "nothing")]


def test_a_table_that_is_held_is_refused_by_name(tmp_path: Path) -> None:
    lake = NativeLake(tmp_path / "lake", 2)
    guarded = make_config(lake.root, tables=[{"source": "*.*", "guards": {"deletes": 1}}])
    rows = [(0, "D", {"old_kind": "K", "old": [str(n), None], "new": None}) for n in (1, 2)]
    land(lake, 2000, *rows)
    live = LiveReader(guarded).read()
    assert [*live] == [lake.names[1]]
    assert "is held by its guards: 2 deletes" in live.refused[lake.names[0]]
    assert rows_of(live_of(lake), lake.names[0])[:2] == [(0, "a value"), (3, "a value")]


def test_foreign_commits_are_refused_by_name(lake: NativeLake) -> None:
    from deltalake import DeltaTable

    table = lake.lake.table("silver", *lake.names[0])
    DeltaTable(str(table.folder)).delete("id = 3")
    live = live_of(lake)
    assert [*live.refused] == [lake.names[0]]
    assert "A foreign commit (DELETE at version" in live.refused[lake.names[0]]


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGDELTA_CONFIG", raising=False)
    with pytest.raises(ConfigError, match="No configuration is given"):
        pgdelta.live()
    make_config(tmp_path / "lake")
    with pytest.raises(LakeError, match=r"has no changes yet\. Run pgdelta ingest first"):
        pgdelta.live(config=str(tmp_path / "lake.yaml"))
    with pytest.raises(LakeError, match=r"Use pgdelta\.live"):
        LiveReader(make_config(tmp_path / "other", storage={"root": "ofs://host/lake"}))

    class Connected:
        """A session of Spark Connect, as far as it matters."""

    with pytest.raises(LakeError, match="a Spark Connect session has none"):
        pgdelta.live(Connected(), str(tmp_path / "lake.yaml"))


def test_other_programs_read_the_datasets(lake: NativeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    polars = pytest.importorskip("polars")
    land(lake, 2000, (0, "U", {"new": ["3", "changed"]}))
    monkeypatch.setenv("PGDELTA_CONFIG", str(lake.root.parent / "lake.yaml"))
    rows = pgdelta.live()["public", "t0000"]
    found = polars.scan_pyarrow_dataset(rows).filter(polars.col("id") == 3).select("name").collect()
    assert found.to_dicts() == [{"name": "changed"}]
    connection = duckdb.connect()
    connection.register("orders", rows)
    sql = "SELECT count(*), count(DISTINCT o.name) FROM orders JOIN orders AS o USING (id)"
    assert connection.execute(sql).fetchall() == [(20, 2)]
    assert rows.head(3).num_rows == 3
    assert sum(batch.num_rows for batch in rows.to_batches()) == 20
    for method in ("filter", "sort_by", "get_fragments", "join"):
        with pytest.raises(NotImplementedError, match="Read the rows first"):
            getattr(rows, method)(None)


@pytest.mark.costly
def test_a_read_without_spark_imports_none(lake: NativeLake) -> None:
    lake.insert(lake.names[:1], 2000, 5)
    code = (
        "import sys, pgdelta; rows = pgdelta.live()['public', 't0000']; "
        "print(rows.to_table().num_rows, {'pyspark', 'py4j'} & {n.split('.')[0] for n in sys.modules})"
    )
    environment = {**os.environ, "PGDELTA_CONFIG": str(lake.root.parent / "lake.yaml")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "20 set()\n"


def test_rows_are_read_by_parts(lake: NativeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silver_rows, "_BATCH_ROWS", 3)
    land(lake, 2000, (0, "U", {"new": ["3", "changed"]}))
    batches = list(live_of(lake)[lake.names[0]].to_batches())
    assert max(batch.num_rows for batch in batches) == 3
    assert sum(batch.num_rows for batch in batches) == 20
