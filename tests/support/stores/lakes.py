"""A pipeline whose lake is on an object store or on HDFS, run without Spark and compared with its source.

The server is shared by the tests of a module; each pipeline has a root of its own.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from pipeline.apply.applier import Applier
from pipeline.config.config import Config, Silver
from pipeline.delta.store.mirror import mirror_at
from pipeline.delta.store.store import Store
from pipeline.delta.table import Lake
from pipeline.delta.table_log import TableLog
from pipeline.ingest.job import run_ingest
from pipeline.progress import ApplySummary, IngestSummary
from tests.support.pipelines import succeeded
from tests.support.servers import Database
from tests.support.stores.hdfs import Hdfs
from tests.support.stores.s3 import BUCKET, S3Server, s3_server

COLUMNS = {
    "orders": ("id", "item", "note", "price"),
    "lines": ("order_id", "item", "count"),
    "log": ("line",),
}
"""The columns of the tables in `orders`."""


@dataclass(slots=True)
class StorePipeline:
    """A configuration whose root is on a store; `source` is an ordinary session of the superuser."""

    config: Config
    source: psycopg.Connection[Any]

    def __post_init__(self) -> None:
        # also in a run of the tests with PGDELTA_WRITER=spark
        self.config = replace(self.config, silver=replace(self.config.silver, writer=Silver().writer))

    @property
    def store(self) -> Store:
        found = mirror_at(self.config.storage.root)
        assert found is not None
        return found.store

    def run(self, *statements: str) -> None:
        """Run statements at the source, each in its own transaction."""
        for statement in statements:
            self.source.execute(statement.encode())

    def lose_machine(self) -> None:
        """Forget what this machine has of the lake, as if the jobs continued on another one."""
        TableLog.forget(self.config.storage.root)
        found = mirror_at(self.config.storage.root)
        assert found is not None
        for folder in found.folder.iterdir():  # the folder itself is locked
            found.drop_folder(str(folder))

    def ingest(self, *statements: str, **options: Any) -> IngestSummary:
        """Run statements at the source, and capture all that is committed."""
        self.run(*statements)
        return run_ingest(self.config, **options)

    def apply(self) -> ApplySummary:
        """Apply all that bronze holds, as a new process would."""
        return Applier(None, self.config).apply_pending()

    def catch_up(self, *statements: str) -> ApplySummary:
        """Run statements at the source, and capture and apply all there is; no table may fail or be held."""
        succeeded(self.ingest(*statements))
        summary = succeeded(self.apply())
        return summary

    def silver(self, table: str, *columns: str) -> Counter[tuple[Any, ...]]:
        """Return the rows of a silver table of schema public."""
        rows = Lake(self.config.storage).table("silver", "public", table).rows(list(columns) or None)
        return Counter(tuple(row.values()) for row in rows.to_pylist())

    def changes(self) -> list[dict[str, Any]]:
        """Return what bronze has of each change, but for its values."""
        columns = ["op", "commit_lsn", "ordinal", "xid"]
        rows = Lake(self.config.storage).table("bronze", "changes").rows(columns)
        return list(rows.to_pylist())

    def assert_equal(self, table: str, *columns: str) -> None:
        """Assert that columns of a table have the same rows here and there, duplicates counted."""
        query = f"SELECT {', '.join(columns)} FROM {table}"
        source = Counter(tuple(row) for row in self.source.execute(query.encode()).fetchall())
        assert self.silver(table, *columns) == source

    def assert_orders_equal(self) -> None:
        """Assert that the tables of `orders` have the same rows here and there."""
        for table, columns in COLUMNS.items():
            self.assert_equal(table, *columns)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """Give a server with S3's protocol."""
    with s3_server() as found:
        yield found


@pytest.fixture
def hdfs_pipeline(hdfs: Hdfs, database: Database) -> Iterator[StorePipeline]:
    """Give a pipeline of a fresh database with its root on HDFS."""
    root = f"{hdfs.url}/{database.name}"
    config = database.config(root=root, create_publication="all", copy="initial")
    with database.connect() as source:
        yield StorePipeline(config, source)


@pytest.fixture
def store_pipeline(s3: S3Server, database: Database) -> Iterator[StorePipeline]:
    """Give a pipeline of a fresh database with its root on the server."""
    root = f"s3://{BUCKET}/{database.name}"
    config = database.config(root=root, options=s3.options, create_publication="all", copy="initial")
    with database.connect() as source:
        yield StorePipeline(config, source)
