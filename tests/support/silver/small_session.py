"""Sessions for a few rows: of DuckDB, and of Spark, where compiling code costs more than the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.sql_session import SqlSession

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def small(spark: SparkSession) -> SparkSession:
    from pipeline.delta.spark.session import new_session

    session = new_session(spark)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return session


ENGINES = [pytest.param("spark", marks=pytest.mark.spark), "duckdb", "many"]


@pytest.fixture
def session() -> Iterator[DuckSql]:
    """A session of DuckDB."""
    session = DuckSql()
    yield session
    session.close()


@pytest.fixture(params=ENGINES)
def sql_session(request: pytest.FixtureRequest) -> Iterator[SqlSession]:
    """A session of each engine, and one of DuckDB as for many changes, for relations of a few rows."""
    if request.param in ("duckdb", "many"):
        with closing(DuckSql()) as duck:  # not the fixture: a module may have a `session` of its own
            duck.has_many = request.param == "many"
            yield duck
        return
    from pipeline.silver.fold.spark_sql import SparkSql

    spark_session = SparkSql(request.getfixturevalue("small"))
    yield spark_session
    spark_session.clear()
