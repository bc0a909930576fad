"""A Delta table of another program becomes a table of silver: equal to the source, and little was copied."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.bronze.copy_states import Adoption, CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.crash_steps import AdoptionStep, CrashStep, NamedStep
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError, LakeError, SourceError
from pipeline.ingest.job import run_ingest
from pipeline.operate.adopt import AdoptSummary, run_adopt
from pipeline.operate.rebuild import run_rebuild
from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.silver.compare.adoption import adopt_rows
from pipeline.silver.compare.gap_comparison import GapComparer
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from tests.support import foreign_tables
from tests.support.fault_points import WHEN, Cell, crash_at, observed, run_killed
from tests.support.foreign_tables import FILL, Program
from tests.support.modes.oracle import assert_equals_model
from tests.support.pipelines import Crash, MakePipeline, Pipeline, succeeded, with_rules, with_writer
from tests.support.servers import Database

A = TableName("public", "a")

KILLED = CrashStep.STAGE_COPIED_ROWS, CrashStep.REGISTER_TABLE
CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
  create: {{publication: all}}
storage: {{root: "{root}"}}
"""


def adopt(
    life: Pipeline, path: str, *ignored: str, table: str = "a", runs: bool = True, is_dry_run: bool = False
) -> AdoptSummary:
    return run_adopt(
        life.config,
        f"public.{table}",
        path,
        ignored=ignored,
        is_dry_run=is_dry_run,
        runs=runs,
    )


@contextmanager
def written_meanwhile(life: Pipeline, *statements: str) -> Iterator[None]:
    """Run statements at the source each time that rows of a copy are about to be staged."""
    with life.database.connect() as source:

        def write(step: NamedStep, moment: str) -> None:
            if (step, moment) == (CrashStep.STAGE_COPIED_ROWS, "before"):
                for statement in statements:
                    source.execute(statement.encode())

        with observed(write):
            yield


@pytest.mark.spark
@pytest.mark.promise("adopted tables")
@pytest.mark.parametrize(
    ("program", "writer"),
    [("deltalake", "native"), pytest.param("spark", "spark", marks=pytest.mark.slow)],
)
def test_only_the_rows_that_differ_are_copied(
    make_pipeline: MakePipeline, tmp_path: Path, program: Program, writer: WriterSetting
) -> None:
    life = with_writer(make_pipeline(copy="initial", create_publication="all"), writer)
    life.run(*foreign_tables.create("a"), FILL.format("a", 1, 2000))
    rows = foreign_tables.read(life.source, "a")
    folder = tmp_path / "old table"
    foreign_tables.write(rows, folder, program, life.session, partition_by=["small"])
    extra = pa.concat_tables([foreign_tables.edited(rows, id=900_000), rows.slice(500, 1)])
    path = foreign_tables.write(extra, folder, program, life.session, mode="append")
    life.run(
        "DELETE FROM a WHERE id IN (3, 700)",
        "UPDATE a SET n = -1 WHERE id BETWEEN 101 AND 107",
        "UPDATE a SET big = reverse(big) WHERE id IN (1000, 1020)",
        "UPDATE a SET id = 6000 WHERE id = 42",
        "UPDATE a SET price = 'NaN', day = 'infinity' WHERE id = 77",
        FILL.format("a", 3001, 3002),
    )
    # all rows are in bronze, but that is not recorded
    with crash_at(CrashStep.RECORD_COPY, passing=1, error=RuntimeError("503 Slow Down")):
        failed = adopt(life, path)
    assert failed.exit_code(strict=False) == 1
    assert failed.lines()[-1] == "adopt public.a: not adopted yet; run the same command again"
    changes = (
        "UPDATE a SET n = n + 1 WHERE id % 100 = 3",
        "UPDATE a SET id = id + 10000 WHERE id = 900",
        "UPDATE a SET price = 1, day = '2024-01-01' WHERE id = 77",
    )
    with written_meanwhile(life, *changes):
        found = adopt(life, path)
    assert found.exit_code(strict=True) == 0, found.lines()
    # 501 is twice in the Delta table, and is read from the source
    assert found.lines()[-1] == "adopt public.a: 14 of 2,000 rows differed and were copied"
    life.assert_equal("a")
    assert any("adopted from version 1" in text for kind, text in life.events("a") if kind == "evolved")
    life.catch_up(
        "UPDATE a SET n = 5 WHERE id < 50",
        "DELETE FROM a WHERE id = 8",
        "UPDATE a SET id = 7000 WHERE id = 20",
    )
    life.assert_equal("a")
    run_rebuild(life.config, ["public.a"])
    life.assert_equal("a")
    again = adopt(life, path)
    assert again.lines()[-1] == "adopt public.a: it was adopted before"
    assert again.exit_code(strict=True) == 0


