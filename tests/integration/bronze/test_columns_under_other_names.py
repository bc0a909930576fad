"""Values of protected columns are nowhere in the lake, however the columns are renamed and replaced.

Random histories of one table each share a server, a slot and every run: DDL and rows in one transaction or in
several, streamed or not, with savepoints, prepared, between scheduled runs or while a continuous one works.
"""

import itertools
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline.bronze import spool, streamed_transactions
from pipeline.config.config import Config, Protocol
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.ingest.job import run_ingest
from pipeline.operate.resync import run_resync
from pipeline.postgres.embedded import EmbeddedServer
from pipeline.report.capsule import write_capsule
from pipeline.report.status import read_page_facts
from pipeline.report.web.write_page import write_page
from tests.support.bronze.rows import bronze_rows
from tests.support.files import places_of
from tests.support.moves import database_of
from tests.support.native_pipelines import NativePipeline
from tests.support.postgres.streams import both_routes
from tests.support.running import ingesting
from tests.support.seeds import seed_of_run
from tests.support.servers import Database, MakeServer, serve

pytestmark = pytest.mark.postgres

SECRET = "xyzzyPlanted"
NAMES = ("ssn", "name", "x", "y")
KEY = "the key of the tests"
RULES: dict[str, ColumnRules] = {
    "e": ColumnRules(exclude=("ssn",)),
    "n": ColumnRules(mask={"ssn": None}),
    "l": ColumnRules(mask={"ssn": "last4"}),
    "h": ColumnRules(hash={"ssn": "hmac-sha256"}),
    "i": ColumnRules(include=("id", "name", "x")),
}


@dataclass
class History:
    """One table, and what is known of its columns by their numbers."""

    table: str
    rng: Random
    rules: ColumnRules
    names: dict[int, str | None] = field(default_factory=dict)  # None: dropped
    protected: set[int] = field(default_factory=set)  # that were sent under a protected name
    rows: int = 0

    @property
    def live(self) -> dict[str, int]:
        return {name: number for number, name in self.names.items() if name is not None}

    def is_protected(self, name: str) -> bool:
        return bool(self.rules.excludes(name) or name in self.rules.hash or name in self.rules.mask)

    def create(self) -> list[str]:
        columns = list(NAMES[: self.rng.randint(2, 4)])
        self.rng.shuffle(columns)
        if "ssn" not in columns:
            columns[0] = "ssn"
        self.names = {1: "id", **dict(enumerate(columns, 2))}
        self.protected = {number for number, name in self.names.items() if name and self.is_protected(name)}
        identity = self.rng.choice(("DEFAULT", "FULL"))
        return [
            f"CREATE TABLE {self.table} (id int PRIMARY KEY, {', '.join(f'{c} text' for c in columns)})",
            f"ALTER TABLE {self.table} REPLICA IDENTITY {identity}",
            self.insert(),
        ]

    def alter(self) -> list[str]:
        """Return statements that add, drop, rename or swap columns."""
        rng, table = self.rng, self.table
        free = [name for name in NAMES if name not in self.live]
        named = [name for name in self.live if name != "id"]
        match rng.choice(("add", "drop", "rename", "rename", "swap", "replace")):
            case "add" if free:
                return [self._add(rng.choice(free))]
            case "drop" if len(named) > 1:
                return [self._drop(rng.choice(named))]
            case "rename" if free and named:
                return [self._rename(rng.choice(named), rng.choice(free))]
            case "swap" if len(named) > 1:
                one, two = rng.sample(named, 2)
                return [self._rename(one, "z"), self._rename(two, one), self._rename("z", two)]
            case "replace" if free and named:
                name = rng.choice(named)
                return [self._rename(name, rng.choice(free)), self._add(name)]
        return [f"ALTER TABLE {table} ALTER id SET STATISTICS 10"]

    def _add(self, name: str) -> str:
        self.names[len(self.names) + 1] = name
        return f"ALTER TABLE {self.table} ADD {name} text"

    def _drop(self, name: str) -> str:
        self.names[self.live[name]] = None
        return f"ALTER TABLE {self.table} DROP {name}"

    def _rename(self, name: str, to: str) -> str:
        self.names[self.live[name]] = to
        return f"ALTER TABLE {self.table} RENAME {name} TO {to}"

    def insert(self) -> str:
        self.rows += 1
        live = self.live
        values = ", ".join(str(self.rows) if name == "id" else self._value(name) for name in live)
        return f"INSERT INTO {self.table} ({', '.join(live)}) VALUES ({values})"

    def update(self) -> str:
        names = [name for name in self.live if name != "id"]
        values = ", ".join(f"{name} = {self._value(name)}" for name in names)
        return f"UPDATE {self.table} SET {values} WHERE id <= {self.rng.randint(1, self.rows)}"

    def _value(self, name: str) -> str:
        number = self.live[name]
        if self.is_protected(name):
            self.protected.add(number)
        word = SECRET if number in self.protected else "plain"
        return f"'{word} {self.table} {number} {self.rows}'"

    def change(self) -> str:
        return self.insert() if self.rng.random() < 0.5 else self.update()

    def fill(self) -> str:
        """Return what makes the transaction stream before its end."""
        return f"INSERT INTO filler SELECT g, repeat('{SECRET[0]}', 3000) FROM generate_series(1, 40) g"

    def step(self, *, prepares: bool) -> list[str]:
        """Return the statements of the next transactions."""
        statements: list[str] = []
        for _ in range(self.rng.randint(1, 3)):
            inner: list[str] = []
            for _ in range(self.rng.randint(1, 3)):
                inner += self.alter() if self.rng.random() < 0.5 else [self.change()]
            if self.rng.random() < 0.3:
                inner.insert(self.rng.randint(0, len(inner)), self.fill())
            if self.rng.random() < 0.3:
                statements += inner
                continue
            if self.rng.random() < 0.3:
                inner += self._rolled_back()
            end = ["COMMIT"]
            if prepares and self.rng.random() < 0.2:
                end = [f"PREPARE TRANSACTION '{self.table}'", f"COMMIT PREPARED '{self.table}'"]
            statements += ["BEGIN", *inner, *end]
        return [*statements, self.change()]

    def _rolled_back(self) -> list[str]:
        """Return DDL and rows of a subtransaction that is rolled back."""
        names, protected, rows = dict(self.names), set(self.protected), self.rows
        statements = ["SAVEPOINT s", *self.alter(), self.change(), "ROLLBACK TO s"]
        self.names, self.protected, self.rows = names, protected, rows
        return statements


