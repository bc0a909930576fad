"""Tables that match are followed: ingest adds them to its own publication, and reports what others lack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pipeline.operate.run import run_both
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.publication import managed_comment
from pipeline.report.status import read_status
from pipeline.table_name import TableName
from tests.support.lives import FILL, TABLE
from tests.support.pipelines import BOTH_WRITERS, MakePipeline, Pipeline, succeeded, with_rules
from tests.support.running import continuous
from tests.support.servers import Database
from tests.support.threads import wait_until

if TYPE_CHECKING:
    from pipeline.silver.write.writer_choice import WriterSetting

A, B = TableName("public", "a"), TableName("public", "b")


@pytest.fixture(params=[pytest.param("old_database", marks=pytest.mark.slow), "database"])
def followed(request: pytest.FixtureRequest, make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline on PostgreSQL 10, then on 18, that created its publication for table a."""
    database: Database = request.getfixturevalue(request.param)
    pipeline = make_pipeline(copy="initial", database=database)
    pipeline.catch_up(TABLE.format("a"), FILL.format("a", 1, 20))
    return pipeline


@pytest.fixture
def foreign(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline whose publication was created by hand for table a."""
    pipeline = make_pipeline(copy="initial")
    pipeline.run(TABLE.format("a"), FILL.format("a", 1, 20))
    pipeline.catch_up(f"CREATE PUBLICATION {pipeline.config.source.publication} FOR TABLE a")
    return pipeline


@pytest.fixture
def modest(make_pipeline: MakePipeline, database: Database) -> Iterator[Pipeline]:
    """Give a pipeline whose role owns the database and table a, but no table that others create."""
    role = f"owner_{database.name}"
    database.run(f"CREATE ROLE {role} LOGIN REPLICATION", f"ALTER DATABASE {database.name} OWNER TO {role}")
    conninfo = database.server.conninfo_of(database.name, role)
    pipeline = make_pipeline(copy="initial", conninfo=conninfo)
    pipeline.catch_up(TABLE.format("a"), f"ALTER TABLE a OWNER TO {role}")
    yield pipeline
    database.run(f"ALTER DATABASE {database.name} OWNER TO postgres", f"REASSIGN OWNED BY {role} TO postgres")
    database.free_slot()
    database.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def published(pipeline: Pipeline) -> set[str]:
    rows = pipeline.database.run(
        f"SELECT tablename FROM pg_publication_tables WHERE pubname = '{pipeline.config.source.publication}'"
    )
    return {name for (name,) in rows}


def state(pipeline: Pipeline, name: TableName, *, is_offline: bool = False) -> tuple[str, str | None]:
    """Return the state and the sentence of a table in `pgdelta status`."""
    tables = read_status(pipeline.config, is_offline=is_offline).tables
    return next((table.state, table.sentence) for table in tables if table.name == name)


def check(pipeline: Pipeline) -> list[tuple[bool, str]]:
    found = run_checks(pipeline.config)
    return [(each.ok, each.sentence) for each in found if each.name == "published tables"]


def test_the_comment_of_the_publication_names_its_pipeline(followed: Pipeline) -> None:
    [(comment,)] = followed.database.run("SELECT obj_description(oid, 'pg_publication') FROM pg_publication")
    assert comment.startswith(f"managed by pgdelta, pipeline {followed.config.pipeline}; the slot ")


@pytest.mark.promise("followed tables", "tables that match")
def test_a_new_table_that_matches_joins(followed: Pipeline) -> None:
    followed.run(TABLE.format("b"), FILL.format("b", 1, 30), "CREATE SCHEMA x", "CREATE TABLE x.c (id int)")
    assert check(followed) == [
        (True, f"The next ingest adds 1 table to the publication {followed.database.name}: public.b.")
    ]
    assert state(followed, B)[0] == "unpublished"
    summary = succeeded(followed.ingest())
    assert "added to the publication: public.b" in summary.lines()
    assert summary.as_json()["published"] == [{"schema": "public", "table": "b"}]
    followed.catch_up("UPDATE b SET v = 'changed' WHERE id < 5")
    followed.assert_equal("a", "b")
    [(kind, sentence), *_] = followed.events("b")
    assert kind == "published"
    assert sentence.endswith("Its existing rows are copied.")
    assert published(followed) == {"a", "b"}
    assert "added to the publication" not in "\n".join(followed.ingest().lines())


@pytest.mark.promise("followed tables", "tables that match")
@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_a_table_that_was_dropped_and_created_again_joins_again(
    followed: Pipeline, writer: WriterSetting
) -> None:
    silver = replace(followed.config.silver, writer=writer)
    followed.config = replace(followed.config, silver=silver)
    followed.run("UPDATE a SET v = 'before' WHERE id = 1", "DROP TABLE a")
    followed.run("CREATE TABLE a (id int PRIMARY KEY, v text, more int)", "INSERT INTO a VALUES (1, 'x', 1)")
    followed.assert_follows("a")
    followed.catch_up("INSERT INTO a VALUES (2, 'y', 2)", "UPDATE a SET more = 3 WHERE id = 1")
    followed.assert_equal("a")


def test_a_table_that_is_away_for_some_runs_is_detached_and_comes_back(followed: Pipeline) -> None:
    followed.catch_up(TABLE.format("b"), FILL.format("b", 1, 30))
    followed.ingest("DELETE FROM b WHERE id > 10", "DROP TABLE b")
    followed.apply(records_status=True)
    rows = {row.table_name: row for row in followed.frame("_pgdelta", "status").collect()}
    assert (rows["a"].state, rows["b"].state) == ("current", "detached")
    assert rows["b"].sentence.startswith("public.b does not exist at the source any more")
    assert followed.frame("silver", "public", "b").count() == 10  # what was committed before the DROP
    assert state(followed, B)[0] == "detached"
    assert followed.ingest().exit_code(strict=True) == 0
    followed.catch_up(TABLE.format("b"), FILL.format("b", 5, 12))
    followed.assert_equal("a", "b")
    assert state(followed, B)[0] == "current"


def test_a_continuous_run_adds_a_table_and_prints_a_line(
    followed: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    with continuous(followed) as running:
        followed.run(TABLE.format("b"), FILL.format("b", 1, 30))
        wait_until(lambda: B in running.copied)
        followed.run("DROP TABLE a", TABLE.format("a"), FILL.format("a", 100, 110))
        wait_until(lambda: published(followed) == {"a", "b"} and A in running.copied)
        followed.run("DELETE FROM a WHERE id = 105")
    assert running.error is None
    followed.assert_follows("a", "b")


@pytest.mark.promise("followed tables")
def test_a_table_without_a_replica_identity_is_not_added_but_reported(followed: Pipeline) -> None:
    followed.run("CREATE TABLE b (id int, v text)", "INSERT INTO b VALUES (1, 'x')")
    for _ in range(2):  # the event once, the line each time
        summary = followed.ingest()
        assert (summary.exit_code(strict=False), summary.exit_code(strict=True)) == (0, 1)
        [line] = [line for line in summary.lines() if line.startswith("not published")]
        assert "public.b. It has no replica identity, so UPDATE and DELETE would fail on it" in line
        followed.run("UPDATE b SET v = 'still works'")
    [(kind, _)] = followed.events("b")
    assert kind == "unpublished"
    [(ok, sentence)] = check(followed)
    assert not ok
    assert "no replica identity" in sentence
    assert state(followed, B) == state(followed, B, is_offline=True)
    followed.apply(records_status=True)
    status = followed.frame("_pgdelta", "status").where("table_name = 'b'").collect()
    assert [(row.state, row.sentence) for row in status] == [state(followed, B)]
    followed.catch_up("ALTER TABLE b ADD PRIMARY KEY (id)")
    followed.assert_equal("a", "b")
    assert [kind for kind, _ in followed.events("b")] == ["unpublished", "published", "evolved"]


@pytest.mark.promise("followed tables")
def test_a_foreign_publication_is_unchanged_but_what_it_lacks_is_reported(foreign: Pipeline) -> None:
    summary = foreign.ingest(TABLE.format("b"), TABLE.format("c"))
    assert (summary.exit_code(strict=False), summary.exit_code(strict=True)) == (0, 1)
    [line] = [line for line in summary.lines() if line.startswith("not published")]
    assert line.startswith("not published: public.b, public.c. The publication ")
    assert "was not created by this pipeline, which does not alter it. Run ALTER PUBLICATION" in line
    assert published(foreign) == {"a"}
    assert summary.as_json()["unpublished"][0]["table"] == "b"
    assert state(foreign, B)[0] == "unpublished"
    # As it says. The events follow.
    foreign.catch_up(f"ALTER PUBLICATION {foreign.config.source.publication} ADD TABLE b", "DROP TABLE c")
    foreign.assert_equal("a", "b")
    assert [kind for kind, _ in foreign.events("b")] == ["unpublished", "published", "evolved"]
    assert [kind for kind, _ in foreign.events("c")] == ["unpublished", "detached"]
    assert state(foreign, B, is_offline=True)[0] == "current"


def test_a_comment_makes_a_publication_the_pipelines_own(foreign: Pipeline) -> None:
    name = foreign.config.source.publication
    foreign.run(f"COMMENT ON PUBLICATION {name} IS 'managed by pgdelta, pipeline other'", TABLE.format("b"))
    assert foreign.ingest().exit_code(strict=True) == 1
    comment = f"managed by pgdelta, pipeline {foreign.config.pipeline}"
    foreign.catch_up(f"COMMENT ON PUBLICATION {name} IS '{comment}'")
    foreign.assert_equal("a", "b")


def test_create_never_alters_nothing(followed: Pipeline) -> None:
    source = replace(
        followed.config.source, create=replace(followed.config.source.create, publication="never")
    )
    followed.config = replace(followed.config, source=source)
    summary = followed.ingest(TABLE.format("b"))
    assert summary.exit_code(strict=True) == 1
    assert any("source.create.publication is never" in line for line in summary.lines())
    assert published(followed) == {"a"}


def test_a_table_that_the_role_does_not_own_stops_no_other(modest: Pipeline) -> None:
    modest.run(TABLE.format("b"), TABLE.format("c"), f"ALTER TABLE c OWNER TO owner_{modest.database.name}")
    summary = modest.ingest()
    assert published(modest) == {"a", "c"}
    [line] = [line for line in summary.lines() if line.startswith("not published")]
    assert line.startswith(f"not published: public.b. The role owner_{modest.database.name} does not own it.")
    assert summary.exit_code(strict=True) == 1


@pytest.mark.promise("followed tables")
def test_nothing_is_removed_from_the_publication(followed: Pipeline) -> None:
    followed.catch_up(TABLE.format("b"))
    (rule,) = followed.config.tables
    narrow = with_rules(followed, replace(rule, source="public.a"))
    narrow.catch_up()
    assert published(followed) == {"a", "b"}


def test_a_locked_table_is_added_by_a_later_poll(followed: Pipeline) -> None:
    followed.run(TABLE.format("b"))
    with followed.database.connect() as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE b")
        summary = followed.ingest()
        [line] = [line for line in summary.lines() if line.startswith("not published")]
        assert line == "not published: public.b. Another session has it locked. Ingest tries again."
        other.execute("ROLLBACK")
    followed.assert_follows("b")


def test_without_copies_a_table_joins_with_what_changes_from_then_on(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="never")
    pipeline.catch_up(TABLE.format("a"))
    pipeline.ingest(TABLE.format("b"))
    pipeline.catch_up(FILL.format("b", 1, 5))
    pipeline.assert_equal("b")
    [(kind, sentence)] = pipeline.events("b")
    assert kind == "published"
    assert sentence.endswith("Its existing rows are not copied (source.copy is never).")


def test_partitions_that_their_root_or_each_other_cover_are_not_missing(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial")
    pipeline.catch_up(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE empty (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    )
    pipeline.run("CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (20)", "INSERT INTO p VALUES (11)")
    pipeline.assert_follows("p")
    assert not pipeline.ingest().published
    # A partition without an identity must not make the table fail at the source.
    pipeline.run(
        "CREATE TABLE q (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE q_1 PARTITION OF q FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE q_1 REPLICA IDENTITY NOTHING",
    )
    assert set(pipeline.ingest().unpublished or {}) == {("public", "q")}


@pytest.mark.slow
@pytest.mark.spark
def test_both_jobs_report_the_same(foreign: Pipeline) -> None:
    foreign.run(TABLE.format("b"))
    summary = run_both(foreign.config)
    assert summary.exit_code(strict=True) == 1
    assert json.loads(json.dumps(summary.as_json()))["ingest"]["unpublished"]


@pytest.mark.promise("followed tables")
def test_whole_schemas_are_followed_from_the_first_row_of_a_new_table(
    make_pipeline: MakePipeline, database: Database
) -> None:
    rules = ("public.*", "tenant_*.*")
    life = make_pipeline(*rules, copy="initial", create_publication="schemas", database=database)
    life.catch_up(TABLE.format("a"), FILL.format("a", 1, 20))
    summary = life.ingest(
        TABLE.format("b"),  # published at once
        FILL.format("b", 1, 30),
        "UPDATE b SET v = 'first' WHERE id < 9",
        "CREATE SCHEMA tenant_1",
        TABLE.format("tenant_1.c"),
        FILL.format("tenant_1.c", 1, 10),
        "CREATE SCHEMA tenant_2",
        "CREATE TABLE tenant_2.d (id int)",
        "INSERT INTO tenant_2.d VALUES (1)",
        TABLE.format("tenant_2.e"),
    )
    assert summary.published == [("tenant_1", "c"), ("tenant_2", "e")]
    assert summary.unpublished is not None
    assert list(summary.unpublished) == [("tenant_2", "d")]
    query = "SELECT pnnspid::regnamespace::text FROM pg_publication_namespace ORDER BY 1"
    assert database.run(query) == [("public",), ("tenant_1",)]
    life.run("UPDATE tenant_2.d SET id = 2", "ALTER TABLE tenant_2.d ADD PRIMARY KEY (id)")
    assert life.ingest().published == [("tenant_2", "d")]
    assert database.run(query) == [("public",), ("tenant_1",), ("tenant_2",)]
    life.catch_up("UPDATE tenant_1.c SET v = 'x' WHERE id = 3", "DELETE FROM tenant_2.d")
    life.assert_equal(
        "a", "b", *(TableName(f"tenant_{n}", name) for n, name in ((1, "c"), (2, "d"), (2, "e")))
    )


def test_a_role_that_may_not_add_schemas_adds_their_tables(
    make_pipeline: MakePipeline, database: Database
) -> None:
    role = f"owner_{database.name}"
    database.run(f"CREATE ROLE {role} LOGIN REPLICATION", f"ALTER DATABASE {database.name} OWNER TO {role}")
    conninfo = database.server.conninfo_of(database.name, role)
    life = make_pipeline("s.*", copy="initial", create_publication="schemas", conninfo=conninfo)
    publication, comment = life.config.source.publication, managed_comment(life.config.pipeline)
    life.catch_up(
        f"CREATE SCHEMA s AUTHORIZATION {role}",
        TABLE.format("s.a"),
        f"ALTER TABLE s.a OWNER TO {role}",
        f"CREATE PUBLICATION {publication} FOR TABLE s.a",
        f"ALTER PUBLICATION {publication} OWNER TO {role}",
        f"COMMENT ON PUBLICATION {publication} IS '{comment}'",
    )
    life.run(TABLE.format("s.b"), f"ALTER TABLE s.b OWNER TO {role}", FILL.format("s.b", 1, 5))
    assert life.ingest().published == [("s", "b")]
    life.assert_follows(TableName("s", "a"), TableName("s", "b"))
    database.run(f"ALTER DATABASE {database.name} OWNER TO postgres", f"REASSIGN OWNED BY {role} TO postgres")
    database.free_slot()
    database.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
