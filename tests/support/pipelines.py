"""One pipeline under test: a database, a lake in a temporary folder, and both jobs called in this process.

The Spark session is shared; lake, slot and publication are each test's own. `pipeline` ingests by the
walsender; tests that need something else make theirs with `make_pipeline`. With PGDELTA_ROOT=s3 lakes are on
a server with S3's protocol, with PGDELTA_ROOT=hdfs on HDFS.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import psycopg
import pytest

from pipeline.cli.output import HasExitCode
from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.delta.store.store import is_store
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.frames import Frame
from tests.support.rewritten import is_about_rewrite
from tests.support.servers import Database
from tests.support.spark_sessions import shared_session
from tests.support.stores.run import RunStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.progress import ApplySummary, IngestSummary
    from pipeline.silver.write.writer_choice import WriterSetting


Summary = TypeVar("Summary", bound=HasExitCode)


class Crash(BaseException):
    """The process ends here."""


BOTH_WRITERS = ["native", pytest.param("spark", marks=pytest.mark.slow)]
"""Cases of what both writers of silver do alike; test_writers_agree.py holds by default that they do."""


def crash(*arguments: object, **options: object) -> Any:
    raise Crash


def assert_nothing_stopped(summary: ApplySummary) -> None:
    """Raise AssertionError if a table failed, is held or is not in the catalog; some may be in doubt."""
    assert replace(summary, doubts={}).exit_code(strict=True) == 0, summary.lines()


def succeeded(summary: Summary) -> Summary:
    """Return what a run came to; raise AssertionError if it fails also by the strict rules."""
    assert summary.exit_code(strict=True) == 0, getattr(summary, "lines", lambda: summary)()
    return summary


@dataclass(slots=True)
class Pipeline:
    """A configuration with what its jobs need; `source` is an ordinary session of the superuser.

    Without `starts_query`, runs of apply that do not go on end after their first batch: Spark's query would
    find nothing to do then, and take most of the run's time.
    """

    database: Database
    config: Config
    source: psycopg.Connection[Any] = field(repr=False)
    starts_query: bool = False
    spark: SparkSession | None = None

    @property
    def session(self) -> SparkSession:
        """The process's Spark session, which starts now if there is none yet."""
        return shared_session()

    @property
    def root(self) -> str:
        return self.config.storage.root

    def run(self, *statements: str) -> None:
        """Run statements at the source, each in its own transaction."""
        for statement in statements:
            self.source.execute(statement.encode())

    def transact(self, *statements: str) -> None:
        """Run statements at the source in one transaction."""
        with self.source.transaction():
            self.run(*statements)

    def prepare(self, gid: str, *statements: str) -> None:
        """Run statements at the source in a transaction that is prepared under a name."""
        self.database.run("BEGIN", *statements, f"PREPARE TRANSACTION '{gid}'")

    def drop_slot(self) -> None:
        """Drop the slot once it is free."""
        self.database.free_slot()
        self.source.execute("SELECT pg_drop_replication_slot(%s)", (self.config.source.slot,))

    def ingest(self, *statements: str, **options: Any) -> IngestSummary:
        """Run statements at the source, and capture all that is committed."""
        from pipeline.ingest.job import run_ingest

        self.run(*statements)
        return run_ingest(self.config, **options)

    def apply(self, **options: Any) -> ApplySummary:
        """Apply all that bronze holds; what it says of the tables in `_pgdelta/status` is left out."""
        from pipeline.apply.job import run_apply

        defaults = {"records_status": False, "starts_query": self.starts_query}
        return run_apply(self.config, **{**defaults, **options})

    def catch_up(self, *statements: str, unpublished: Collection[str] = ()) -> ApplySummary:
        """Run statements at the source, and capture and apply all there is.

        No copy and no table may fail, none be held, but some in doubt. Exactly the tables `unpublished` of
        schema public match the configuration and are not published.
        """
        ingested = self.ingest(*statements)
        assert ingested.exit_code(strict=not unpublished) == 0, ingested.lines()
        assert {name.table for name in ingested.unpublished or ()} == set(unpublished), ingested.lines()
        summary = self.apply()
        assert_nothing_stopped(summary)
        return summary

    def assert_equal(self, *tables: str | TableName, **options: Any) -> None:
        """Assert that tables equal their source, and that bronze has no duplicates.

        Names without a schema are of public.
        """
        names = [table if isinstance(table, TableName) else TableName("public", table) for table in tables]
        oracle.assert_silver_equals_source(self.source, self.spark, self.root, names, **options)
        oracle.bronze_has_no_duplicates(self.spark, self.root)

    def assert_follows(self, *tables: str | TableName, **options: Any) -> None:
        """Catch up, and assert that tables equal their source."""
        self.catch_up()
        self.assert_equal(*tables, **options)

    def frame(self, *names: str) -> Frame:
        """Return a Delta table of the lake."""
        return Frame("/".join([self.root, *names]))

    def spark_frame(self, *names: str) -> DataFrame:
        """Return a Delta table of the lake as Spark reads it."""
        return self.session.read.format("delta").load("/".join([self.root, *names]))

    def version(self, table: str) -> int:
        """Return the version of a silver table of schema public."""
        path = "/".join([self.root, "silver", "public", table])
        if not is_store(path):
            names = [each.stem for each in Path(path, "_delta_log").glob("*.json")]
            return max(int(name) for name in names if name.isdigit())
        row = self.session.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").head()
        assert row is not None
        return int(row.version)

    def changes(self) -> list[dict[str, Any]]:
        """Return bronze's rows in order, without the column that shows how they came."""
        rows = [row.asDict(recursive=True) for row in self.frame("bronze", "changes").drop("gid").collect()]
        return sorted(rows, key=lambda row: (row["commit_lsn"], row["op"] == "M", row["ordinal"]))

    def path(self, *names: str) -> Path:
        """Return where something lies in the lake; skip the test if that is on an object store."""
        if is_store(self.root):
            pytest.skip("looks into the folder of the lake")
        return Path(self.root, *names)

    def events(self, table: str, *, rewrites: bool = False) -> list[tuple[str, str]]:
        """Return (kind, sentence) of the events of a table, oldest first; `rewrites` adds those about one."""
        rows = self.frame("_pgdelta", "events").where(f"table_name = '{table}'").orderBy("lsn").collect()
        found = ((row.kind, row.sentence) for row in rows)
        return [each for each in found if rewrites or not is_about_rewrite(each[1])]

    def confirmed_lsn(self) -> LSN:
        """Return the LSN that the slot confirmed."""
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        row = self.source.execute(query, (self.config.source.slot,)).fetchone()
        assert row is not None
        return LSN.parse(row[0])


