"""Silver live: what it shows without a write is what the source has, and what the next apply writes."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.config import Config, Protocol
from pipeline.config.tables import RowMode, TableRule
from pipeline.crash_steps import CrashStep
from pipeline.errors import LakeError
from pipeline.ingest.job import run_ingest
from pipeline.operate.maintain import run_maintenance
from pipeline.reading.live import LiveReader
from pipeline.table_name import TableName
from tests.support.comparable.arrow import arrow_rows, comparable_rows
from tests.support.comparable.silver import silver_path
from tests.support.comparable.source import Rows, snapshot, source_columns, source_rows
from tests.support.fault_points import crash_at
from tests.support.modes.workloads import RowSteps
from tests.support.native_pipelines import NativePipeline
from tests.support.pipelines import Crash
from tests.support.seeds import printed_rng, seed_of_run
from tests.support.servers import Database, MakeServer
from tests.support.workload.tables import Connection, Schema, Table, create_schema
from tests.support.workload.transactions import run_workload

FIXED_SEED = 20_270


@pytest.mark.promise("live reads")
@pytest.mark.sample(2)
@pytest.mark.parametrize("mode", ["mirror", "soft_delete", "history", "append"])
def test_live_shows_the_source_and_what_apply_writes(
    database: Database, tmp_path: Path, mode: RowMode
) -> None:
    prove(database, tmp_path, FIXED_SEED, mode=mode, schemas=1, cuts=2)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mirror", "soft_delete", "history", "append"])
def test_live_shows_the_source_in_many_random_workloads(
    database: Database, tmp_path: Path, mode: RowMode
) -> None:
    prove(database, tmp_path, seed_of_run(), mode=mode, schemas=20, cuts=8)


def prove(database: Database, folder: Path, seed: int, *, mode: RowMode, schemas: int, cuts: int) -> None:
    """Read live after each of some workloads; only some are applied."""
    rng = printed_rng(seed)
    config = database.config("*.*", root=str(folder / "lake"), create_publication="all")
    silver = replace(config.silver, writer="auto")
    divided = TableRule("w_*.documents", mode=mode, partition_by=("revision",))
    config = replace(config, silver=silver, tables=(divided, TableRule("w_*.*", mode=mode)))
    run_ingest(config)
    reader = LiveReader(config)
    with database.connect() as source:
        for number in range(schemas):
            schema = create_schema(source, rng, name=f"w_{number}")
            for cut in range(cuts):
                run_workload(source, rng, 4, schema=schema, steps=RowSteps if rng.random() < 0.9 else None)
                run_ingest(config)
                live = reader.read()
                shown = {name: comparable_rows(live[name].to_table()) for name in live}
                if mode == "mirror":
                    assert_equal_source(source, shown, schema)
                print(cut, live, [live[name].has_changes for name in live])
                refused = [text for text in live.refused.values() if not is_expected(text, mode)]
                assert not refused
                assert cut == 0 or len(shown) > 1, live.refused
                if cut == 0 or rng.random() < 0.6:
                    assert_equal_after_apply(config, shown)
            assert_equal_after_apply(config, shown)


def is_expected(sentence: str, mode: RowMode) -> bool:
    """Return whether a table may be refused: before its first apply, if it changes or is held."""
    if any(part in sentence for part in ("no silver table yet", "its columns change", "is detached")):
        return True
    return mode in ("soft_delete", "history") and "is held" in sentence  # a table without a key


def assert_equal_source(source: Connection, shown: dict[TableName, Rows], schema: Schema) -> None:
    with snapshot(source):
        for name in schema.names:
            if name in shown:
                columns = source_columns(source, *name)
                wanted = source_rows(source, *name, columns)
                found: Rows = type(wanted)()
                for row, count in shown[name].items():
                    found[row[: len(columns)]] += count
                assert found == wanted, differing(name, wanted, found)


def assert_equal_after_apply(config: Config, shown: dict[TableName, Rows]) -> None:
    """Apply what live has shown, and compare it with silver."""
    summary = Applier(None, config).apply_pending()
    assert summary.exit_code(strict=False) == 0, summary.tables
    live = LiveReader(config).read()
    for name, found in shown.items():
        columns = live[name].schema.names
        written = arrow_rows(silver_path(config.storage.root, *name), columns)
        assert found == written, differing(name, written, found)
        assert not live[name].has_changes
        assert comparable_rows(live[name].to_table()) == written


def differing(name: TableName, wanted: Rows, found: Rows) -> object:
    return name, list((wanted - found).items())[:3], list((found - wanted).items())[:3]


@pytest.mark.promise("live reads")
def test_a_table_that_is_followed_no_longer_is_refused(database: Database, tmp_path: Path) -> None:
    names = ("kept", "unpublished", "dropped", "renamed")
    for name in names:
        database.run(f"CREATE TABLE {name} (id int PRIMARY KEY)", f"INSERT INTO {name} VALUES (1)")
    publication = f"PUBLICATION {database.name}"
    database.run(f"CREATE {publication} FOR TABLE {', '.join(names)}")
    pipeline = NativePipeline.make(database, tmp_path, copy="initial", create_publication="never")
    pipeline.catch_up()
    pipeline.catch_up(
        "DROP TABLE dropped",
        "ALTER TABLE renamed RENAME TO new_name",
        f"ALTER {publication} DROP TABLE unpublished",
        "INSERT INTO unpublished VALUES (2)",
    )
    live = LiveReader(pipeline.config).read()
    assert {*live} == {TableName("public", "kept"), TableName("public", "new_name")}
    assert live.refused.keys() == {TableName("public", name) for name in names[1:]}
    assert all("is detached: its rows are old." in sentence for sentence in live.refused.values())


@pytest.mark.quick
def test_streamed_and_prepared_transactions_are_shown_once_committed(
    make_server: MakeServer, tmp_path: Path
) -> None:
    database = Database.of(
        make_server({"max_prepared_transactions": "5", "logical_decoding_work_mem": "64kB"})
    )
    protocol = Protocol(two_phase=True, streaming="on", written=frozenset({"two_phase", "streaming"}))
    config = database.config(root=str(tmp_path / "lake"), create_publication="all", protocol=protocol)
    config = replace(config, silver=replace(config.silver, writer="auto"))
    run_ingest(config)
    database.run("CREATE TABLE items (id int PRIMARY KEY, v text)", "INSERT INTO items VALUES (0, 'first')")
    run_ingest(config)
    assert Applier(None, config).apply_pending().exit_code(strict=True) == 0
    reader, name = LiveReader(config), TableName("public", "items")

    def ids() -> list[int]:
        run_ingest(config)
        live = reader.read()
        assert not live.refused
        found: list[int] = live[name].to_table(columns=["id"]).column("id").to_pylist()
        return sorted(found)

    large = "INSERT INTO items SELECT g, repeat(md5(g::text), 20) FROM generate_series({}, {}) g"
    with database.connect() as open_one, database.connect() as rolled_back:
        for session, first in ((open_one, 1), (rolled_back, 1001)):
            session.execute("BEGIN")
            session.execute(large.format(first, first + 499).encode())
        database.run("BEGIN", large.format(2001, 2400), "PREPARE TRANSACTION 'one'")
        assert ids() == [0]
        rolled_back.execute("ROLLBACK")
        open_one.execute("COMMIT")
        assert ids() == [0, *range(1, 501)]
        database.run("COMMIT PREPARED 'one'")
        assert ids() == [0, *range(1, 501), *range(2001, 2401)]
    assert Applier(None, config).apply_pending().exit_code(strict=True) == 0
    assert ids() == [0, *range(1, 501), *range(2001, 2401)]
    assert not reader.read()[name].has_changes


@pytest.mark.quick
def test_a_table_that_an_apply_has_written_in_part_is_shown_whole(database: Database, tmp_path: Path) -> None:
    """Rows are identified in another way after the ALTER TABLE, so apply writes the changes in two steps."""
    config = database.config(root=str(tmp_path / "lake"), create_publication="all")
    config = replace(config, silver=replace(config.silver, writer="auto"))
    run_ingest(config)
    with database.connect() as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        source.execute("INSERT INTO t SELECT g, 'first' FROM generate_series(1, 20) g")
        run_ingest(config)
        assert Applier(None, config).apply_pending().exit_code(strict=True) == 0
        with source.transaction():
            source.execute("UPDATE t SET v = 'by key' WHERE id < 5")
            source.execute("DELETE FROM t WHERE id = 6")
            source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
            source.execute("UPDATE t SET v = v || ', by row' WHERE id < 3")
            source.execute("DELETE FROM t WHERE id = 7")
            source.execute("INSERT INTO t VALUES (30, 'new')")
        run_ingest(config)
        name = TableName("public", "t")
        schema = Schema("public", [Table("public", "t", [])], has_truncate=True)

        def shown() -> dict[TableName, Rows]:
            live = LiveReader(config).read()
            plan = live.table(*name).plan
            assert plan is not None
            assert len(plan.writes) == 2
            return {name: comparable_rows(live[name].to_table())}

        before = shown()
        assert_equal_source(source, before, schema)
        with crash_at(CrashStep.WRITE_TABLE, "after"), pytest.raises(Crash):
            Applier(None, config).apply_pending()
        assert LiveReader(config).read().table(*name).version > 1
        assert shown() == before
        assert_equal_after_apply(config, before)


def test_changes_that_maintenance_has_removed_are_read_again(database: Database, tmp_path: Path) -> None:
    config = database.config(root=str(tmp_path / "lake"), create_publication="all")
    config = replace(config, maintenance=replace(config.maintenance, small_files=2))
    run_ingest(config)
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    run_ingest(config)
    assert Applier(None, config).apply_pending().exit_code(strict=True) == 0
    for number in (2, 3):
        database.run(f"INSERT INTO t VALUES ({number})")
        run_ingest(config)
    name, kept = TableName("public", "t"), LiveReader(config).read()
    run_maintenance(config)  # merges the files
    later = time.time() + 2 * 86400
    run_maintenance(config, clock=lambda: later)  # removes those that were merged
    with pytest.raises(LakeError, match=r"in bronze no longer: .* Call refresh\(\)"):
        kept[name].to_table()
    again = kept.refresh()
    assert sorted(again[name].to_table()["id"].to_pylist()) == [1, 2, 3]
    again = again.refresh()
    for file in (tmp_path / "lake" / "bronze" / "changes").glob("*.parquet"):
        file.unlink()
    with pytest.raises(LakeError, match="of bronze is missing"):
        again[name].to_table()