FILLER = ("CREATE TABLE filler (id int, v text)", "ALTER TABLE filler ALTER v SET STORAGE plain")
SMALL_MEMORY = {"logical_decoding_work_mem": "64kB"}
TWO_PHASE = Protocol(two_phase=True, streaming="on", written=frozenset({"two_phase", "streaming"}))


def make(database: Database, folder: Path, route: str) -> NativePipeline:
    """Return a pipeline with rules for the tables of each kind, and its lake in a folder."""
    major = database.server_major
    protocol = TWO_PHASE if major >= 15 else Protocol()
    config = database.config(
        root=str(folder / "lake"), create_publication="all", hash_key=KEY, route=route, protocol=protocol
    )
    rules = [TableRule(f"public.{kind}_*", columns=columns) for kind, columns in RULES.items()]
    silver = replace(config.silver, writer="native")
    return NativePipeline(database, replace(config, silver=silver, tables=(*rules, TableRule("public.*"))))


@contextmanager
def scanned_spool(patch: pytest.MonkeyPatch, found: list[str]) -> Iterator[None]:
    """Let everything go to disk as soon as it can, and search it for planted values."""
    moves = 0
    patch.setattr(streamed_transactions, "STREAM_ROWS", 5)
    patch.setattr(spool, "ROW_LIMIT", 7)
    move = streamed_transactions.OpenStream.move_to_disk

    def move_and_look(self: Any, folder: Path) -> None:
        nonlocal moves
        move(self, folder)
        moves += 1
        self._background.flush()
        found.extend(places_of(folder, SECRET))

    patch.setattr(streamed_transactions.OpenStream, "move_to_disk", move_and_look)
    yield
    patch.undo()
    assert moves, "transactions stream"


