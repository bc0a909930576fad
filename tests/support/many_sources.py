"""Sources that share silver tables: alike workloads, and the comparison of each with its rows."""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from deltalake import DeltaTable

from pipeline.config.config import Config
from tests.support.comparable.arrow import reader
from tests.support.comparable.source import Rows, snapshot, source_columns, source_rows
from tests.support.workload.tables import WORKLOAD, Column, Connection, Schema, Table
from tests.support.workload.transactions import Step

ADDED = {1: "int8", 2: "text", 3: "float8"}


class AlikeSteps(Step):
    """Steps that add columns of the same types in every schema."""

    def add_column(self, table: Table) -> None:
        if table.added < len(ADDED):
            table.added += 1
            column = Column(f"added_{table.added}", ADDED[table.added])
            self.conn.execute(f"ALTER TABLE {table.quoted} ADD COLUMN {column.quoted} {column.type}")
            table.columns.append(column)
        self.insert(table)


def rows_of(path: str, source: str, columns: Sequence[str]) -> Rows:
    """Return the rows of a source in a shared table, as the Rust library of Delta reads them."""
    table = DeltaTable(path)
    names = {field.name for field in table.schema().fields}
    found = table.to_pyarrow_table(
        filters=[("_source", "=", source)], columns=[name for name in columns if name in names]
    )
    readers = {field.name: reader(field.type) for field in found.schema}
    rows: Rows = Counter()
    for row in found.to_pylist():
        values = ((name, row.get(name)) for name in columns)
        rows[tuple(None if v is None else readers[name](v) for name, v in values)] += 1
    return rows


def assert_equal(
    source: Connection, config: Config, schemas: Sequence[Schema], tables: Collection[str] = WORKLOAD
) -> None:
    """Assert that the rows of each schema in shared tables equal those of some of its tables."""
    root = config.silver.shared_root or f"{config.storage.root}/silver"
    with snapshot(source):
        for name in (name for schema in schemas for name in schema.names if name.table in tables):
            columns = source_columns(source, *name)
            wanted = source_rows(source, *name, columns)
            if not Path(root, name.table, "_delta_log").exists():
                assert not wanted, name
                continue
            found = rows_of(
                f"{root}/{name.table}", f"{config.pipeline}.{name.schema}", [c.name for c in columns]
            )
            assert found == wanted, (
                name,
                list((wanted - found).items())[:3],
                list((found - wanted).items())[:3],
            )
