"""Random lives of a source, by each major, route and trigger: silver equals it, or an event says what to do.

A seed is a program of SQL, which a failure prints. The seed of the run draws those of the slow tier; that
of a failure is repeated by `life(…, make_program(SEED, MAJOR))`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import pytest

from pipeline.postgres.embedded import EmbeddedServer
from pipeline.postgres.replication.options import Route
from tests.support.seeds import seed_of_run
from tests.support.servers import new_database, serve
from tests.support.source_life.living import GeneratorError, Living
from tests.support.source_life.programs import Program, make_program

pytestmark = pytest.mark.postgres

ROUTES: tuple[Route, ...] = ("walsender", "sql")
CASES = [(major, route, goes_on) for goes_on, route, major in product((False, True), ROUTES, (18, 13, 15))]
PARTS, LIVES = 20, 25  # of the slow tier

ServerOf = Callable[[int], EmbeddedServer]


@pytest.fixture(scope="module")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerOf]:
    """Give a function that returns the module's server of a major."""
    servers: dict[int, EmbeddedServer] = {}
    with ExitStack() as stack:

        def find(major: int) -> EmbeddedServer:
            if major not in servers:
                folder = tmp_path_factory.mktemp(f"life-{major}")
                servers[major] = stack.enter_context(contextmanager(serve)(folder, major))
            return servers[major]

        yield find


@pytest.mark.promise("any schema change")
@pytest.mark.parametrize(
    ("seed", "route", "goes_on"), [(395, "walsender", False), (101, "sql", False), (301, "sql", True)]
)
def test_silver_follows_a_random_source(
    server: EmbeddedServer, tmp_path: Path, seed: int, route: Route, goes_on: bool
) -> None:
    assert live(server, tmp_path, make_program(seed, 18, rounds=2), route, is_continuous=goes_on) is None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_silver_follows_five_hundred_random_sources(server_of: ServerOf, tmp_path: Path, part: int) -> None:
    first = seed_of_run() * PARTS * LIVES + part * LIVES
    failures = []
    for seed in range(first, first + LIVES):
        major, route, goes_on = CASES[seed % len(CASES)]
        folder = tmp_path / str(seed)
        folder.mkdir()
        program = make_program(seed, major)
        failures.append(live(server_of(major), folder, program, route, is_continuous=goes_on))
    assert not any(failures), "\n\n".join(filter(None, failures))


def live(
    server: EmbeddedServer, folder: Path, program: Program, route: Route, *, is_continuous: bool
) -> str | None:
    """Run a program in a new database; return what went wrong with the program, None if nothing did."""
    case = f"seed {program.seed}, PostgreSQL {program.major}, {route}, continuous: {is_continuous}"
    print(case)
    with contextmanager(new_database)(server) as database:
        try:
            Living(database, folder, program, route, is_continuous).run()
        except GeneratorError as error:
            return f"{case}: the program is wrong, not pgdelta: {error}\n{program}"
        except Exception as error:
            return f"{case}: {type(error).__name__}: {error}\n{program}"
    return None