def prove(
    database: Database,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    route: str,
    seeds: Sequence[int],
    is_continuous: bool,
) -> None:
    """Run histories and search for what they planted."""
    print(f"PGDELTA_SEED={seeds[0]}")
    pipeline = make(database, folder, route)
    histories = []
    for seed in seeds:
        kind = list(RULES)[seed % len(RULES)]
        histories.append(History(f"{kind}_{seed}", Random(seed), RULES[kind]))
    can_prepare = pipeline.config.source.protocol.two_phase
    database.run(*FILLER, *(s for each in histories for s in each.create()))
    found: list[str] = []
    temporary = folder / "temporary"
    temporary.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(temporary))
    with scanned_spool(monkeypatch, found), running(pipeline.config, is_continuous) as catch_up:
        for _ in range(3):
            for history in histories:
                database.run(*history.step(prepares=can_prepare))
            catch_up()
    pipeline.apply()
    assert found == []
    assert places_of(folder, SECRET) == [], str(seeds)
    assert SECRET not in caplog.text
    assert SECRET not in page_and_capsule(pipeline.config, folder)
    assert any(places_of(folder, f"plain {history.table}") for history in histories), (
        "the search finds values"
    )
    settle(pipeline, histories)
    assert places_of(folder, SECRET) == [], f"{seeds}, after a copy"


def page_and_capsule(config: Config, folder: Path) -> str:
    """Return what the page of `status --html` and the capsule have."""
    page, capsule = folder / "page.html", folder / "capsule.tar.gz"
    write_page(read_page_facts(config, ("*.*",)), str(page))
    write_capsule(config, str(capsule))
    with tarfile.open(capsule) as archive:
        parts = [archive.extractfile(member) for member in archive if member.isfile()]
        texts = [part.read().decode() for part in parts if part is not None]
    assert "e_" in page.read_text(encoding="utf-8")
    return page.read_text(encoding="utf-8") + "".join(texts)


@contextmanager
def running(config: Config, is_continuous: bool) -> Iterator[Any]:
    """Give a function that captures what there is, by a run each or by one continuous run."""
    run_ingest(config)
    if not is_continuous:
        yield lambda: run_ingest(config)
        return
    with ingesting(config):
        yield lambda: None
    run_ingest(config)


def settle(pipeline: NativePipeline, histories: list[History]) -> None:
    """Copy all tables; their plain columns equal the source, and each other column has an event or a rule."""
    run_resync(pipeline.config, ["public.*"])
    run_ingest(pipeline.config)
    pipeline.apply()
    versions = sorted(bronze_rows(pipeline.config, "relations"), key=lambda row: row["lsn"])
    newest = {row["table_name"]: row for row in versions}
    for history in histories:
        protected = {column["name"] for column in newest[history.table]["protected"]}
        plain = [name for name in history.live if name not in protected]
        expected = pipeline.database.run(f"SELECT {', '.join(plain)} FROM {history.table}")
        assert pipeline.rows(history.table, *plain) == sorted(expected, key=repr), history.table
        events = [sentence for _, sentence in pipeline.events(history.table)]
        for name in protected.intersection(history.live):
            assert history.is_protected(name) or any(f"Column {name} " in text for text in events), name


by_both_ways = pytest.mark.parametrize(
    ("route", "is_continuous"),
    [("walsender", False), ("sql", True)],
    ids=["scheduled-walsender", "continuous-sql"],
)


@pytest.mark.sample(1)
@pytest.mark.promise("protected columns")
@by_both_ways
def test_planted_values_are_nowhere(
    make_server: MakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    route: str,
    is_continuous: bool,
) -> None:
    database = database_of(make_server({**SMALL_MEMORY, "max_prepared_transactions": "20"}), "planted")
    seeds = seed_of_run()
    prove(database, tmp_path / "run", monkeypatch, caplog, route, range(seeds, seeds + 7), is_continuous)


@pytest.mark.promise("protected columns")
@pytest.mark.slow
@both_routes
@pytest.mark.parametrize("is_continuous", [False, True], ids=["scheduled", "continuous"])
@pytest.mark.parametrize("major", [13, 15, 18])
def test_planted_values_of_many_histories_are_nowhere(
    make_server: MakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    route: str,
    is_continuous: bool,
    major: int,
) -> None:
    server = make_server({**SMALL_MEMORY, "max_prepared_transactions": "20"}, major=major)
    seeds = seed_of_run()
    for part in range(5):
        database = database_of(server, f"part_{part}")
        first = seeds + 20 * part
        folder = tmp_path / f"run-{part}"
        prove(database, folder, monkeypatch, caplog, route, range(first, first + 20), is_continuous)


