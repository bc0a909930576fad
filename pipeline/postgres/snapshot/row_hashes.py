"""Rows of the source as numbers: sums over ranges of their keys' hashes, and single rows of few ranges.

A row's hash is the MD5 of all its compared values, each in its form with its length before it; its key's hash
is that of the key's values, or of the whole row where there is no key. Keys are ordered by their hash: what
comes before what in a collation of the server, nobody else knows. Sums of hashes do not depend on the order
of rows and tell two equal rows from one. All is read under a snapshot, by one scan a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psycopg
from psycopg import errors as sqlstate
from psycopg import sql

from pipeline.errors import SourceError
from pipeline.postgres.catalog import CatalogRelation, read_relation
from pipeline.postgres.connection import describe
from pipeline.postgres.connection_errors import missing_right
from pipeline.postgres.published_tables import Leaf, PublishedTable, describe_published
from pipeline.postgres.snapshot.comparable_text import Form, canonical
from pipeline.postgres.snapshot.export import Snapshot, connect_for_copy
from pipeline.postgres.snapshot.read_table import RowsMoved, SnapshotLost
from pipeline.table_name import TableName

_CONCATENATED = 50  # values: of arguments PostgreSQL takes 100


@dataclass(frozen=True, slots=True)
class RangeSum:
    """What a range of keys holds: so many rows, and two sums over parts of their hashes."""

    rows: int
    first: int
    second: int


@dataclass(frozen=True, slots=True)
class RowHash:
    """One row: the hashes of its key, of all of it and of each value, and its key's texts."""

    key: str
    row: str
    columns: tuple[str, ...]
    texts: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class HashedColumns:
    """The compared columns of a table, each with its form; `key` are the places of the key's, or empty."""

    columns: tuple[tuple[str, Form], ...]
    key: tuple[int, ...]


class SourceTable:
    """One published table as a snapshot has it, in a session of its own that holds a lock while it reads."""

    def __init__(self, conninfo: str, snapshot: Snapshot, publication: str, name: TableName) -> None:
        self._name = str(name)
        self._connection = connect_for_copy(conninfo)
        try:
            self._begin(snapshot)
            self.table = describe_published(self._connection, publication, name)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> SourceTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def facts(self) -> CatalogRelation:
        """Return what the catalog says of the columns, as the snapshot has it."""
        found = read_relation(self._connection, self.table.relation)
        if found is None:
            raise RowsMoved(f"{self._name} was altered while it was compared.")
        return found

    @property
    def is_utf8(self) -> bool:
        """Say whether the database's texts are the bytes that Spark has, as far as they are known."""
        return self._connection.pgconn.parameter_status(b"server_encoding") in (b"UTF8", b"SQL_ASCII")

    def _begin(self, snapshot: Snapshot) -> None:
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            name = sql.Literal(snapshot.name)
            self._connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(name))
        except psycopg.Error:
            raise SnapshotLost("The snapshot that tables are compared under is gone.") from None

    def execute(self, query: sql.Composed) -> list[tuple[Any, ...]]:
        """Run a query; raise RowsMoved or SnapshotLost where its rows are not those of the snapshot."""
        try:
            rows = self._connection.execute(query).fetchall()
            self._check()
        except (sqlstate.UndefinedTable, sqlstate.UndefinedColumn, sqlstate.InvalidSchemaName):
            raise RowsMoved(f"{self._name} was dropped or altered while it was compared.") from None
        except (sqlstate.SerializationFailure, sqlstate.QueryCanceled, sqlstate.SnapshotTooOld) as error:
            raise SnapshotLost(f"{self._name}: {describe(error)}.") from None
        except sqlstate.InsufficientPrivilege as error:
            fix = missing_right(describe(error), self._connection.info.user)
            raise SourceError(f"{self._name} cannot be compared: {describe(error)}; {fix}.") from None
        except psycopg.Error as error:
            raise SourceError(f"{self._name} cannot be compared: {describe(error)}.") from None
        return rows

    def _check(self) -> None:
        """Raise RowsMoved where the rows that the snapshot sees are not where it looks for them any more."""
        oids = [leaf.oid for leaf in self.table.leaves]
        query = (
            "SELECT count(*) FROM pg_catalog.pg_class WHERE oid = ANY (%s::bigint[]::oid[])"
            " AND relfilenode = pg_catalog.pg_relation_filenode(oid)"
        )
        row = self._connection.execute(query, (oids,)).fetchone()
        if row is None or row[0] != len(oids):
            raise RowsMoved(f"{self._name} was emptied or written anew while it was compared.")


