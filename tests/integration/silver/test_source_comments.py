"""Silver tables and columns have the comments on the source's, by both writers; no row is written."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from pipeline.apply.applier import Applier
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.silver.writer_choice import WriterSetting
from pipeline.verify.reconcile import run_reconcile
from tests.support.pipelines import MakePipeline, Pipeline, with_rules, with_writer
from tests.support.running import continuous, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

HOSTILE = [
    "it's \"quoted\", `so`; -- DROP TABLE t",
    "two\nlines\r\n\tand a tab",
    "back\\slash \\n \\u0041 %s ${env:HOME} $1 {}",
    "emoji 🎉 and ünïcödé \u2028",
    "x" * 10_240,
    "'", "\\", "$$",
]  # fmt: skip


def comment(pipeline: Pipeline, text: str | None, column: str | None = None, table: str = "t") -> None:
    """Set the comment on a table of the source, or on a column."""
    what = f"TABLE {table}" if column is None else f'COLUMN {table}."{column}"'
    value = "NULL" if text is None else "$$" + text + "$$" if "$$" not in text else f"'{text}'"
    pipeline.run(f"COMMENT ON {what} IS {value}")


def comments(pipeline: Pipeline, table: str = "t") -> dict[str | None, str]:
    """Return the comments that a silver table has, by Delta's log: under None its own."""
    found = DeltaTable(str(pipeline.path("silver", "public", table)))
    named: dict[str | None, str | None] = {None: found.metadata().description}
    named |= {field.name: field.metadata.get("comment") for field in found.schema().fields}
    return {name: text for name, text in named.items() if text}


def files(pipeline: Pipeline, table: str = "t") -> set[str]:
    return {*DeltaTable(str(pipeline.path("silver", "public", table))).file_uris()}