@pytest.mark.spark
@pytest.mark.slow
def test_a_dry_run_changes_nothing_and_what_cannot_be_adopted_is_refused(
    make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    life = make_pipeline(copy="initial", create_publication="never")
    life.run(*foreign_tables.create("a"), FILL.format("a", 1, 300))
    life.run(f"CREATE PUBLICATION {life.config.source.publication} FOR ALL TABLES")
    rows = foreign_tables.read(life.source, "a")
    rows = rows.append_column("_airbyte_raw_id", pa.array(["x"] * 300))
    path = foreign_tables.write(rows, tmp_path / "old", "deltalake", life.session)
    life.run("UPDATE a SET n = 100 WHERE id = 4", "DELETE FROM a WHERE id = 5")
    with pytest.raises(LakeError, match=r"lacks its columns _airbyte_raw_id \(--ignore-column"):
        adopt(life, path, is_dry_run=True)
    with pytest.raises(LakeError, match="There is no Delta table"):
        adopt(life, f"{path}/none")
    with pytest.raises(ConfigError, match="is in the lake itself"):
        adopt(life, f"{life.root}/silver/public/a")
    with pytest.raises(ConfigError, match="No table matches"):
        adopt(life, path, table="b")
    found = adopt(life, path, "_airbyte_raw_id", is_dry_run=True)
    sentence = "Rows that differ and are copied: 1 of 299; 1 row that the source does not have left out."
    assert found.lines()[1:] == [sentence, "Nothing was changed (--dry-run)."]
    assert found.as_json()["comparison"] == sentence
    assert not Path(life.root, "bronze").exists()
    life.catch_up()
    with pytest.raises(LakeError, match="has been copied already"):
        adopt(life, path, "_airbyte_raw_id")


def test_a_table_that_ingest_will_not_publish_is_refused(database: Database, tmp_path: Path) -> None:
    path = str(tmp_path / "old")
    write_deltalake(path, pa.table({"id": pa.array([1], pa.int32())}))
    config = database.config(root=str(tmp_path / "lake"), copy="initial")
    name = config.source.publication
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        f"CREATE PUBLICATION {name} FOR TABLE parts",
    )
    with pytest.raises(SourceError, match=r"not created by this pipeline.* ADD TABLE \"public\".\"a\""):
        run_adopt(config, "public.a", path, runs=False)
    under_other_names = f"{name} publishes the rows of public.{{}} under other names"
    with pytest.raises(SourceError, match=under_other_names.format("parts")):
        run_adopt(config, "public.parts", path, runs=False)
    database.run(f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true)")
    with pytest.raises(SourceError, match=under_other_names.format("part")):
        run_adopt(config, "public.part", path, runs=False)
    assert not Path(config.storage.root).exists()


