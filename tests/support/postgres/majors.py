"""Servers that know the binary format, one after the other: `any_database` is a fresh database of each.

`newest` has pgvector, the others what PostgreSQL comes with.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.postgres.binaries import binaries_of
from tests.support.postgres.templates import start_server
from tests.support.servers import Database, drop_database

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["newest", "18", "14"])
def binary_source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """Give the first database of each server."""
    name: str = request.param
    binaries = binaries_of(int(name)) if name.isdigit() else None
    server = start_server(tmp_path_factory.mktemp(f"binary-{name}"), binaries=binaries)
    yield Database(server, "postgres", server.conninfo)
    server.stop()


@pytest.fixture
def any_database(binary_source: Database) -> Iterator[Database]:
    """Give a fresh database of each server in turn."""
    name = f"binary_{next(_numbers)}"
    binary_source.run(f"CREATE DATABASE {name}")
    yield Database(binary_source.server, name, binary_source.server.conninfo_of(name))
    drop_database(binary_source.server, name)