@pytest.fixture(params=["native", "spark"])
def made(request: pytest.FixtureRequest, make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline with a writer, and a table with comments that no run has seen yet."""
    writer: WriterSetting = request.param
    pipeline = with_writer(make_pipeline("public.*", copy="initial"), writer)
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text, w text)", "INSERT INTO t VALUES (1, 'a', 'b')")
    comment(pipeline, "the table")
    comment(pipeline, "the key", "id")
    return pipeline


def test_comments_are_set_at_creation_and_follow_the_source(made: Pipeline) -> None:
    pipeline = made
    pipeline.catch_up()
    assert comments(pipeline) == {None: "the table", "id": "the key"}
    # with the next change
    comment(pipeline, "a value", "v")
    comment(pipeline, "the number", "id")
    pipeline.run("INSERT INTO t VALUES (2, 'c', 'd')")
    pipeline.ingest()
    [plan] = make_plan(pipeline.config, spark=pipeline.spark).tables
    assert "Comments of columns are set: id, v" in [step.sentence for step in plan.steps]
    pipeline.apply()
    assert comments(pipeline) == {None: "the table", "id": "the number", "v": "a value"}
    # without any change of rows
    before, version = files(pipeline), pipeline.version("t")
    comment(pipeline, "another")
    comment(pipeline, None, "v")
    pipeline.catch_up()
    assert comments(pipeline) == {None: "another", "id": "the number"}
    assert files(pipeline) == before
    version, recorded = pipeline.version("t"), len([*pipeline.path("_pgdelta", "comments").iterdir()])
    pipeline.catch_up()  # nothing is set or recorded again
    assert pipeline.version("t") == version
    assert len([*pipeline.path("_pgdelta", "comments").iterdir()]) == recorded
    assert run_reconcile(pipeline.config, runs=True, spark=pipeline.spark).exit_code(strict=True) == 0
    pipeline.run("UPDATE t SET v = 'e'")
    pipeline.catch_up()
    assert pipeline.version("t") == version + 1
    pipeline.assert_equal("t")


def test_hostile_comments_arrive_as_they_are(made: Pipeline) -> None:
    pipeline = made
    columns = [f"c{n}" for n in range(len(HOSTILE))]
    pipeline.run(f"CREATE TABLE h (id int PRIMARY KEY, {', '.join(f'{c} int' for c in columns)})")
    pipeline.run("INSERT INTO h VALUES (1)", 'CREATE TABLE "o" (id int PRIMARY KEY, "a`b c" int)')
    pipeline.run('INSERT INTO "o" VALUES (1, 2)')
    for text, column in zip(HOSTILE, columns, strict=True):
        comment(pipeline, text, column, "h")
    comment(pipeline, HOSTILE[0], None, "h")
    comment(pipeline, HOSTILE[2], "a`b c", "o")
    pipeline.catch_up()
    wanted: dict[str | None, str] = dict(zip([None, *columns], [HOSTILE[0], *HOSTILE], strict=True))
    assert comments(pipeline, "h") == wanted
    read = pipeline.frame("silver", "public", "h").schema
    assert [read[c].metadata["comment"] for c in columns] == HOSTILE
    assert pipeline.frame("silver", "public", "o").schema["a`b c"].metadata["comment"] == HOSTILE[2]
    for text, column in zip(HOSTILE[1:] + HOSTILE[:1], columns, strict=True):
        comment(pipeline, text, column, "h")
    comment(pipeline, HOSTILE[1], None, "h")
    pipeline.catch_up()
    wanted = dict(zip([None, *columns], [HOSTILE[1], *HOSTILE[1:], HOSTILE[0]], strict=True))
    assert comments(pipeline, "h") == wanted
    pipeline.assert_equal("h")


def test_comments_follow_columns_copies_and_rebuilds(made: Pipeline) -> None:
    pipeline = made
    pipeline.catch_up()
    pipeline.run("ALTER TABLE t ADD x int")
    comment(pipeline, "the x", "x")
    pipeline.run("INSERT INTO t VALUES (2, 'a', 'b', 3)")
    pipeline.catch_up()
    assert comments(pipeline)["x"] == "the x"
    pipeline.run("ALTER TABLE t RENAME x TO y")
    comment(pipeline, "the y", "y")
    pipeline.run("INSERT INTO t VALUES (3, 'a', 'b', 3)")
    pipeline.catch_up()
    wanted: dict[str | None, str] = {None: "the table", "id": "the key", "y": "the y"}
    assert comments(pipeline) == wanted
    run_rebuild(pipeline.config, ["public.t"], spark=pipeline.spark)
    assert comments(pipeline) == wanted
    run_resync(pipeline.config, ["public.t"], spark=pipeline.spark)
    pipeline.catch_up()
    assert comments(pipeline) == wanted
    # a table that was created again has its own comments
    pipeline.run("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, v text, y int)")
    comment(pipeline, "the new v", "v")
    comment(pipeline, "the new y", "y")
    pipeline.run("INSERT INTO t VALUES (7, 'a', 1)")
    pipeline.catch_up()
    assert comments(pipeline) == {"v": "the new v", "y": "the new y"}
    pipeline.assert_equal("t")


def test_the_configuration_precedes_the_source(made: Pipeline) -> None:
    rule = TableRule("public.*", comment="configured", columns=ColumnRules(exclude=("w",)))
    pipeline = with_rules(made, rule)
    comment(pipeline, "an excluded column", "w")
    pipeline.catch_up()
    assert comments(pipeline) == {None: "configured", "id": "the key"}
    recorded = pipeline.frame("_pgdelta", "comments").collect()
    assert {row.column_name for row in recorded} == {None, "id"}
    comment(pipeline, "changed")
    pipeline.catch_up()
    assert comments(pipeline)[None] == "configured"


def test_comments_of_the_source_can_be_left_out(made: Pipeline) -> None:
    pipeline = with_rules(made, TableRule("public.*", source_comments=False))
    pipeline.catch_up()
    assert comments(pipeline) == {}
    assert not pipeline.path("_pgdelta", "comments").exists()


def test_comments_that_others_set_stay(made: Pipeline) -> None:
    pipeline = made
    pipeline.catch_up()
    path = pipeline.path("silver", "public", "t")
    pipeline.spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN v COMMENT 'by an analyst'")
    comment(pipeline, "the number", "id")
    pipeline.run("INSERT INTO t VALUES (2, 'c', 'd')")
    pipeline.catch_up()
    assert comments(pipeline) == {None: "the table", "id": "the number", "v": "by an analyst"}


def test_a_comment_arrives_while_the_jobs_run(made: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    made.catch_up()
    applier = Applier(made.spark, made.config)
    applier.run_continuously()
    applier.apply_pending()
    monkeypatch.setattr("pipeline.apply.applier.RETRY_SECONDS", 0.1)
    with continuous(made):
        comment(made, "set meanwhile", "v")

        def is_set() -> bool:
            applier.retry_when_due()
            return comments(made).get("v") == "set meanwhile"

        wait_until(is_set)
    applier.close()
    made.assert_equal("t")