class MakePipeline(Protocol):
    """Make a pipeline; `name` distinguishes several of one database, each with a lake of its own."""

    def __call__(
        self, *rules: str, name: str = "", database: Database | None = None, **source: Any
    ) -> Pipeline: ...


@pytest.fixture
def make_pipeline(
    request: pytest.FixtureRequest, tmp_path: Path, run_store: RunStore | None
) -> Iterator[MakePipeline]:
    """Give a function that makes a pipeline of a fresh database, or of the one given."""
    with ExitStack() as sources:

        def make(*rules: str, name: str = "", database: Database | None = None, **source: Any) -> Pipeline:
            database = database or request.getfixturevalue("database")
            if name:
                source = {"slot": f"{database.name}_{name}", **source}
            lake = f"lake_{name}" if name else "lake"
            root = run_store.root(database.name, lake) if run_store else str(tmp_path / lake)
            config = database.config(*rules, root=root, **source)
            if name:
                config = replace(config, pipeline=f"{database.name}_{name}")
            return Pipeline(database, config, sources.enter_context(database.connect()))

        yield make


@pytest.fixture
def pipeline(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline of a fresh database by the walsender; tables are those of schema public."""
    return make_pipeline(create_publication="all")


def with_writer(pipeline: Pipeline, writer: WriterSetting) -> Pipeline:
    """Return the pipeline with a writer of its own, whichever the tests run with."""
    silver = replace(pipeline.config.silver, writer=writer)
    return replace(pipeline, config=replace(pipeline.config, silver=silver))


def with_rules(pipeline: Pipeline, *rules: TableRule) -> Pipeline:
    return replace(pipeline, config=replace(pipeline.config, tables=rules))
