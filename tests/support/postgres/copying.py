"""Copying without Spark: what a publication has of a table at a snapshot, as rows of bronze."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.bronze.relations import relation_version
from pipeline.postgres.catalog import read_relation
from pipeline.postgres.publication import PublishedTable, describe_published
from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.postgres.snapshot.read_table import CopyReader, LeafPages
from pipeline.protocol.lsn import INVALID
from pipeline.table_copy.planner import plan_chunks
from pipeline.table_copy.reader_pool import CopyHeader, CopySpool
from pipeline.table_name import TableName
from tests.support.bronze.events import rows_of_files

Row = dict[str, Any]


def copy_table(
    conninfo: str, publication: str, table: str, directory: Path
) -> tuple[PublishedTable, list[Row]]:
    """Return a table of schema public as it is described, and its rows in the order of their ordinals."""
    with closing(SnapshotKeeper(conninfo)) as keeper, closing(CopyReader(conninfo)) as reader:
        described = describe_published(keeper.connection, publication, TableName("public", table))
        facts = read_relation(keeper.connection, described.relation)
        assert facts is not None
        version = relation_version(described.relation, facts, INVALID)
        spool = CopySpool(directory, CopyHeader(7, version, keeper.snapshot.lsn, keeper.snapshot.exported_at))
        count = 0
        for chunk in plan_chunks(described.leaves, 64 << 20):
            leaf = next(leaf for leaf in described.leaves if leaf.oid == chunk.relation_id)
            for block in reader.read(
                keeper.snapshot, described, LeafPages(leaf, chunk.first_page, chunk.end_page)
            ):
                spool.add(block, count)
                count += block.row_count
        file = spool.finish()
    return described, rows_of_files([file] if file else [])


def values(rows: Sequence[Row]) -> list[list[str | None]]:
    """Return the values of rows."""
    return [row["new"] for row in rows]
