"""Scenarios in lock step: the tests of a module share a database, a slot, a lake, and all runs of both jobs.

A scenario is a generator that runs SQL in a schema of its own, yields where the jobs are to run, and asserts.
`@lockstep()` makes it a test. A failure names its scenario alone, and the others continue without it.

    @lockstep(TableRule("*.t", misfits={"day": "text"}))
    def test_a_value_that_does_not_fit_is_kept_as_text(lane: Lane) -> Steps:
        lane.run("CREATE TABLE t (id int PRIMARY KEY, day date)", "INSERT INTO t VALUES (1, 'infinity')")
        yield
        assert lane.rows("t", "day", "day__text") == [(None, "infinity")]

The schema `*` of a rule is the scenario's. `GROUP = Group(...)` above the scenarios of a module configures
their pipeline, whose slot exists before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias

import psycopg
import pytest

from pipeline.apply.job import run_apply
from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.delta.table import LakeTable
from pipeline.ingest.job import run_ingest
from pipeline.operate.plan import make_plan
from pipeline.operate.plan_report import PlannedTable
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.postgres.embedded import EmbeddedServer
from pipeline.progress import ApplySummary, IngestSummary, TableState
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.frames import Frame
from tests.support.rewritten import is_about_rewrite
from tests.support.servers import new_database


class Wait(Enum):
    """What a scenario waits for, other than that both jobs run and none of its tables is held or fails."""

    CAPTURED = "ingest runs, and apply does not"
    STOPPED = "both jobs run, and tables may be held or fail"
    ALONE = "the other scenarios end"


CAPTURED, STOPPED, ALONE = Wait
Steps: TypeAlias = Generator[Any, None, None]  # of Wait or None, which mypy would want written out


@dataclass(eq=False)
class Lane:
    """What a scenario has: its schema at the source, and the silver tables of that schema."""

    schema: str
    rules: tuple[TableRule, ...]
    base: Config
    source: psycopg.Connection[Any] = field(repr=False)
    lanes: dict[str, Lane] = field(repr=False)  # of all scenarios
    summary: ApplySummary = field(default_factory=lambda: ApplySummary(""))  # its tables in the last run
    faults: list[str] = field(default_factory=list)  # of its tables since the last step
    waits_for: Wait | None = None
    is_open: bool = True
    error: BaseException | None = None

    @property
    def config(self) -> Config:
        """The configuration of the pipeline, with the rules of all scenarios as they are now."""
        return replace(self.base, tables=tuple(rule for each in self.lanes.values() for rule in each._own()))

    def set_rules(self, *rules: TableRule) -> None:
        """Continue with other rules."""
        self.rules = rules

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in the scenario's schema, each in its own transaction; return the last rows."""
        for statement in (f"SET search_path = {self.schema}, public", *statements):
            cursor = self.source.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def transact(self, *statements: str) -> None:
        """Run statements in the scenario's schema in one transaction."""
        with self.source.transaction():
            self.run(*statements)

    def rebuild(self, *tables: str) -> None:
        """Rebuild tables; only after a step that has applied all changes."""
        summary = run_rebuild(self.config, self._globs(tables))
        done = {name.table: summary.tables.get(name) for name in summary.rebuilt or () if self.owns(name)}
        assert done.keys() == {*tables}, summary.lines()
        assert not [state for state in done.values() if state and (state.held or state.failure)]

    def resync(self, *tables: str) -> None:
        """Request copies of tables."""
        run_resync(self.config, self._globs(tables))

    def plan(self) -> list[PlannedTable]:
        """Return what the next apply does to the tables."""
        return [each for each in make_plan(self.config).tables if self.owns(each.name)]

    def name(self, table: str) -> TableName:
        return TableName(self.schema, table)

    def state(self, table: str) -> TableState:
        """Return a table as the last run of apply left it."""
        return self.summary.tables[self.name(table)]

    def silver(self, table: str) -> LakeTable:
        """Return a silver table as the product reads it."""
        return LakeTable(f"{self.base.storage.root}/silver/{self.schema}/{table}")

    def frame(self, table: str) -> Frame:
        """Return a silver table."""
        return Frame(self.silver(table).path)

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a silver table, in order."""
        return sorted((tuple(row) for row in self.frame(table).select(*columns).collect()), key=repr)

    def records(self, kind: str, table: str, folder: str = "_pgdelta") -> list[Any]:
        """Return what a table under `_pgdelta`, or another folder, has of a table of the source."""
        if not LakeTable(path := f"{self.base.storage.root}/{folder}/{kind}").exists():
            return []
        return Frame(path).where(f"schema_name = '{self.schema}' AND table_name = '{table}'").collect()

    def events(self, table: str) -> list[tuple[str, str]]:
        """Return (kind, sentence) of the events of a table, oldest first, but for those about a rewrite.

        Names are without the schema.
        """
        rows = sorted(self.records("events", table), key=lambda row: int(row.lsn))
        found = ((row.kind, row.sentence.replace(f"{self.schema}.", "")) for row in rows)
        return [each for each in found if not is_about_rewrite(each[1])]

    def assert_equal(self, *tables: str, **options: Any) -> None:
        """Assert that silver tables equal their source."""
        names, root = map(self.name, tables), self.base.storage.root
        oracle.assert_silver_equals_source(self.source, None, root, names, **options)

    def owns(self, name: TableName) -> bool:
        """Return whether the scenario has rules for tables of the schema."""
        return any(rule.source.partition(".")[0] == name.schema for rule in self._own())

    def resume(self, steps: Steps) -> None:
        """Run to the next step, or raise there what the jobs did not do for the tables."""
        __tracebackhide__ = True
        faults, self.faults = self.faults if self.waits_for is not STOPPED else [], []
        try:
            self.waits_for = steps.throw(AssertionError("\n".join(faults))) if faults else next(steps)
        except StopIteration:
            self.is_open = False
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
            self.is_open, self.error = False, error

    def ran(self, summary: IngestSummary | ApplySummary) -> None:
        """Record what a run of a job did, and did not do, for the tables."""
        if isinstance(summary, ApplySummary):
            own = {name: state for name, state in summary.tables.items() if self.owns(name)}
            self.summary = replace(summary, tables=own)
            found = {name: state.held or state.failure for name, state in own.items()}
        else:
            found = {**(summary.unpublished or {}), **{n: copy.failure for n, copy in summary.copies.items()}}
        self.faults += [f"{name}: {text}" for name, text in found.items() if text and self.owns(name)]

    def _globs(self, tables: Iterable[str]) -> list[str]:
        return [str(self.name(table)) for table in tables]

    def _own(self) -> Iterator[TableRule]:
        for rule in (*self.rules, TableRule("*.*")):
            schema, _, table = rule.source.partition(".")
            yield replace(rule, source=f"{self.schema}.{table}") if schema == "*" else rule


@dataclass(eq=False)
class Group:
    """The scenarios of a module, and the pipeline that they share; each writer runs them all once."""

    copy: str = "never"
    writers: tuple[WriterSetting, ...] = ("native",)
    via_root: bool = False
    source: Mapping[str, Any] = field(default_factory=dict)
    silver: Mapping[str, Any] = field(default_factory=dict)
    scenarios: dict[str, tuple[Callable[[Lane], Steps], tuple[TableRule, ...]]] = field(default_factory=dict)
    errors: dict[WriterSetting, dict[str, BaseException]] = field(default_factory=dict)

    def run(
        self, server: EmbeddedServer, root: str, writer: WriterSetting, names: Iterable[str]
    ) -> dict[str, BaseException]:
        """Run scenarios, and return the errors of those that fail; an error of a job is that of all."""
        with contextmanager(new_database)(server) as database, database.connect() as source:
            if self.via_root:
                of_all = f"CREATE PUBLICATION {database.name} FOR ALL TABLES"
                source.execute(f"{of_all} WITH (publish_via_partition_root)".encode())
            made = database.config(root=root, create_publication="all", copy=self.copy, **self.source)
            base = replace(made, silver=replace(made.silver, writer=writer, **self.silver))
            lanes: dict[str, Lane] = {}
            for name in names:
                schema = f"s{len(lanes)}_{name.removeprefix('test_')}"[:63]
                source.execute(f"CREATE SCHEMA {schema}".encode())
                lanes[name] = Lane(schema, self.scenarios[name][1], base, source, lanes)
            try:
                _run_in_lock_step({lane: self.scenarios[name][0](lane) for name, lane in lanes.items()})
                oracle.bronze_has_no_duplicates(None, root)
            except Exception as error:
                return {name: lane.error or error for name, lane in lanes.items()}
        return {name: lane.error for name, lane in lanes.items() if lane.error is not None}


def _run_in_lock_step(steps: Mapping[Lane, Steps]) -> None:
    pipeline = next(iter(steps))
    run_ingest(pipeline.config)  # creates the slot

    def resume(*waits: Wait | None) -> bool:
        due = [lane for lane in steps if lane.is_open and lane.waits_for in waits]
        for lane in due:
            lane.resume(steps[lane])
        return any(lane.is_open for lane in due)

    while resume(None, STOPPED, CAPTURED) or resume(ALONE):
        is_captured = True
        while is_captured:
            ingested = run_ingest(pipeline.config)
            assert not ingested.copy_failure, ingested.lines()
            for lane in steps:
                lane.ran(ingested)
            is_captured = resume(CAPTURED)
        applied = run_apply(pipeline.config, records_status=False, starts_query=False)
        for lane in steps:
            lane.ran(applied)


def lockstep(*rules: TableRule) -> Callable[[Callable[[Lane], Steps]], Callable[..., None]]:
    """Make a scenario with rules of its tables a test of its module's group."""

    def decorate(run: Callable[[Lane], Steps]) -> Callable[..., None]:
        group: Group = run.__globals__.setdefault("GROUP", Group())
        group.scenarios[run.__name__] = run, rules

        def test(
            request: pytest.FixtureRequest,
            server: EmbeddedServer,
            tmp_path_factory: pytest.TempPathFactory,
            writer: WriterSetting,
        ) -> None:
            __tracebackhide__ = True
            if writer not in group.errors:
                of_module = [each for each in request.session.items if each.path == request.path]
                selected = {getattr(item, "originalname", None) for item in of_module}
                root = str(tmp_path_factory.mktemp("lockstep") / "lake")
                names = [each for each in group.scenarios if each in selected]
                group.errors[writer] = group.run(server, root, writer, names)
            if (error := group.errors[writer].get(run.__name__)) is not None:
                raise error

        test.__name__, test.__doc__ = run.__name__, run.__doc__
        vars(test).update(vars(run))  # its marks
        # what both writers do alike is by default done without Spark
        slow = pytest.mark.slow if "native" in group.writers else ()
        cases = [pytest.param(each, marks=slow if each == "spark" else ()) for each in group.writers]
        return pytest.mark.parametrize("writer", cases)(test)

    return decorate
