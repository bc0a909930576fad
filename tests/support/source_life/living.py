"""Run the program of a random life with both jobs, and judge silver after each settled state.

A table of silver equals the source, or an event or the state of the table names it and what to do. What is to
be done is then done: a copy of the table, after which it is equal.
"""

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from pipeline.apply.job import run_apply
from pipeline.config.config import Config
from pipeline.delta.table import Lake, LakeTable
from pipeline.ingest.job import run_ingest
from pipeline.metadata.reconciliations import DIFFERENT
from pipeline.metadata.registry import Records
from pipeline.operate.resync import run_resync
from pipeline.postgres.replication.options import Route
from pipeline.progress import ApplySummary, IngestSummary, TableState
from pipeline.table_name import TableName
from pipeline.verify.audit_silver import run_silver_audit
from pipeline.verify.fingerprint import run_fingerprint
from pipeline.verify.prove import run_prove
from tests.support import oracle
from tests.support.comparable.delta_rs import open_table
from tests.support.comparable.source import Connection, snapshot, source_columns, source_rows
from tests.support.foreign_commits import drop, rename
from tests.support.servers import Database
from tests.support.source_life.programs import Program, Step
from tests.support.threads import in_threads

NAMES = (
    "SELECT p.schemaname::text, p.tablename::text FROM pg_publication_tables p"
    " JOIN pg_class c ON c.oid = format('%%I.%%I', p.schemaname, p.tablename)::regclass"
    " WHERE p.pubname = %s AND c.relpersistence = 'p'"
)
LOGGED = "tableoid NOT IN (SELECT oid FROM pg_class WHERE relpersistence = 'u')"
ROOTS_OF_UNLOGGED = (
    "SELECT DISTINCT i.inhparent::regclass::text, c.relname::text FROM pg_inherits i"
    " JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relpersistence = 'u'"
)
TABLES = (
    "SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace"
    " AND c.relpersistence = 'p' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
)
ROLE = (
    "DO $$ BEGIN CREATE ROLE life_owner;"
    " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
)
#: Kinds of events after which a table may differ, and what their sentences, and those of states, name.
EXCUSES = {"resync", "diverged", "held", "refused", "info"}
REMEDY = re.compile(r"[Rr]un |resync|rebuild|copied|compared|copies|REPLICA IDENTITY|RESTORE|next ingest")
RUNS = 2  # of both jobs, until what the source has is settled
MORE_RUNS = 4  # until what waits has been copied
SECONDS = 180.0  # until continuous jobs have settled, also on a machine that is busy
SECONDS_OF_COPIES = 10.0


class GeneratorError(AssertionError):
    """The source refused a statement of a program: a fault of the generator, not of the product."""