class SourceRows:
    """The rows of a table, with hashes of the compared columns."""

    def __init__(self, source: SourceTable, shape: HashedColumns) -> None:
        self._source = source
        self._shape = shape
        self.misfits: dict[str, int] = {}  # by column, of all rows: values that their form has none for

    def sums(self, digits: int, within: Sequence[str] | None = None) -> dict[str, RangeSum]:
        """Return the sums of each range of so many digits, of all rows or of those within some ranges."""
        found = self._read(_SUMS, within, sql.Literal(digits), _misfit_counts(self._shape))
        if within is None:
            names = [column for column, form in self._shape.columns if form.counts_misfits]
            counts = zip(*(row[4] for row in found), strict=True)
            self.misfits = {name: int(sum(c)) for name, c in zip(names, counts, strict=False) if any(c)}
        return {row[0]: RangeSum(*map(int, row[1:4])) for row in found}

    def rows(self, within: Sequence[str]) -> list[RowHash]:
        """Return the rows of some ranges."""
        names = _names(self._shape)
        is_utf8 = self._source.is_utf8
        short = [sql.SQL("pg_catalog.left({}, 8)").format(_hash([_part(name)], is_utf8)) for name in names]
        texts = [names[i] for i in self._shape.key]
        found = self._read(_ROWS, within, *(sql.SQL(", ").join(some) for some in (short, texts)))
        return [RowHash(key, row, tuple(columns), tuple(texts)) for key, row, columns, texts in found]

    def _read(self, query: str, within: Sequence[str] | None, *more: sql.Composable) -> list[tuple[Any, ...]]:
        if not self._source.table.leaves:
            return []
        key = sql.SQL("h.k" if self._shape.key else "h.r")
        chosen = sql.SQL("true") if within is None else _within(key, within)
        rows = hashed_rows(self._source.table, self._shape, is_utf8=self._source.is_utf8)
        return self._source.execute(sql.SQL(query).format(rows, chosen, key, *more))


_SUMS = """
SELECT pg_catalog.left({2}, {3}), pg_catalog.count(*),
       pg_catalog.sum(('x' || pg_catalog.substr(h.r, 1, 15))::pg_catalog.bit(60)::bigint),
       pg_catalog.sum(('x' || pg_catalog.substr(h.r, 17, 15))::pg_catalog.bit(60)::bigint),
       ARRAY[{4}]::bigint[]
FROM ({0}) h WHERE {1} GROUP BY 1
"""
_ROWS = """
SELECT {2}, h.r, ARRAY[{3}]::text[], ARRAY[{4}]::text[] FROM ({0}) h WHERE {1}
"""


def hashed_rows(table: PublishedTable, shape: HashedColumns, *, is_utf8: bool) -> sql.Composed:
    """Return the query for each row's hashes, r, and of its key, k, beside its values c0… in their forms.

    Where a form loses values, n0… say whether there is one. OFFSET keeps the server from computing twice.
    """
    names = _names(shape)
    values = [
        sql.SQL("{} AS {}").format(canonical(form, sql.Identifier(column)), name)
        for (column, form), name in zip(shape.columns, names, strict=True)
    ]
    values += [
        sql.SQL("{} IS DISTINCT FROM NULL AS {}").format(sql.Identifier(column), sql.Identifier(f"n{i}"))
        for i, (column, form) in enumerate(shape.columns)
        if form.counts_misfits
    ]
    leaves = (_leaf(table, leaf, sql.SQL(", ").join(values)) for leaf in table.leaves)
    hashes = [sql.SQL("{} AS r").format(_hash([_part(name) for name in names], is_utf8))]
    if shape.key:
        hashes.append(sql.SQL("{} AS k").format(_hash([_part(names[i]) for i in shape.key], is_utf8)))
    return sql.SQL("SELECT {}, v.* FROM ({}) v OFFSET 0").format(
        sql.SQL(", ").join(hashes), sql.SQL(" UNION ALL ").join(leaves)
    )


def _leaf(table: PublishedTable, leaf: Leaf, values: sql.Composable) -> sql.Composed:
    """Return the query for the published rows of a leaf."""
    where = sql.SQL("true" if table.row_filter is None else table.row_filter)
    return sql.SQL("(SELECT {} FROM ONLY {} WHERE ({}) OFFSET 0)").format(
        values, sql.Identifier(leaf.schema_name, leaf.table_name), where
    )


def _names(shape: HashedColumns) -> list[sql.Identifier]:
    return [sql.Identifier(f"c{i}") for i in range(len(shape.columns))]


def _part(name: sql.Identifier) -> sql.Composed:
    """Return SQL for a value with its length before it; NULL has none."""
    return sql.SQL("pg_catalog.concat(pg_catalog.length({0}), ':', {0})").format(name)


def _hash(parts: Sequence[sql.Composable], is_utf8: bool) -> sql.Composed:
    groups = [parts[i : i + _CONCATENATED] for i in range(0, len(parts), _CONCATENATED)]
    text = sql.SQL(" || ").join(
        sql.SQL("pg_catalog.concat({})").format(sql.SQL(", ").join(group)) for group in groups
    )
    if is_utf8:
        return sql.SQL("pg_catalog.md5({})").format(text)
    return sql.SQL("pg_catalog.md5(pg_catalog.convert_to({}, 'UTF8'))").format(text)


def _misfit_counts(shape: HashedColumns) -> sql.Composed:
    counts = [
        sql.SQL("pg_catalog.count(*) FILTER (WHERE h.{} AND h.{} IS NULL)").format(
            sql.Identifier(f"n{i}"), sql.Identifier(f"c{i}")
        )
        for i, (_, form) in enumerate(shape.columns)
        if form.counts_misfits
    ]
    return sql.SQL(", ").join(counts)


def _within(key: sql.Composable, ranges: Sequence[str]) -> sql.Composed:
    return sql.SQL("pg_catalog.left({}, {}) = ANY ({}::text[])").format(
        key, sql.Literal(len(ranges[0])), sql.Literal(list(ranges))
    )
