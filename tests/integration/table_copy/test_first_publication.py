"""The publication of a first run: tables on which UPDATE and DELETE would fail are left out, and named."""

from dataclasses import replace

import pytest

from pipeline.errors import SourceError
from pipeline.postgres.checks.source_checks import run_checks
from tests.support.lives import FILL, TABLE
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.servers import Database, MakeServer

# table → the first major that has it, the statement that makes it, the one that gives it an identity
UNSAFE = {
    "bare": (10, "CREATE TABLE bare (id int, v text)", "ALTER TABLE bare REPLICA IDENTITY FULL"),
    "none": (
        10,
        "CREATE TABLE none (id int PRIMARY KEY, v text); ALTER TABLE none REPLICA IDENTITY NOTHING",
        "ALTER TABLE none REPLICA IDENTITY DEFAULT",
    ),
    "late": (
        10,
        "CREATE TABLE late (id int PRIMARY KEY DEFERRABLE, v text)",
        "ALTER TABLE late DROP CONSTRAINT late_pkey, ADD PRIMARY KEY (id)",
    ),
    "root": (
        13,
        "CREATE TABLE root (id int, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE safe_leaf PARTITION OF root (PRIMARY KEY (id)) FOR VALUES FROM (100) TO (200)",
        "ALTER TABLE root ADD PRIMARY KEY (id)",
    ),
    "made": (
        18,
        "CREATE TABLE made (id int, v text, k int GENERATED ALWAYS AS (id + 1) STORED PRIMARY KEY)",
        "ALTER TABLE made DROP CONSTRAINT made_pkey, ADD PRIMARY KEY (id)",
    ),
    "virtual": (
        18,
        "CREATE TABLE virtual (id int PRIMARY KEY, v text, k int GENERATED ALWAYS AS (id + 1) VIRTUAL);"
        "ALTER TABLE virtual REPLICA IDENTITY FULL",
        "ALTER TABLE virtual REPLICA IDENTITY DEFAULT",
    ),
}


def planned(pipeline: Pipeline, plan: str) -> Pipeline:
    source = pipeline.config.source
    source = replace(source, create=replace(source.create, publication=plan))  # type: ignore[arg-type]
    pipeline.config = replace(pipeline.config, source=source)
    return pipeline


def unpublished_checks(pipeline: Pipeline) -> list[str]:
    return [c.sentence for c in run_checks(pipeline.config) if c.name == "published tables" and not c.ok]


@pytest.mark.promise("followed tables")
@pytest.mark.sample(1)
@pytest.mark.parametrize(("major", "plan"), [(10, "all"), (15, "schemas"), (18, "configured")])
def test_the_first_run_leaves_out_tables_whose_updates_would_fail(
    database: Database, make_server: MakeServer, make_pipeline: MakePipeline, major: int, plan: str
) -> None:
    if major != 18:
        server = make_server(major=major)
        database = Database.of(server)
    pipeline = planned(make_pipeline(copy="initial", database=database), plan)
    unsafe = {name: each for name, each in UNSAFE.items() if each[0] <= major}
    for _, create, _ in unsafe.values():
        pipeline.run(*create.split(";"))
    pipeline.run(TABLE.format("a"), FILL.format("a", 1, 5))
    pipeline.run(*(f"INSERT INTO {name} VALUES (1, 'x')" for name in unsafe))
    expected = set(unsafe)
    named = " ".join(unpublished_checks(pipeline))
    assert all(f"public.{name}" in named for name in expected)
    assert "public.a" not in named
    pipeline.catch_up(unpublished=expected)
    for name in unsafe:
        pipeline.run(f"UPDATE {name} SET v = 'y'", f"DELETE FROM {name}")
        pipeline.run(f"INSERT INTO {name} VALUES (2, 'z')")
    [(kind, sentence)] = pipeline.events("bare")
    assert kind == "unpublished"
    assert "It has no replica identity, so UPDATE and DELETE would fail on it at the source." in sentence
    assert f'ALTER PUBLICATION "{pipeline.config.source.publication}" ADD TABLE' in sentence
    pipeline.catch_up(*(mend for _, _, mend in unsafe.values()), "UPDATE a SET v = 'changed' WHERE id = 1")
    pipeline.catch_up(*(f"UPDATE {name} SET v = 'followed'" for name in unsafe))
    pipeline.assert_equal("a", *(expected - {"made", "virtual"}))
    assert pipeline.events("bare")[1][0] == "published"


def test_a_publication_of_no_safe_table_starts_empty(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial")
    pipeline.run("CREATE TABLE bare (id int)")
    [sentence] = [c.sentence for c in run_checks(pipeline.config) if c.name == "publication"]
    assert sentence.endswith("will be created for no table yet.")
    pipeline.catch_up(unpublished={"bare"})
    pipeline.run("INSERT INTO bare VALUES (1)", "UPDATE bare SET id = 2")
    pipeline.catch_up("ALTER TABLE bare ADD PRIMARY KEY (id)")
    pipeline.assert_equal("bare")


def test_a_first_run_that_a_locked_table_delays_ends_with_a_sentence(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial")
    pipeline.run(TABLE.format("a"))
    with pipeline.database.connect() as other, other.transaction():
        other.execute("LOCK TABLE a IN SHARE UPDATE EXCLUSIVE MODE")
        with pytest.raises(SourceError, match="another session has locked a table that it is to have"):
            pipeline.ingest()
    pipeline.catch_up()
