"""Live servers for tests marked `postgres`: one server a session, one database a test.

`database` is a fresh database of PostgreSQL 18 whose slots are dropped with it; `old_database` one of
PostgreSQL 10. `make_server` starts a server of its own, for tests that change its settings or stop it.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pipeline.config.config import Config, Create, Silver, Source, Storage
from pipeline.config.tables import TableRule
from pipeline.postgres.embedded import EmbeddedServer, write_settings
from pipeline.protocol.lsn import LSN
from pipeline.silver.write.writer_choice import WriterSetting
from tests.support.postgres.binaries import binaries_of
from tests.support.postgres.templates import start_server
from tests.support.threads import wait_until

_numbers = itertools.count(1)
LITTLE_WAL = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
"""Settings of a server that soon removes what its slots have not read."""
WRITERS: tuple[WriterSetting, ...] = ("auto", "spark", "native")


@dataclass(frozen=True, slots=True)
class Database:
    """A database of a live server, and names for a publication and a slot that nothing else uses."""

    server: EmbeddedServer
    name: str
    conninfo: str

    @classmethod
    def of(cls, server: EmbeddedServer) -> "Database":
        """Return the database postgres of a server."""
        return cls(server, "postgres", server.conninfo)

    def connect(self) -> psycopg.Connection[Any]:
        """Open an ordinary session of the superuser in autocommit mode."""
        return psycopg.connect(self.conninfo, autocommit=True, client_encoding="UTF8")

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each in its own transaction, and return the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        with self.connect() as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def free_slot(self) -> None:
        """Wait until the slots are free, which is a moment after their readers closed their sessions."""
        query = "SELECT FROM pg_replication_slots WHERE database = current_database() AND active"
        wait_until(lambda: not self.run(query), 120, f"a slot of {self.name} is still read")

    @property
    def server_major(self) -> int:
        """The server's major version."""
        with self.connect() as connection:
            return connection.info.server_version // 10000

    def publish_all(self, publication: str) -> None:
        """Create a publication of all tables unless there is one."""
        with suppress(psycopg.errors.DuplicateObject, psycopg.errors.ReadOnlySqlTransaction):
            self.run(f'CREATE PUBLICATION "{publication}" FOR ALL TABLES')

    def flush_lsn(self) -> LSN:
        """Return the end of the WAL that is on disk."""
        return LSN.parse(self.run("SELECT pg_current_wal_flush_lsn()::text")[0][0])

    def config(self, *rules: str, root: str = "./lake", **source: Any) -> Config:
        """Return a configuration of this database; publication and slot are named like the database.

        Tests that are not about copies do without. A keyword `create_<key>` sets `source.create.<key>`;
        `options` are those of the storage. With `create_publication="all"`, the publication exists already:
        ingest itself would leave out tables without a replica identity.
        """
        if source.get("create_publication") == "all":
            self.publish_all(source.get("publication", self.name))
        options = source.pop("options", {})
        create = {key: source.pop(key) for key in list(source) if key.startswith("create_")}
        return Config(
            pipeline=self.name,
            source=Source(
                **{
                    "conninfo": self.conninfo,
                    "publication": self.name,
                    "slot": self.name,
                    "copy": "never",
                    "create": Create(**{key.removeprefix("create_"): each for key, each in create.items()}),
                    **source,
                }
            ),
            storage=Storage(root, options),
            silver=Silver(writer=writer_of_run()),
            tables=tuple(TableRule(rule) for rule in rules or ("public.*",)),
            path="pipeline.yaml",
        )


def writer_of_run() -> WriterSetting:
    """Return the writer of silver that PGDELTA_WRITER asks for, or that of the default configuration."""
    asked = os.environ.get("PGDELTA_WRITER", "") or Silver().writer
    return next(each for each in WRITERS if each == asked)


MakeServer = Callable[..., EmbeddedServer]
ServerOf = Callable[[int], EmbeddedServer]


def restart(server: EmbeddedServer, settings: Mapping[str, str]) -> None:
    """Stop the server and start it again with these settings."""
    server.stop()
    write_settings(server.data, settings)
    server.start()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Give the session's PostgreSQL 18."""
    yield from serve(tmp_path_factory.mktemp("postgres-18"))


@pytest.fixture(scope="session")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerOf]:
    """Give a function from a major to the session's server of it, with what PostgreSQL comes with.

    It starts when it is first needed; `server` has pgvector only.
    """
    with ExitStack() as started:

        @cache
        def of(major: int) -> EmbeddedServer:
            folder = tmp_path_factory.mktemp(f"postgres-{major}")
            return started.enter_context(contextmanager(serve)(folder, major))

        yield of


@pytest.fixture(scope="session")
def old_server(server_of: ServerOf) -> EmbeddedServer:
    """Give the session's PostgreSQL 10."""
    return server_of(10)


@pytest.fixture
def database(server: EmbeddedServer) -> Iterator[Database]:
    """Give a fresh database of PostgreSQL 18."""
    yield from new_database(server)


@pytest.fixture
def old_database(old_server: EmbeddedServer) -> Iterator[Database]:
    """Give a fresh database of PostgreSQL 10."""
    yield from new_database(old_server)


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Give a function that starts a server with settings; it is stopped after the test."""
    servers: list[EmbeddedServer] = []

    def make(
        settings: Mapping[str, str] | None = None, *, major: int | None = None, binaries: Path | None = None
    ) -> EmbeddedServer:
        if major is not None:
            binaries = binaries_of(major)
        servers.append(
            start_server(tmp_path / f"server-{len(servers)}", binaries=binaries, settings=settings)
        )
        return servers[-1]

    yield make
    for started in servers:
        started.stop()


def serve(
    directory: Path, major: int | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[EmbeddedServer]:
    """Give a server of a major version, by default the newest, and stop it afterwards."""
    binaries = None if major is None else binaries_of(major)
    started = start_server(directory, binaries=binaries, settings=settings)
    yield started
    started.stop()


def with_older(*majors: int) -> list[Any]:
    """Return parameters of a fixture: older majors, which only the slow tier runs, and 18."""
    return [*(pytest.param(major, marks=pytest.mark.slow) for major in majors), 18]


def database_of_each(*older: int) -> Callable[..., Iterator[Database]]:
    """Return a fixture `database` of 18, and in the slow tier of older majors."""

    @pytest.fixture(name="database", params=with_older(*older))
    def of_each(request: pytest.FixtureRequest, server_of: ServerOf) -> Iterator[Database]:
        yield from new_database(server_of(request.param))

    return of_each


def new_database(started: EmbeddedServer) -> Iterator[Database]:
    """Give a fresh database of a server, and drop it afterwards."""
    name = f"shop_{next(_numbers)}"
    with psycopg.connect(started.conninfo, autocommit=True) as connection:
        # what versions before 15 do; a copy through the WAL takes longer
        strategy = "STRATEGY file_copy" if connection.info.server_version >= 150000 else ""
        connection.execute(sql.SQL(f"CREATE DATABASE {{}} {strategy}").format(sql.Identifier(name)))
    yield Database(started, name, started.conninfo_of(name))
    drop_database(started, name)


def drop_database(started: EmbeddedServer, name: str) -> None:
    """End the sessions of a database and drop it with its slots."""
    with psycopg.connect(started.conninfo, autocommit=True) as connection:
        sessions = "SELECT pid FROM pg_stat_activity WHERE datname = %s"
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({sessions}) s", (name,))
        wait_until(
            lambda: not connection.execute(sessions, (name,)).fetchall(),
            120,
            f"a session of {name} has not ended",
        )
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
            (name,),
        )
        connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
