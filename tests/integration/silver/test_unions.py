"""One silver table has the rows of a table and of those that inherit from it, as SELECT … FROM parent has."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.tables import TableRule
from pipeline.delta.table import LakeTable
from pipeline.ingest.job import run_ingest
from pipeline.operate.rebuild import run_rebuild
from pipeline.progress import IngestSummary
from pipeline.table_name import TableName
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import ServerOf, new_database, with_older

RULE = TableRule(
    "public.cities",
    target="cities",
    inheritance="union",
    descendants=("public.capitals", "public.cit?es_*"),
)
LONE = TableName("public", "cities_lone")
NO_DESCENDANT = (
    "It matches descendants of the rule of public.cities, and does not inherit from that table. For a silver"
    " table of its own, give it a rule before that one."
)
FAMILY = (
    "CREATE TABLE cities (id int PRIMARY KEY, name text)",
    "CREATE TABLE capitals (state text, PRIMARY KEY (id)) INHERITS (cities)",
    "CREATE TABLE other (id int, rank int)",
    "CREATE TABLE cities_seats (PRIMARY KEY (id)) INHERITS (capitals, other)",
    "CREATE TABLE cities_lone (LIKE cities, PRIMARY KEY (id))",
    "INSERT INTO cities VALUES (1, 'own'), (2, 'own')",
    "INSERT INTO capitals VALUES (1, 'capital', 's'), (3, 'capital', 's')",
    "INSERT INTO cities_seats VALUES (1, 'seat', 's', 7)",
    "INSERT INTO cities_lone VALUES (1, 'alone')",
)


@pytest.fixture(params=with_older(13))
def pipeline(request: pytest.FixtureRequest, server_of: ServerOf, tmp_path: Path) -> Iterator[NativePipeline]:
    """Give a pipeline with a union, in a database of each version."""
    for database in new_database(server_of(request.param)):
        database.run(*FAMILY)
        config = database.config(root=str(tmp_path / "lake"), create_publication="configured")
        config = replace(config, silver=replace(config.silver, writer="native", resync="auto"))
        config = replace(config, source=replace(config.source, copy="initial"), tables=(RULE,))
        yield NativePipeline(database, config)


def catch_up(pipeline: NativePipeline, *statements: str) -> IngestSummary:
    """Run statements, and capture and apply what they did, with what the catalog has of them."""
    pipeline.run(*statements)
    for _ in range(2):
        summary = run_ingest(pipeline.config)
        assert pipeline.apply().exit_code(strict=True) == 0
    return summary


def assert_equal(pipeline: NativePipeline, columns: str = "id, name") -> None:
    """Require that silver has the rows of SELECT … FROM parent, each with its table."""
    root, name = pipeline.config.storage.root, pipeline.config.pipeline
    wanted = Counter(pipeline.database.run(f"SELECT tableoid::regclass::text, {columns} FROM cities"))
    shown = LakeTable(f"{root}/silver/cities").rows(["_source", *columns.split(", ")])
    found = Counter(tuple(row.values()) for row in shown.to_pylist())
    assert found == Counter({(f"{name}.public.{row[0]}", *row[1:]): n for row, n in wanted.items()})


@pytest.mark.promise("shared tables")
def test_a_union_follows_what_select_shows(pipeline: NativePipeline) -> None:
    ingested = catch_up(pipeline)
    assert_equal(pipeline)
    fields = LakeTable(f"{pipeline.config.storage.root}/silver/cities").schema().fields
    names = [each.name for each in fields]
    assert names == ["_source", "id", "name", "_commit_lsn", "_commit_time"]
    assert (ingested.partial, ingested.unfollowed) == ({}, {})
    assert str(ingested.passed_over[LONE]) == NO_DESCENDANT

    # equal keys do no harm; a table that is created, and one that exists, join
    catch_up(
        pipeline,
        "UPDATE cities SET name = name || ' all' WHERE id = 1",
        "UPDATE ONLY cities SET id = 9 WHERE id = 2",
        "DELETE FROM ONLY capitals WHERE id = 3",
        "INSERT INTO cities_seats VALUES (3, 'seat', 's', 8)",
        "CREATE TABLE cities_new (area int, PRIMARY KEY (id)) INHERITS (cities)",
        "INSERT INTO cities_new VALUES (1, 'new', 5)",
        "ALTER TABLE cities_lone INHERIT cities",
        "UPDATE cities_lone SET name = 'joined'",
    )
    assert_equal(pipeline)

    # tables that leave, after their last changes
    ingested = catch_up(
        pipeline,
        "UPDATE cities SET name = 'every'",
        "ALTER TABLE cities_lone NO INHERIT cities",
        "INSERT INTO cities_lone VALUES (6, 'alone')",
        "DROP TABLE cities_new",
        "INSERT INTO cities VALUES (6, 'x')",
    )
    assert_equal(pipeline)
    assert str(ingested.unfollowed[LONE]) == NO_DESCENDANT  # it is published
    catch_up(pipeline, "ALTER TABLE cities_lone INHERIT cities")
    assert_equal(pipeline)

    # TRUNCATE of one table, of a part of the union, and of all
    catch_up(pipeline, "TRUNCATE ONLY cities", "INSERT INTO cities VALUES (7, 'after')")
    assert_equal(pipeline)
    catch_up(pipeline, "TRUNCATE capitals", "INSERT INTO capitals VALUES (7, 'after')")
    assert_equal(pipeline)
    catch_up(pipeline, "TRUNCATE cities", "INSERT INTO cities_lone VALUES (1, 'last')")
    assert_equal(pipeline)

    # a table that no glob names, and one that cannot be published
    ingested = catch_up(
        pipeline,
        "CREATE TABLE unnamed (PRIMARY KEY (id)) INHERITS (cities)",
        "CREATE TABLE cities_keyless () INHERITS (cities)",
    )
    assert ingested.partial == {
        TableName("public", "cities"): "Silver lacks the rows of tables that inherit from it: public.unnamed."
        " Name them in descendants of its rule, and let no rule before it match them. Silver lacks the rows"
        " of tables that inherit from it and are not followed: public.cities_keyless. pgdelta status says"
        " why."
    }


@pytest.mark.promise("shared tables")
def test_a_union_follows_the_types_of_its_parent(pipeline: NativePipeline) -> None:
    pipeline.set_rules(replace(RULE, type_changes="rebuild"))
    catch_up(pipeline, "ALTER TABLE cities ADD COLUMN n int DEFAULT 1")
    for kind in ("bigint", "text"):  # none is held, though the types of the tables change one after another
        catch_up(pipeline, f"ALTER TABLE cities ALTER n TYPE {kind}", "UPDATE cities SET id = id + 10")
        assert_equal(pipeline, "id, name, n")
    events = [each for name in ("cities", "capitals", "cities_seats") for each in pipeline.events(name)]
    assert "held" not in {kind for kind, _ in events}


@pytest.mark.slow
def test_a_union_follows_the_columns_of_its_parent(pipeline: NativePipeline) -> None:
    catch_up(pipeline)
    catch_up(
        pipeline,
        "ALTER TABLE cities ADD COLUMN extra int DEFAULT 3",
        "ALTER TABLE capitals ADD COLUMN own int DEFAULT 3",
        "INSERT INTO capitals (id, name, extra) VALUES (20, 'a', 4)",
    )
    assert_equal(pipeline, "id, name, extra")
    catch_up(pipeline, "ALTER TABLE cities RENAME COLUMN name TO title")
    assert_equal(pipeline, "id, title, extra")
    # a table that joins has other names in its files
    pipeline.run("ALTER TABLE cities_lone RENAME COLUMN name TO title")
    pipeline.run("ALTER TABLE cities_lone ADD COLUMN extra int", "ALTER TABLE cities_lone INHERIT cities")
    for _ in range(2):
        run_ingest(pipeline.config)
        pipeline.apply()
    held = pipeline.events("cities_lone")[-1][1]
    assert held.endswith(
        f"Its column title has another name in its files than in those of {pipeline.config.pipeline}.public"
        ".cities. Run pgdelta rebuild for the tables of all sources."
    )
    run_rebuild(pipeline.config)
    catch_up(pipeline)
    assert_equal(pipeline, "id, title, extra")
