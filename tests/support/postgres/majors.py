"""Servers that know the binary format, one after the other: `any_database` is a fresh database of each.

`newest` has pgvector, the others what PostgreSQL comes with.
"""

from collections.abc import Iterator

import pytest

from pipeline.postgres.embedded import EmbeddedServer
from tests.support.servers import Database, ServerOf, new_database


@pytest.fixture(params=["newest", *(pytest.param(major, marks=pytest.mark.slow) for major in (18, 14))])
def any_database(
    request: pytest.FixtureRequest, server: EmbeddedServer, server_of: ServerOf
) -> Iterator[Database]:
    """Give a fresh database of each server in turn."""
    yield from new_database(server if request.param == "newest" else server_of(request.param))
