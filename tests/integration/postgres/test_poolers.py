"""Poolers that share sessions are refused, and nothing of the pipeline stays in their sessions."""

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pipeline.errors import SourceError
from pipeline.ingest.job import run_ingest
from pipeline.postgres.checks.source_checks import run_checks
from tests.support.postgres.pooler import TransactionPooler
from tests.support.servers import Database

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("major", [10, 18])
def test_a_pooler_of_transactions_is_refused_and_keeps_nothing(
    major: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    database: Database = request.getfixturevalue("old_database" if major == 10 else "database")
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    with TransactionPooler(int(conninfo_to_dict(database.conninfo)["port"] or 0)) as pooler:
        pooled = pooler.conninfo(database.conninfo)
        config = database.config(root=str(tmp_path), conninfo=pooled, route="sql")
        with psycopg.connect(pooled, autocommit=True) as application:
            before = application.execute("SELECT name, setting FROM pg_settings").fetchall()
            with pytest.raises(SourceError) as refused:
                run_ingest(config)
            assert str(refused.value) == (
                "source.conninfo leads to a pooler that shares sessions between its clients, by transaction"
                " or statement. The pipeline's locks and settings need sessions of their own. Connect to the"
                " server itself, or to a pool with pool_mode = session."
            )
            [check] = run_checks(config)
            assert (check.name, check.ok) == ("connection", False)
            assert f"{check.sentence} {check.fix}" == str(refused.value)
            after = application.execute("SELECT name, setting FROM pg_settings").fetchall()
            assert after == before
            assert not application.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").fetchall()
    direct = replace(config, source=replace(config.source, conninfo=database.conninfo))
    run_ingest(direct)