SCHEMA = "CREATE TABLE {0} (id int PRIMARY KEY, ssn text, name text)"
ONE_TRANSACTION = (
    "BEGIN; ALTER TABLE {0} RENAME ssn TO ssn_old; ALTER TABLE {0} ADD ssn text;"
    " UPDATE {0} SET ssn = right(ssn_old, 2); ALTER TABLE {0} DROP COLUMN ssn_old; COMMIT"
)
WAYS = {
    "in one transaction": (ONE_TRANSACTION,),
    "in several transactions": (
        "ALTER TABLE {0} RENAME ssn TO ssn_old",
        "ALTER TABLE {0} ADD ssn text",
        "UPDATE {0} SET ssn = right(ssn_old, 2)",
        "ALTER TABLE {0} DROP COLUMN ssn_old",
    ),
    "streamed": (
        "BEGIN; ALTER TABLE {0} RENAME ssn TO ssn_old; ALTER TABLE {0} ADD ssn text;"
        " INSERT INTO {0} SELECT i, '" + SECRET + "', 'n', 'x' FROM generate_series(10, 800) i;"
        " UPDATE {0} SET ssn = right(ssn_old, 2); COMMIT",
    ),
    "streamed and dropped": (
        "BEGIN; ALTER TABLE {0} RENAME ssn TO ssn_old; ALTER TABLE {0} ADD ssn text;"
        " INSERT INTO {0} SELECT i, '" + SECRET + "', 'n', 'x' FROM generate_series(10, 800) i;"
        " UPDATE {0} SET ssn = right(ssn_old, 2); ALTER TABLE {0} DROP COLUMN ssn_old; COMMIT",
    ),
    "names that are swapped, and changed again": (
        "BEGIN; ALTER TABLE {0} RENAME ssn TO z; ALTER TABLE {0} RENAME name TO ssn;"
        " ALTER TABLE {0} RENAME z TO name; COMMIT",
        "UPDATE {0} SET id = id + 1000",
        "BEGIN; ALTER TABLE {0} RENAME name TO other; ALTER TABLE {0} RENAME ssn TO name; COMMIT",
        "UPDATE {0} SET id = id + 1000",
    ),
    "a name that an added column gets": (
        "ALTER TABLE {0} DROP name",
        "ALTER TABLE {0} RENAME ssn TO name",
        "ALTER TABLE {0} ADD ssn text",
        "UPDATE {0} SET ssn = 'x'",
        "ALTER TABLE {0} DROP name",
        "ALTER TABLE {0} ADD name text",
    ),
}


@pytest.fixture(scope="module", params=[13, 15, 18])
def small_memory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedServer]:
    """Give a server that streams transactions of some rows, where it can."""
    yield from serve(tmp_path_factory.mktemp("server"), request.param, SMALL_MEMORY)


@pytest.mark.sample(1)
@pytest.mark.promise("protected columns")
@by_both_ways
def test_a_column_that_gives_its_name_to_another_one_keeps_its_rule(
    small_memory: EmbeddedServer, tmp_path: Path, route: str, is_continuous: bool
) -> None:
    database = database_of(small_memory, f"way_{route}")
    pipeline = make(database, tmp_path, route)
    kinds = itertools.cycle(RULES)
    tables = {f"{next(kinds)}_{n}": way for n, way in enumerate([*WAYS] * 2)}
    for table in (*tables, "e_renamed"):
        database.run(SCHEMA.format(table), f"INSERT INTO {table} VALUES (1, '{SECRET}', 'n')")
    with running(pipeline.config, is_continuous) as catch_up:
        for table, way in tables.items():
            database.run(*(statement.format(table) for statement in WAYS[way]))
        database.run(
            "ALTER TABLE e_renamed RENAME ssn TO ssn_old",
            f"UPDATE e_renamed SET ssn_old = '{SECRET}', name = 'm'",
        )
        catch_up()
    rows = bronze_rows(pipeline.config, "changes")
    leaks = {row["table_name"] for row in rows if SECRET in str([row["old"], row["new"]])}
    assert {(table, way) for table, way in tables.items() if table in leaks} == set()
    pipeline.apply()
    assert places_of(tmp_path, SECRET) == []
    assert pipeline.rows("e_renamed", "id", "name") == [(1, "m")]
    assert not {"ssn", "ssn_old"} & pipeline.columns("e_renamed").keys()
