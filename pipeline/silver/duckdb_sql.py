"""Run the SQL of the fold in DuckDB, in this process: relations are views, Arrow tables and temporary tables.

All sessions share one database in memory, in which each has a connection of its own.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pipeline.engine import DUCKDB
from pipeline.silver.sql_session import SqlSession

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

SETTINGS: dict[str, Any] = {
    "memory_limit": "1GB",
    "threads": 2,
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
            _databases.append(duckdb.connect(":memory:", config=SETTINGS))
        connection = _databases[0].cursor()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a query needs more memory than it may use."""
    import duckdb

    return isinstance(error, duckdb.OutOfMemoryException)


class DuckSql(SqlSession):
    """One connection to DuckDB: to the database in memory, unless another is given, which `close` closes."""

    engine = DUCKDB

    def __init__(self, connection: duckdb.DuckDBPyConnection | None = None) -> None:
        self._connection = connection or _connect()
        self._tables: list[str] = []
        self._views: list[str] = []
        self._arrow: list[str] = []

    def define(self, name: str, query: str) -> None:
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")
        self._views.append(name)

    def compute(self, name: str, query: str) -> None:
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")
        self._tables.append(name)

    def row(self, query: str) -> Any:
        found = self._connection.sql(query)
        (values,) = found.fetchall()
        return SimpleNamespace(**dict(zip(found.columns, values, strict=True)))

    def is_empty(self, query: str) -> bool:
        return not self._connection.sql(f"SELECT 1 FROM ({query}) AS q LIMIT 1").fetchall()

    def table(self, query: str) -> pa.Table:
        return self._connection.sql(query).to_arrow_table()

    def add(self, name: str, rows: pa.Table) -> None:
        """Name an Arrow table."""
        self._connection.register(name, rows)
        self._arrow.append(name)

    def clear(self) -> None:
        for name in reversed(self._views):
            self._connection.execute(f"DROP VIEW IF EXISTS {name}")
        for name in self._tables:
            self._connection.execute(f"DROP TABLE IF EXISTS {name}")
        for name in self._arrow:
            self._connection.unregister(name)
        self._views, self._tables, self._arrow = [], [], []

    def close(self) -> None:
        """End the connection; its relations are gone."""
        self._connection.close()