@dataclass
class Living:
    """A program that lives in a database of its own."""

    database: Database
    folder: Path
    program: Program
    route: Route
    is_continuous: bool = False
    rewrites: str = ""
    _known: set[tuple[str, ...]] = field(default_factory=set)
    _renamed: set[str] = field(default_factory=set)  # tables of which an analyst renamed a column
    _applied: ApplySummary = field(default_factory=lambda: ApplySummary(""))

    def run(self) -> None:
        """Run the program; raises GeneratorError, or whatever says that silver is not what it should be."""
        with ExitStack() as stack:
            self._source = stack.enter_context(self.database.connect())
            self._execute(ROLE)
            for statement in self.program.setup:
                self._execute(statement)
            self._publish()
            self._both()
            if self.is_continuous:
                stack.enter_context(in_threads(self._ingest_on, self._apply_on))
            for number, steps in enumerate(self.program.rounds):
                for step in steps:
                    self._do(step)
                self._settle(f"round {number}")
                run_fingerprint(self.config)
        self._prove()
        oracle.bronze_has_no_duplicates(None, self.config.storage.root)

    @property
    def config(self) -> Config:
        """The configuration of both jobs."""
        root = str(self.folder / "lake")
        made = self.database.config("public.*", root=root, copy="initial", route=self.route)
        settings = {**self.program.settings, **({"rewrites": self.rewrites} if self.rewrites else {})}
        silver = replace(made.silver, writer="native", **settings)  # type: ignore[arg-type]
        rules = tuple(replace(rule, **self.program.rule) for rule in made.tables)  # type: ignore[arg-type]
        return replace(made, silver=silver, tables=rules)

    # The source and the jobs --------------------------------------------------------------------------------

    def _publish(self) -> None:
        program = self.program
        if program.publication != "configured":
            scope = "ALL TABLES" if program.publication == "all" else f"TABLE {', '.join(self._names())}"
            root = f"WITH (publish_via_partition_root = {program.via_root})"
            self._execute(f"CREATE PUBLICATION {self.database.name} FOR {scope} {root}")
        run_ingest(self.config)
        if program.publication == "configured" and not program.via_root:
            self._execute(f"ALTER PUBLICATION {self.database.name} SET (publish_via_partition_root = false)")

    def _names(self) -> list[str]:
        return [name for (name,) in self._source.execute(TABLES)]

    def _execute(self, statement: str) -> None:
        text = statement.replace("{database}", self.database.name).replace(
            "{publication}", self.database.name
        )
        try:
            self._source.execute(text.encode())
        except psycopg.Error as error:
            raise GeneratorError(f"{error}\n{text[:2000]}") from None

    def _do(self, step: Step) -> None:
        match step.place:
            case "source":
                for statement in step.statements:
                    self._execute(statement)
            case "silver":
                self._analyse(step.kind, step.statements[0])
            case "jobs" if self.is_continuous:
                time.sleep(1)
            case "jobs":
                run_ingest(self.config)
                if step.kind == "both":
                    self._apply()

    def _analyse(self, kind: str, name: str) -> None:
        path = f"{self.config.storage.root}/silver/public/{name}"
        table = open_table(path)
        if table is None or table.protocol().min_writer_version > 6:
            return  # features that delta-rs does not write
        try:
            _analyse(table, kind)
        except CommitFailedError:
            assert self.is_continuous  # apply was first
        else:
            self._renamed |= {name} if kind == "rename column" else set()

    def _both(self) -> IngestSummary:
        ingested = run_ingest(self.config)
        self._apply()
        return ingested

    def _apply(self) -> None:
        self._applied = run_apply(self.config, records_status=False, starts_query=False)

    def _ingest_on(self, stop: threading.Event) -> None:
        run_ingest(self.config, trigger="continuous", stop=stop)

    def _apply_on(self, stop: threading.Event) -> None:
        def remember(summary: ApplySummary) -> None:
            self._applied = summary

        run_apply(
            self.config, trigger="continuous", stop=stop, progress=remember, records_status=False,
            starts_query=False,
        )  # fmt: skip

    # The judge ----------------------------------------------------------------------------------------------

    def _settle(self, when: str) -> None:
        """Let both jobs come to rest, judge, do what events say, and judge again."""
        faults = self._rest(RUNS)
        excuses = self._excuses()
        silent = {name: found for name, found in faults.items() if name not in excuses}
        assert not silent, _report(f"{when}: silver differs and nothing says so", silent, self._states())
        vague = {n: said for n, said in excuses.items() if not (REMEDY.search(said) or said in self._kept())}
        assert not vague, f"{when}: no remedy is named: {vague}"
        assert not (unnamed := self._unnamed()), f"{when}: not published, and nothing says so: {unnamed}"
        for name in sorted(excuses):
            print(f"  {when}: {name} {'differs' if name in faults else 'is equal'}: {excuses[name]}")
        if faults:  # some copies were requested by the jobs
            faults = self._rest(MORE_RUNS, SECONDS_OF_COPIES)
        if faults:
            run_resync(self.config, [str(name) for name in faults])
            faults = self._rest(MORE_RUNS)
        assert not faults, _report(f"{when}: silver differs after a copy", faults, self._states())
        self._known |= set(self._events())

    def _prove(self) -> None:
        """Prove equal tables by the fingerprints that each round left, and read all files again."""
        proved = run_prove(self.config, wait=30, runs=True)
        different = [verdict for verdict in proved.verdicts if verdict.verdict == DIFFERENT]
        assert not different, f"by their fingerprints they differ: {different}"
        damaged = [table for table in run_silver_audit(self.config).tables if table.findings]
        assert not damaged, f"files have other fingerprints than were kept: {damaged}"

    def _rest(self, runs: int, seconds: float = SECONDS) -> Mapping[TableName, list[str]]:
        """Return the tables that differ once both jobs have captured and applied what the source has."""
        if not self.is_continuous:
            for number in range(runs):
                self._both()
                if number and not (faults := self._faults()):
                    return faults
            return self._faults()
        deadline = time.monotonic() + seconds
        while (faults := self._faults()) or self._unnamed():
            is_explained = runs == RUNS and self._is_explained(faults) and not self._unnamed()
            if is_explained or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        return faults

    def _is_explained(self, faults: Mapping[TableName, list[str]]) -> bool:
        """Return whether continuous jobs have captured all, and an event excuses each table that differs."""
        return faults.keys() <= self._excuses().keys()

    def _published(self) -> list[TableName]:
        rows = self._source.execute(NAMES, [self.database.name]).fetchall()
        return [TableName(*row) for row in rows if row[0] == "public"]

    def _faults(self) -> dict[TableName, list[str]]:
        faults: dict[TableName, list[str]] = {}
        with snapshot(self._source):
            for name in self._published():
                found = list(_faults_of(self._source, self.config.storage.root, name))
                if name.table in self._renamed:  # the next change of the table gives the column its name back
                    found = [each for each in found if not each.startswith("silver lacks column")]
                if found:
                    faults[name] = found
        return faults

    def _excuses(self) -> dict[TableName, str]:
        """Return what new events, and the states of tables, say of tables that may differ."""
        said = {
            TableName(schema, table): f"{kind}: {sentence}"
            for schema, table, _, kind, sentence in sorted(set(self._events()) - self._known)
            if kind in EXCUSES
        }
        for name, state in self._states().items():
            if text := state.failure or state.held or state.waits:
                said[name] = f"state: {text}"
        return said

    def _kept(self) -> set[str]:
        """Return what events say of rows that the policy keeps, for which there is no remedy."""
        return {f"info: {event[4]}" for event in self._events() if event[3] == "info"}

    def _unnamed(self) -> set[str]:
        """Return the tables that match and silver lacks, or lacks in part, without an event that says so."""
        there = {TableName("public", name) for name in self._names()}
        published = set(self._published())
        parents = "SELECT DISTINCT inhparent::regclass::text FROM pg_inherits"
        by_leaves = {TableName("public", name) for (name,) in self._source.execute(parents)}
        said = {TableName(*event[:2]) for event in self._events() if event[3] == "unpublished"}
        missing = {str(name) for name in there - published - by_leaves - said}
        partial = Records(Lake(self.config.storage)).events.newest().partial
        return missing | {
            leaf
            for root, leaf in self._source.execute(ROOTS_OF_UNLOGGED)
            if (name := TableName("public", root)) in published and leaf not in partial.get(name, "")
        }

    def _states(self) -> Mapping[TableName, TableState]:
        return dict(self._applied.tables)

    def _events(self) -> Iterator[tuple[str, ...]]:
        log = Lake(self.config.storage).table("_pgdelta", "events")
        for row in log.rows().to_pylist() if log.exists() else ():
            yield row["schema_name"], row["table_name"], str(row["lsn"]), row["kind"], row["sentence"]


