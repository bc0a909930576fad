"""Silver live with Spark shows the same as without it, whoever folds the changes."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.tables import RowMode, TableRule
from pipeline.errors import LakeError
from pipeline.reading.live import LiveReader, open_live
from pipeline.reading.live_frames import LiveFrames
from pipeline.reading.query import silver_live
from pipeline.table_name import TableName
from tests.support.comparable.arrow import comparable_rows
from tests.support.comparable.silver import frame_rows
from tests.support.comparable.source import snapshot, source_columns, source_rows
from tests.support.modes.workloads import RowSteps
from tests.support.pipelines import MakePipeline, with_rules, with_writer
from tests.support.seeds import seed_of_run
from tests.support.workload.tables import WORKLOAD, create_schema
from tests.support.workload.transactions import run_workload

FIXED_SEED = 20_271


@pytest.mark.promise("live reads")
@pytest.mark.spark
def test_live_is_the_same_with_and_without_spark(make_pipeline: MakePipeline) -> None:
    tables = Random(seed_of_run()).sample(WORKLOAD, 2)
    prove(make_pipeline, FIXED_SEED, mode="mirror", schemas=1, cuts=1, tables=tables)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mirror", "soft_delete", "history", "append"])
@pytest.mark.spark
def test_live_is_the_same_with_and_without_spark_in_many_workloads(
    make_pipeline: MakePipeline, mode: RowMode
) -> None:
    prove(make_pipeline, seed_of_run(), mode=mode, schemas=6, cuts=3)


def prove(
    make_pipeline: MakePipeline,
    seed: int,
    *,
    mode: RowMode,
    schemas: int,
    cuts: int,
    tables: Sequence[str] = ("*",),
) -> None:
    """Read some tables live in all ways after each of some workloads."""
    print(f"PGDELTA_SEED={seed}, tables: {tables}")
    rng = Random(seed)
    pipeline = with_writer(make_pipeline("*.*", create_publication="all"), "auto")
    config = replace(pipeline.config, tables=tuple(TableRule(f"w_*.{table}", mode=mode) for table in tables))
    by_spark = replace(config, silver=replace(config.silver, writer="spark"))
    pipeline.ingest()
    readers = [open_live(each, pipeline.session) for each in (config, by_spark)]
    for number in range(schemas):
        schema = create_schema(pipeline.source, rng, name=f"w_{number}")
        for cut in range(cuts + 1):
            run_workload(pipeline.source, rng, 5, schema=schema, steps=RowSteps)
            pipeline.ingest()
            if cut == 0:  # there is no silver table to read
                Applier(None, config).apply_pending()
                continue
            live = LiveReader(config).read()
            wanted = {name: comparable_rows(live[name].to_table()) for name in live}
            for reader in readers:
                frames = reader.read()
                assert (frames.lsn, frames.keys(), frames.refused) == (live.lsn, live.keys(), live.refused)
                for name in frames:
                    assert frames[name].columns == live[name].schema.names
                    found = frame_rows(frames[name], frames[name].columns)
                    assert found == wanted[name], (name, found - wanted[name], wanted[name] - found)
            Applier(None, config).apply_pending()


@pytest.mark.slow
@pytest.mark.spark
def test_tables_that_only_spark_writes_are_shown(make_pipeline: MakePipeline) -> None:
    pipeline = with_rules(
        with_writer(make_pipeline(create_publication="all"), "auto"),
        TableRule("public.variant", types={"doc": "VARIANT"}),
        TableRule("public.*"),
    )
    pipeline.ingest()
    pipeline.catch_up(
        "CREATE TABLE renamed (id int PRIMARY KEY, a text, b int)",
        "CREATE TABLE floats (k float8 PRIMARY KEY, v text)",
        'CREATE TABLE hidden ("_metadata" int PRIMARY KEY, v text)',
        "CREATE TABLE vectors (id int PRIMARY KEY, v text)",
        "CREATE TABLE variant (id int PRIMARY KEY, doc jsonb)",
        "INSERT INTO renamed SELECT g, 'a' || g, g FROM generate_series(1, 20) g",
        "INSERT INTO floats VALUES ('NaN', 'a'), (0, 'b'), ('Infinity', 'c'), (1.5, 'd')",
        "INSERT INTO hidden SELECT g, 'v' FROM generate_series(1, 20) g",
        "INSERT INTO vectors SELECT g, 'v' FROM generate_series(1, 20) g",
        """INSERT INTO variant VALUES (1, '{"a": 1}')""",
    )
    vectors = f"delta.`{pipeline.path('silver', 'public', 'vectors')}`"
    pipeline.session.sql(f"ALTER TABLE {vectors} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    pipeline.catch_up(
        "ALTER TABLE renamed RENAME a TO c",
        "ALTER TABLE renamed RENAME b TO a",
        "UPDATE renamed SET c = 'two' WHERE id = 2",
        "DELETE FROM vectors WHERE id = 3",
    )
    pipeline.ingest(
        "UPDATE renamed SET a = 99 WHERE id = 2",
        "DELETE FROM renamed WHERE id = 3",
        "INSERT INTO renamed VALUES (30, 'new', 30)",
        "UPDATE floats SET v = v || '!' WHERE k <> 1.5",
        "UPDATE floats SET k = '-0', v = 'moved' WHERE k = 0",
        "DELETE FROM floats WHERE k = 'Infinity'",
        "UPDATE hidden SET v = 'changed' WHERE \"_metadata\" = 7",
        "UPDATE vectors SET v = 'changed' WHERE id = 5",
        """UPDATE variant SET doc = '{"a": 2}'""",
    )
    names = [TableName("public", name) for name in ("floats", "hidden", "renamed", "variant", "vectors")]
    frames, rows = open_live(pipeline.config, pipeline.session).read(), LiveReader(pipeline.config).read()
    assert isinstance(frames, LiveFrames)
    assert ([*frames], frames.refused) == ([*rows], rows.refused) == (names, {})
    with snapshot(pipeline.source):
        for name in names:
            columns = source_columns(pipeline.source, *name)
            wanted = source_rows(pipeline.source, *name, columns)
            chosen = [column.name for column in columns]
            if name.table == "variant":  # whose text Spark writes
                text = frames[name].selectExpr("id", "to_json(doc) AS doc")
                assert [tuple(row) for row in text.collect()] == [(1, '{"a":2}')]
                continue
            assert frame_rows(frames[name], chosen) == wanted, name
            assert comparable_rows(rows[name].to_table(columns=chosen)) == wanted, name
    with pytest.raises(LakeError, match="reads columns of some types by Spark only"):
        rows[TableName("public", "variant")]
    asked = silver_live(pipeline.config)
    assert [*asked.refused] == [TableName("public", "variant")]
    assert [*asked.tables] == [name for name in names if name.table != "variant"]
    assert frames.create_views()["public__renamed"] == TableName("public", "renamed")
    sql = "SELECT count(*) AS n FROM public__renamed JOIN public__vectors USING (id)"
    assert [row.n for row in pipeline.session.sql(sql).collect()] == [19]
    pipeline.catch_up()
    assert frames[TableName("public", "vectors")].count() == 19, "the versions that were pinned"