@pytest.mark.quick
def test_a_table_that_was_renamed_is_not_read_without_its_rules(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = database.config(root=str(tmp_path), copy="initial", create_publication="all")
    rule = TableRule("public.a", columns=ColumnRules(mask={"v": None}))
    config = replace(config, tables=(rule, TableRule("public.*")))
    database.run("CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a VALUES (1, 'planted')")
    run_ingest(config)
    database.run("ALTER TABLE a RENAME TO b")
    request = CopyRequest.of(TableName("public", "b"), Adoption("/data/b", 0).reason)
    bronze = Bronze(Lake(config.storage), config.pipeline)
    bronze.copies.request([request])
    compared = []
    monkeypatch.setattr(GapComparer, "adopt", lambda *arguments: compared.append(arguments))
    summary = run_ingest(config)
    assert not compared
    assert "left out, hashed or masked" in str(summary.copies[request.name].failure)
    assert "planted" not in str(bronze.changes.rows().to_pylist())


@pytest.mark.spark
@pytest.mark.slow
def test_long_texts_are_read_in_small_parts(make_pipeline: MakePipeline, tmp_path: Path) -> None:
    """The Delta table itself is small, because the texts repeat."""
    life = make_pipeline(copy="initial", create_publication="never")
    path = str(tmp_path / "old")
    values = [f"{i}{'x' * 20_000}" for i in range(4000)]
    write_deltalake(path, pa.table({"id": pa.array(range(4000), pa.int32()), "v": values}))
    source = life.config.source
    life.run(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "INSERT INTO a SELECT i, i || repeat('x', 20000) FROM generate_series(0, 3999) i",
        f"CREATE PUBLICATION {source.publication} FOR ALL TABLES",
    )
    lake = Lake(life.config.storage, life.session)
    with closing(SnapshotKeeper(source.snapshot_conninfo, key=source.snapshot_key)) as keeper:
        _, rows = adopt_rows(life.config, lake, keeper, A, Adoption(f"file:{path}", 0))
    assert rows is not None
    with closing(rows):
        sizes = [rows.read(part).nbytes for part in range(rows.part_count)]
    assert sum(sizes) > 80_000_000
    assert max(sizes) < 70 << 20


@pytest.mark.spark
@pytest.mark.promise("adopted tables")
@pytest.mark.slow
def test_tables_of_other_kinds(make_pipeline: MakePipeline, tmp_path: Path) -> None:
    """A table without a key, one with a history, an empty one, one that differs everywhere, and floats."""
    life = make_pipeline(copy="initial", create_publication="all")
    life = with_rules(life, TableRule("public.past", mode="history"), TableRule("*.*"))
    spark = life.session
    life.run(
        "CREATE TABLE bag (n int, v text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT i % 3, CASE WHEN i % 2 = 0 THEN 'v' END FROM generate_series(1, 30) i",
        'CREATE TABLE past ("Id" int PRIMARY KEY, v text)',
        "INSERT INTO past SELECT i, 'v' || i FROM generate_series(1, 200) i",
        "CREATE TABLE none (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY, v text)",
        "INSERT INTO other SELECT i, 'v' FROM generate_series(1, 500) i",
        "CREATE TABLE floats (id int PRIMARY KEY, r real, d double precision)",
        "INSERT INTO floats SELECT i, (random() - 0.5) * 10 ^ (i % 70 - 35),"
        " (random() - 0.5) * 10 ^ (i % 600 - 300) FROM generate_series(1, 3000) i",
        "INSERT INTO floats SELECT 5000 + i, i * 10 ^ (i % 20), i * 10 ^ (i % 20)"
        " FROM generate_series(-99, 99) i",
        "INSERT INTO floats VALUES (6000, 'NaN', '-Infinity'), (6001, '-0', '-0'), (6002, 1e6, 1e15)",
        "INSERT INTO floats VALUES (6003, 1234567, 123456789012345), (6004, 0.0001, 0.00001)",
        "INSERT INTO floats VALUES (6005, 1e-5, NULL)",
    )
    columns = {"bag": "n, v", "past": '"Id", v', "none": "id", "other": "id, v", "floats": "id, r, d"}
    ddl = {
        "bag": "n INT, v STRING",
        "past": "id SMALLINT, v STRING",  # the name in another case, and a narrower type
        "none": "id BIGINT",
        "other": "id INT, v STRING",
        "floats": "id INT, r FLOAT, d DOUBLE",
    }
    paths = {}
    for name, selected in columns.items():
        rows = life.source.execute(f"SELECT {selected} FROM {name}".encode()).fetchall()
        if name == "other":
            rows = [(id_, "w") for id_, _ in rows]
        paths[name] = str(tmp_path / name)
        spark.createDataFrame(rows, ddl[name]).write.format("delta").save(paths[name])
    spark.sql(f"INSERT INTO delta.`{paths['none']}` VALUES (7)")
    life.run(
        "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE n = 1 LIMIT 2)",
        "INSERT INTO bag VALUES (9, NULL)",
        "UPDATE past SET v = 'new' WHERE \"Id\" = 9",
    )
    for name, path in paths.items():
        assert adopt(life, path, table=name, runs=name == "floats").exit_code(strict=True) == 0
    life.assert_equal("bag", "none", "other", "floats")
    model = life.source, life.root, life.config.pipeline, "history", TableName("public", "past")
    assert assert_equals_model(*model) == 200


@pytest.mark.spark
@pytest.mark.promise("adopted tables")
@pytest.mark.slow
def test_a_command_that_is_killed_continues(make_pipeline: MakePipeline, tmp_path: Path) -> None:
    """One adoption, whose runs are killed in turn before and after rows are staged and silver registered."""
    life = make_pipeline(copy="initial", create_publication="all")
    config = tmp_path / "pipeline.yaml"
    names = {"name": life.config.pipeline, "conninfo": life.database.conninfo, "root": life.root}
    config.write_text(CONFIG.format(**names))
    life.run(*foreign_tables.create("a"), FILL.format("a", 1, 300))
    rows = foreign_tables.read(life.source, "a")
    path = foreign_tables.write(rows, tmp_path / "old", "deltalake", life.session)
    life.run("UPDATE a SET n = -1 WHERE id = 3", "DELETE FROM a WHERE id = 4")
    for when in WHEN:
        with pytest.raises(Crash), crash_at(AdoptionStep.REQUEST_ADOPTION, when):
            adopt(life, path)
    for number, (step, when) in enumerate((step, when) for step in KILLED for when in WHEN):
        assert run_killed("run", Cell(step, when, "killed"), config), (step, when)
        life.run(f"UPDATE a SET n = -2 WHERE id = 10 + {number}")
    succeeded(adopt(life, path))
    life.assert_equal("a")
    life.catch_up("UPDATE a SET n = -3 WHERE id < 20")
    life.assert_equal("a")
    assert adopt(life, path).lines()[-1] == "adopt public.a: it was adopted before"
