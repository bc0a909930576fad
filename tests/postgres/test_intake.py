"""What intake makes of a server that sends what bronze has already, and of a catalog that nobody can ask."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pipeline.bronze.spool import Spool
from pipeline.errors import SourceError
from pipeline.ingest.intake import Intake
from pipeline.postgres.connection import Connection, connect
from pipeline.protocol.lsn import INVALID
from tests.bronze.events import rows_of
from tests.postgres.streams import prepare, read_through, start
from tests.servers import Database

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("end", ["lost", "closed"])
def test_facts_are_unknown_while_nobody_can_be_asked_and_known_again_afterwards(
    database: Database, tmp_path: Path, end: str
) -> None:
    database.run(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("a", "b", "c")))
    config = database.config(create_publication="all")
    prepare(config)
    database.run(*(f"INSERT INTO {name} VALUES (1)" for name in ("a", "b", "c")))
    with closing(start(config)) as stream:
        messages = read_through(stream, database.flush_lsn())
    tries = 0

    def reopen(conninfo: str) -> Connection:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise SourceError("The source does not answer.")
        return connect(conninfo)

    spool = Spool(tmp_path)
    connection = connect(database.conninfo)
    with closing(Intake(spool, connection, database.conninfo, set(), INVALID, opens=reopen)) as intake:
        if end == "lost":
            database.run(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
        else:
            connection.close()
        intake.take(messages, 1)
        facts = {version.table_name: version.facts for version in intake.take_versions()}
    assert {name: found is not None for name, found in facts.items()} == {"a": False, "b": False, "c": True}
    assert [row["table_name"] for row in rows_of(spool.seal())] == ["a", "b", "c"]
