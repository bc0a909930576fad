"""Answer SQL about rows of silver tables by DuckDB, in memory.

The session reads the rows that it is given, and nothing else: no file, no network, no extension. Only one
SELECT statement is accepted. What needs more than its memory is spilled to a temporary folder.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from pipeline.engine import DUCKDB
from pipeline.errors import ConfigError, LakeError
from pipeline.silver.read.query_names import DEFAULT_SCHEMA, folded, named_tables, quoted
from pipeline.silver.read.silver_rows import SilverRows
from pipeline.table_name import TableName

SETTINGS: Mapping[str, Any] = {
    "memory_limit": "1GB",
    "max_temp_directory_size": "16GB",
    "threads": 2,
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,  # names are relations, never variables of this program
}
_BATCH_ROWS = 2048
_NUMBER_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
_FLOATS = ("FLOAT", "DOUBLE")
_ONLY_SELECT = "pgdelta query runs one SELECT statement. Write one, without others before or after it."
_MISTAKES = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result: its name, DuckDB's type, and whether the values are numbers."""

    name: str
    type: str

    @property
    def is_number(self) -> bool:
        """Whether values are aligned as numbers."""
        return self.type.split("(")[0].removeprefix("U") in _NUMBER_TYPES


class QuerySession:
    """A database with a view for each table, `"schema"."table"`; `close` ends it.

    `refused` are tables without rows, each with the reason, which an error names if the query does.
    `why_missing` gives the sentence about a table that is in neither of the two.
    """

    def __init__(
        self,
        tables: Mapping[TableName, SilverRows],
        refused: Mapping[TableName, str],
        why_missing: Callable[[TableName], str] | None = None,
    ) -> None:
        self._why_missing = why_missing
        self._folder = tempfile.TemporaryDirectory(prefix="pgdelta-query-")
        self._tables = tables
        self._refused = dict(refused)
        self._connection = duckdb.connect(
            ":memory:", config={**SETTINGS, "temp_directory": self._folder.name}
        )
        connection = self._connection
        connection.execute("SET TimeZone = 'UTC'")
        self._sources: dict[TableName, str] = {}
        for number, (name, rows) in enumerate(sorted(tables.items())):
            self._sources[name] = f"pgdelta rows {number}"
            connection.register(self._sources[name], rows)
            try:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {DUCKDB.quoted(name.schema)}")
                self._show(name)
            except duckdb.Error:
                self._refused[name] = f"Table {name} cannot be queried: DuckDB has its schema for itself."
        self._by_folded_name: dict[tuple[str, str], list[TableName]] = defaultdict(list)
        for name in (*tables, *self._refused):
            self._by_folded_name[folded(name)].append(name)
        if any(name.schema == DEFAULT_SCHEMA for name in tables):
            connection.execute(f"SET search_path = '{DEFAULT_SCHEMA}'")
        connection.execute("SET lock_configuration = true")

    def _show(self, name: TableName) -> None:
        """Give a table its name, instead of one whose name differs only in case."""
        rows = DUCKDB.quoted(self._sources[name])
        self._connection.execute(f"CREATE OR REPLACE VIEW {quoted(name)} AS SELECT * FROM {rows}")

    def columns(self, sql: str) -> list[ResultColumn]:
        """Return the columns of a query; raise ConfigError if it is not one SELECT statement or is wrong."""
        query = self._checked(sql)
        try:
            found = self._connection.sql(query)
            return [ResultColumn(n, str(t)) for n, t in zip(found.columns, found.types, strict=True)]
        except _MISTAKES as error:
            raise ConfigError(self._missing(error, query) or _sentence(error)) from None
        except duckdb.Error as error:
            raise self._failure(error) from None

    def _missing(self, error: Exception, query: str) -> str | None:
        """Return the sentence about the table that DuckDB did not find, if it is one that silver lacks."""
        if self._why_missing is None or not isinstance(error, duckdb.CatalogException):
            return None
        lacking = [name for name in named_tables(self._connection, query) if name not in self._tables]
        return self._why_missing(lacking[0]) if lacking else None

    def texts(self, sql: str, count: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query with `count` columns, each value as DuckDB's text."""
        values = ", ".join(f"CAST(#{i + 1} AS VARCHAR) AS c{i}" for i in range(count))
        return self._rows(f"SELECT {values} FROM (\n{self._checked(sql)}\n) AS q")

    def csv_rows(self, sql: str, count: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query with `count` columns, each as a line of CSV as PostgreSQL writes it."""
        values = ", ".join(f"#{i + 1}::VARCHAR" for i in range(count))
        cell = (
            "CASE WHEN e IS NULL THEN '' WHEN e = '' OR regexp_matches(e, '[\",\\r\\n]') "
            "THEN concat('\"', replace(e, '\"', '\"\"'), '\"') ELSE e END"
        )
        row = f"array_to_string(list_transform([{values}], lambda e: {cell}), ',')"
        return self._rows(f"SELECT {row} AS row FROM (\n{self._checked(sql)}\n) AS q")

    def json_rows(self, sql: str, columns: Sequence[ResultColumn]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query with these columns, each as the text of a JSON array."""
        values = ", ".join(_json_value(f"#{i + 1}", column.type) for i, column in enumerate(columns))
        row = f"CAST(json_array({values}) AS VARCHAR)"
        return self._rows(f"SELECT {row} AS row FROM (\n{self._checked(sql)}\n) AS q")

    def _rows(self, query: str) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._connection.sql(query).to_arrow_reader(_BATCH_ROWS)
        except Exception as error:  # of Arrow too, which reads the rows of DuckDB
            raise self._failure(error) from None

    def _checked(self, sql: str) -> str:
        """Return the text of the one SELECT statement that SQL has; raise ConfigError for anything else."""
        try:
            statements = duckdb.extract_statements(sql)
        except duckdb.Error as error:
            raise ConfigError(_sentence(error)) from None
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise ConfigError(_ONLY_SELECT)
        query = str(statements[0].query).strip().rstrip(";")
        self._show_exactly(named_tables(self._connection, query))
        return query

    def _show_exactly(self, names: Sequence[TableName]) -> None:
        """Show the tables that a query names, where others have names that differ only in case.

        Raises LakeError for a table that cannot be read, ConfigError for one that is not there while one in
        another case is, and for two that differ only in case.
        """
        for number, name in enumerate(names):
            if name in self._refused:
                raise LakeError(self._refused[name])
            if twin := next((other for other in names[:number] if folded(other) == folded(name)), None):
                raise ConfigError(
                    f"{quoted(twin)} and {quoted(name)} differ only in case, and one query cannot have both. "
                    "Query them one after the other."
                )
            others = [other for other in self._by_folded_name.get(folded(name), ()) if other != name]
            if others and name not in self._tables:
                raise ConfigError(
                    f"Silver has no table {quoted(name)}, but {quoted(others[0])}. Write the name in double "
                    "quotes if it has capitals."
                )
            if others:
                self._show(name)

    def _failure(self, error: Exception) -> Exception:
        """Return why rows could not be read or computed, without a value."""
        for rows in self._tables.values():
            if rows.failures:
                return rows.failures[0]
        if isinstance(error, duckdb.PermissionException):
            return ConfigError("pgdelta query reads silver tables only, no files. Name them schema.table.")
        if isinstance(error, duckdb.OutOfMemoryException):
            return LakeError(
                "The query needs more memory or temporary files than it may use. Read fewer rows."
            )
        kind = str(error).split(":")[0]
        return LakeError(f"The query failed while it ran ({kind}). Check casts and functions of its values.")

    def close(self) -> None:
        """End the session and remove its temporary files."""
        self._connection.close()
        with suppress(OSError):
            self._folder.cleanup()


def _json_value(value: str, kind: str) -> str:
    """Return SQL for what JSON has of a value; numbers that it does not have are texts."""
    if kind in _FLOATS:
        return f"CASE WHEN isfinite({value}) THEN to_json({value}) ELSE to_json({value}::VARCHAR) END"
    if kind.removesuffix("[]") in _FLOATS:
        number = "CASE WHEN isfinite(e) THEN to_json(e) ELSE to_json(e::VARCHAR) END"
        return f"list_transform({value}, lambda e: {number})"
    return f"{value}::VARCHAR" if any(name in kind for name in _FLOATS) else value


def _sentence(error: Exception) -> str:
    """Return the first line of DuckDB's message about SQL, as a sentence."""
    line = str(error).split("\n")[0].strip().rstrip(".!")
    return f"{line}. Check the query; tables are named schema.table."
