"""What the decoder makes of a server that sends what bronze has already, and of a catalog that is away."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.bronze.spool import Spool
from pipeline.config.config import Config, Protocol
from pipeline.errors import SourceError
from pipeline.ingest.decoder import Decoder
from pipeline.postgres.connection import Connection, connect, read_flush_lsn
from pipeline.protocol.lsn import LSN
from tests.support.bronze.events import rows_of
from tests.support.postgres.streams import both_routes, end_lsns, prepare, read_all, read_through, start
from tests.support.servers import Database

MANY = "INSERT INTO item SELECT g, repeat('x', 100) FROM generate_series(2, 1000) g"
ONE = "INSERT INTO item VALUES ({}, 'one')"


def stream_config(database: Database, *, two_phase: bool = False) -> Config:
    """Return the configuration of a slot to which all but small transactions are streamed."""
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY, v text)",
        f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'",
    )
    config = database.config(protocol=Protocol(streaming="on", two_phase=two_phase))
    prepare(config)
    return config


def land(config: Config, route: str, directory: Path, position: LSN) -> list[dict[str, Any]]:
    """Return the rows that the decoder stages of what the slot holds, each with the names of its columns."""
    options = {"start_lsn": position} if route == "walsender" else {}
    conninfo = config.source.conninfo
    spool = Spool(directory, position)
    with closing(start(config, route, **options)) as stream, connect(conninfo) as connection:
        messages = read_through(stream, read_flush_lsn(connection))
        Decoder(spool, connection, conninfo).decode(messages, stream.session)
    staged = spool.seal()
    assert staged is not None
    names = {version.id: [column.name for column in version.relation.columns] for version in staged.versions}
    return [row | {"columns": names[row["relation_version"]]} for row in rows_of(staged)]


@pytest.mark.promise("a slot behind bronze")
@both_routes
@pytest.mark.parametrize("is_known", [False, True], ids=["new", "described before"])
def test_what_a_stream_described_holds_though_bronze_has_it_already(
    database: Database, tmp_path: Path, route: str, is_known: bool
) -> None:
    config = stream_config(database)
    if is_known:
        database.run(ONE.format(1))
    database.run("ALTER TABLE item RENAME v TO w", MANY)
    end = end_lsns(read_all(database, config, "walsender"))[-1]
    database.run(ONE.format(2000))
    [row] = land(config, route, tmp_path, end)
    assert (row["new"], row["columns"]) == (["2000", "one"], ["id", "w"])


@both_routes
def test_a_stream_that_is_prepared_and_comes_again_describes_nothing(
    database: Database, tmp_path: Path, route: str
) -> None:
    config = stream_config(database, two_phase=True)
    database.run("BEGIN", MANY, "PREPARE TRANSACTION 'p'")
    position = database.flush_lsn()
    database.run("COMMIT PREPARED 'p'", ONE.format(2000))
    [row] = land(config, route, tmp_path, position)
    assert (row["new"], row["columns"]) == (["2000", "one"], ["id", "v"])


@pytest.mark.parametrize("end", ["lost", "closed"])
def test_relations_are_unknown_only_while_the_catalog_is_unavailable(
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
    with closing(Decoder(spool, connection, database.conninfo, connect=reopen)) as decoder:
        if end == "lost":
            database.run(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
        else:
            connection.close()
        decoder.decode(messages, 1)
    staged = spool.seal()
    assert staged is not None
    facts = {version.table_name: version.catalog for version in staged.versions}
    assert {name: found is not None for name, found in facts.items()} == {"a": False, "b": False, "c": True}
    assert [row["table_name"] for row in rows_of(staged)] == ["a", "b", "c"]
