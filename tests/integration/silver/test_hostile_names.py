"""Schemas, tables, columns and values that try to be SQL, paths or variables arrive as they are."""

import pytest
from psycopg import sql

from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.pipelines import MakePipeline

NAMES = (
    "`; DROP TABLE victim; -- '\" \\",
    "../../${env:HOME} $(id) {} %s",
    "two\nlines\t*?[x]",
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.promise("names are never SQL")
def test_hostile_names_and_values_arrive_as_they_are(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline("*.*", create_publication="all", publication=NAMES[0], copy="initial")
    statements = (
        "CREATE SCHEMA {name}",
        "CREATE TABLE {name}.{name} ({name} text PRIMARY KEY, {more} text)",
        "INSERT INTO {name}.{name} VALUES ({value}, {value}), ('moves', {value}), ('goes', NULL)",
    )
    changes = (
        "ALTER TABLE {name}.{name} ADD {last} text DEFAULT {value}",
        "UPDATE {name}.{name} SET {more} = {value} || 'x' WHERE {name} = {value}",
        "UPDATE {name}.{name} SET {name} = {value} || 'y' WHERE {name} = 'moves'",
        "DELETE FROM {name}.{name} WHERE {name} = 'goes'",
    )
    for step in (statements, changes):
        for name in NAMES:
            parts = {
                "name": sql.Identifier(name),
                "more": sql.Identifier(f"{name} 2"),
                "last": sql.Identifier(f"{name} 3"),
                "value": sql.Literal(name),
            }
            for statement in step:
                pipeline.source.execute(sql.SQL(statement).format(**parts))
        pipeline.catch_up()
    tables = [TableName(name, name) for name in NAMES]
    oracle.assert_silver_equals_source(pipeline.source, pipeline.spark, pipeline.root, tables)
    # nothing lies anywhere else
    assert {path.name for path in pipeline.path().iterdir()} == {"bronze", "silver", "_pgdelta"}
    assert len(list(pipeline.path("silver").iterdir())) == len(NAMES)
    assert {path.name for path in pipeline.path("..").resolve().iterdir()} == {"lake"}