def _faults_of(source: Connection, root: str, name: TableName) -> Iterator[str]:
    """Yield how a table differs; silver may keep columns, and types that are wider than the source's."""
    columns = source_columns(source, *name)
    rows = source_rows(source, *name, columns, LOGGED)
    found = oracle.table_faults(
        None, root, *name, columns, rows, None, {}, metadata_columns=True, ignore_left_columns=True
    )
    yield from (each for each in found if not (each.startswith("column ") and ", should be " in each))


def _analyse(table: DeltaTable, kind: str) -> None:
    match kind:
        case "delete":
            table.delete()
        case "append":
            write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")
        case "compact":
            table.optimize.compact()
        case "add column":
            if "analyst" not in {each.name for each in table.schema().fields}:
                table.alter.add_columns(Field("analyst", PrimitiveType("string")))
        case "drop column" | "rename column":
            last = [each.name for each in table.schema().fields if not each.name.startswith("_")][-1]
            silver = LakeTable(table.table_uri)
            drop(silver, last) if kind == "drop column" else rename(silver, last, "analyst")
        case "set property":
            table.alter.set_table_properties({"delta.logRetentionDuration": "interval 20 days"})


def _report(what: str, faults: Mapping[TableName, list[str]], states: Mapping[TableName, TableState]) -> str:
    lines = [f"{name}: {fault} [{states.get(name)}]" for name, found in faults.items() for fault in found]
    return "\n".join([what, *lines])
