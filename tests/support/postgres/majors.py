"""Servers that know the binary format, one after the other: `any_database` is a fresh database of each.

`newest` has pgvector, the others what PostgreSQL comes with.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import Database, new_database, serve_database


@pytest.fixture(
    scope="module", params=["newest", *(pytest.param(m, marks=pytest.mark.slow) for m in ("18", "14"))]
)
def binary_source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """Give the first database of each server."""
    name: str = request.param
    major = int(name) if name.isdigit() else None
    yield from serve_database(tmp_path_factory.mktemp(f"binary-{name}"), major)


@pytest.fixture
def any_database(binary_source: Database) -> Iterator[Database]:
    """Give a fresh database of each server in turn."""
    yield from new_database(binary_source.server)
