"""Run the SQL of the fold in DuckDB, in this process: a relation is a query, an Arrow table or a table.

All sessions share one database in memory, in which each has a connection of its own.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from pipeline.engine import DUCKDB
from pipeline.silver.fold.sql_session import SqlSession

if TYPE_CHECKING:
    import duckdb
    import pyarrow.dataset as ds

SETTINGS: dict[str, Any] = {
    "memory_limit": "1GB",
    "disabled_optimizers": "build_side_probe_side",  # the right side of a join is the one in memory
    "threads": 2,
    "preserve_insertion_order": True,  # rows of a table come in their order: to sort them needs memory
    "temp_directory": "",  # rows are not written to disk: what needs more memory is left to Spark
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,  # names are relations, never variables of this program
}

_lock = threading.Lock()
_databases: list[duckdb.DuckDBPyConnection] = []  # one at most, for the process


def _connect() -> duckdb.DuckDBPyConnection:
    import duckdb

    with _lock:
        if not _databases:
            database = duckdb.connect(":memory:", config=SETTINGS)
            database.execute("SET GLOBAL TimeZone = 'UTC'")
            _databases.append(database)
        return _databases[0].cursor()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a query needs more memory than it may use."""
    import duckdb

    return isinstance(error, duckdb.OutOfMemoryException)


class ArrowStream(Protocol):
    """Rows by Arrow's interface of PyCapsules."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of the rows."""


class DuckSql(SqlSession):
    """One connection to DuckDB: to the database in memory, unless another is given, which `close` closes."""

    engine = DUCKDB

    def __init__(self, connection: duckdb.DuckDBPyConnection | None = None) -> None:
        self._connection = connection or _connect()
        self._defined: dict[str, str] = {}  # queries by name, each of earlier ones only
        self._tables: list[str] = []
        self._arrow: list[str] = []

    def define(self, name: str, query: str) -> None:
        self._defined.pop(name, None)
        self._defined[name] = query

    def compute(self, name: str, query: str) -> None:
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {self.with_defined(query)}")
        self._defined.pop(name, None)
        self._tables.append(name)

    def row(self, query: str) -> Any:
        found = self._connection.execute(self.with_defined(query))
        names = [column[0] for column in found.description]
        (values,) = found.fetchall()
        return SimpleNamespace(**dict(zip(names, values, strict=True)))

    def is_empty(self, query: str) -> bool:
        first = self.with_defined(f"SELECT 1 FROM ({query}) AS q LIMIT 1")
        return not self._connection.execute(first).fetchall()

    def table(self, query: str) -> pa.Table:
        return self._connection.sql(self.with_defined(query)).to_arrow_table()

    def batches(self, query: str, row_count: int) -> Iterator[pa.Table]:
        for batch in self._connection.sql(self.with_defined(query)).to_arrow_reader(row_count):
            yield pa.Table.from_batches([batch])

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self._connection.execute(self.with_defined(query)).fetchall()

    def with_defined(self, query: str) -> str:
        """Return a query with the defined ones that it names; views would be planned once more for each."""
        needed: list[str] = []
        text = query
        for name, definition in reversed(self._defined.items()):
            if name in text and re.search(rf"\b{name}\b", text):
                needed.append(f"{name} AS NOT MATERIALIZED ({definition})")
                text = f"{text} {definition}"
        if not needed:
            return query
        if query.startswith("WITH "):
            query = f"SELECT * FROM ({query}) AS q"
        return f"WITH {', '.join(reversed(needed))} {query}"

    def add(self, name: str, rows: pa.Table | ds.Dataset | ArrowStream) -> None:
        """Name an Arrow table, a dataset, or what gives a new stream of its rows to each query."""
        self._connection.register(name, rows)
        self._arrow.append(name)

    def clear(self) -> None:
        for name in self._tables:
            self._connection.execute(f"DROP TABLE IF EXISTS {name}")
        for name in self._arrow:
            self._connection.unregister(name)
        self._defined, self._tables, self._arrow = {}, [], []
        self._return_memory()

    def close(self) -> None:
        """End the connection; its relations are gone."""
        self._connection.close()
        self._return_memory()

    def _return_memory(self) -> None:
        """Give memory that is free again back to the system: DuckDB does it when its limit is set.

        It may fail while another session has all the memory.
        """
        if self.has_many:
            import duckdb

            with suppress(duckdb.Error):
                _connect().execute(f"SET GLOBAL memory_limit = '{SETTINGS['memory_limit']}'")
