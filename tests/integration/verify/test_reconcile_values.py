"""Every type of PostgreSQL 18 with its extreme values is written alike by the server and by both engines."""

from pathlib import Path

import pytest

from pipeline.metadata.reconciliations import EQUAL
from pipeline.verify.reconcile import run_reconcile
from tests.support.captures.typed import install
from tests.support.pipelines import Pipeline, with_writer
from tests.support.servers import Database, MakeServer
from tests.support.values.run import make, tables_of, write
from tests.support.values.table import BAGS, FAMILIES, NEWEST_FAMILIES
from tests.support.values.tables import PHASES

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.promise("reconcile")
@pytest.mark.parametrize("with_contrib", [True, False])
def test_all_values_are_equal_and_all_columns_compared(
    make_server: MakeServer, tmp_path: Path, with_contrib: bool
) -> None:
    if with_contrib:
        server, families, bags = make_server(major=18), FAMILIES, BAGS
    else:
        server, families, bags = make_server(), NEWEST_FAMILIES, {}
    database = Database.of(server)
    database.run("CREATE DATABASE typed_values")
    database = Database(server, "typed_values", server.conninfo_of("typed_values"))
    with database.connect() as source:
        install(source)
        tables = tables_of(source, families, bags)
        for table in tables:
            table.create(source)
        pipeline = make(database, source, str(tmp_path), "text", tables, tables)
        pipeline.ingest()
        write(source, tables, PHASES[0])
        pipeline.catch_up()
        # all of the second phase is in bronze only
        write(source, tables, PHASES[1])
        assert faults(with_writer(pipeline, "auto"), len(tables)) == []
        assert faults(with_writer(pipeline, "spark"), len(tables)) == []


def faults(pipeline: Pipeline, count: int) -> list[str]:
    """Return what is said of so many tables that are not equal, or not compared in all of their columns."""
    found = run_reconcile(pipeline.config, runs=True)
    assert len(found.verdicts) == count
    return [
        f"{verdict.name[1]}: {verdict.verdict} {verdict.columns} {verdict.sentence} {dict(verdict.left_out)}"
        for verdict in found.verdicts
        if verdict.verdict != EQUAL or verdict.left_out
    ]
