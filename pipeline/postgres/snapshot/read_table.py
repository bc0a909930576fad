"""Rows that are in a table already, read as the stream would send them, under a shared snapshot.

A reader takes pages of a leaf (ranges of ctid). The server makes one text of many rows, with a control
character behind every value, which costs both sides less than a third of sending row by row; where a value
holds such a character itself, which the counts tell, or the text grows too long, the rows come one by one.
The rows of some keys do so, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import errors as sqlstate
from psycopg import sql

from pipeline.errors import SourceError
from pipeline.postgres.connection import describe, use_raw_encoding
from pipeline.postgres.connection_errors import missing_right
from pipeline.postgres.published_tables import Leaf, PublishedTable
from pipeline.postgres.snapshot.export import Snapshot, connect_for_copy

VALUE_END, ROW_END, NULL_MARK = "\x1f", "\x1e", "\x1d"
BLOCK_BYTES = 8 << 20  # about what one text shall have
_FIRST_PAGES = 32
_MOST_PAGES = 8192
_CONCATENATED = 30  # values: of arguments, three for each, PostgreSQL takes 100
_MOST_LINES = 291  # rows of a page of 8 KiB


class SnapshotLost(SourceError):
    """The snapshot is gone, with its session or by a conflict: what is not read yet needs another one."""


class RowsMoved(SourceError):
    """The table changed under way, so that what was read of it does not fit together."""


@dataclass(frozen=True, slots=True)
class LeafPages:
    """Pages [first, end) of a leaf."""

    leaf: Leaf
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows: as `text`, with VALUE_END behind each value and ROW_END behind each row; or as `rows`."""

    row_count: int
    text: bytes = b""
    rows: Sequence[Sequence[bytes | None]] | None = None

    @property
    def byte_count(self) -> int:
        """Return how many bytes came."""
        if self.rows is None:
            return len(self.text)
        return sum(len(value) for row in self.rows for value in row if value is not None)


class CopyReader:
    """One session that reads ranges of pages; used by one thread."""

    def __init__(self, conninfo: str) -> None:
        self._connection = connect_for_copy(conninfo)
        use_raw_encoding(self._connection)
        self._pages = _FIRST_PAGES

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def read(self, snapshot: Snapshot, table: PublishedTable, pages: LeafPages) -> Iterator[Block]:
        """Give the rows of the range; raise SnapshotLost or RowsMoved where they cannot be had."""
        name = str(table.name)
        try:
            self._begin(snapshot)
            yield from self._blocks(table, pages)
            self._connection.execute("ROLLBACK")
        except (sqlstate.UndefinedTable, sqlstate.UndefinedColumn, sqlstate.InvalidSchemaName):
            self._reset()
            raise RowsMoved(f"{name} was dropped or altered while it was copied.") from None
        except (sqlstate.SerializationFailure, sqlstate.QueryCanceled, sqlstate.SnapshotTooOld) as error:
            self._reset()
            raise SnapshotLost(f"{name}: {describe(error)}.") from None
        except sqlstate.InsufficientPrivilege as error:
            self._reset()
            fix = missing_right(describe(error), self._connection.info.user)
            raise SourceError(f"{name} cannot be copied: {describe(error)}; {fix}.") from None
        except psycopg.Error as error:
            if self._connection.broken or self._connection.closed:
                raise SnapshotLost(f"Lost a session that copies {name}: {describe(error)}.") from None
            self._reset()
            raise SourceError(f"{name} cannot be copied: {describe(error)}.") from None
        except GeneratorExit:
            self._reset()
            raise

    def _begin(self, snapshot: Snapshot) -> None:
        connection = self._connection
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.name)))
        except (sqlstate.InvalidParameterValue, sqlstate.UndefinedObject, sqlstate.InvalidTextRepresentation):
            self._reset()
            raise SnapshotLost("The snapshot that rows are copied under is gone.") from None

    def _reset(self) -> None:
        if not self._connection.closed:
            with suppress(psycopg.Error):  # a session that was lost meanwhile says so at its next use
                self._connection.execute("ROLLBACK")

    def _blocks(self, table: PublishedTable, pages: LeafPages) -> Iterator[Block]:
        leaf, first = pages.leaf, pages.first
        if table.keys is not None:
            yield from self._one_by_one(table, leaf, first, pages.end)
            first = pages.end
        while first < pages.end:
            stop = min(pages.end, first + self._pages)
            block = self._aggregate(table, leaf, first, stop)
            if block is None and stop - first > 1:
                self._pages = max(1, (stop - first) // 8)
                continue
            if block is None:
                yield from self._one_by_one(table, leaf, first, stop)
            elif block.row_count:
                yield block
            if block is not None:
                self._adapt(block.byte_count)
            first = stop
        # The rows of a table that was written anew have other places, or are hidden from an older snapshot.
        self._check(table, leaf)

    def _adapt(self, byte_count: int) -> None:
        if byte_count > BLOCK_BYTES:
            self._pages = max(1, self._pages // 2)
        elif byte_count < BLOCK_BYTES // 2:
            self._pages = min(_MOST_PAGES, self._pages * 2)

    def _check(self, table: PublishedTable, leaf: Leaf) -> None:
        """Raise RowsMoved where the leaf's rows were written anew."""
        query = "SELECT pg_catalog.pg_relation_filenode(%s::bigint::oid)::bigint"
        row = self._connection.execute(query, (leaf.oid,)).fetchone()
        if row is None or row[0] != leaf.filenode:
            raise RowsMoved(f"{table.name} was written anew while it was copied.")

    def _aggregate(self, table: PublishedTable, leaf: Leaf, first: int, stop: int) -> Block | None:
        """Return the rows of pages as one text; None where that is ambiguous or too long."""
        width = len(table.relation.columns)
        query = aggregate_query(table, leaf, first, stop, self._connection.info.server_version)
        connection = self._connection
        try:
            with connection.transaction():  # a savepoint: what is too long is read another way
                result = connection.execute(query, binary=True).fetchone()
        except (sqlstate.ProgramLimitExceeded, sqlstate.OutOfMemory):
            return None
        assert result is not None
        row_count, null_count, text = result
        data = text.encode() if isinstance(text, str) else bytes(text or b"")
        is_plain = (
            data.count(ROW_END.encode()) == row_count
            and data.count(VALUE_END.encode()) == row_count * width
            and data.count(NULL_MARK.encode()) == null_count
        )
        return Block(row_count, data) if is_plain else None

    def _one_by_one(self, table: PublishedTable, leaf: Leaf, first: int, stop: int) -> Iterator[Block]:
        query = rows_query(table, leaf, first, stop, self._connection.info.server_version)
        rows: list[Sequence[bytes | None]] = []
        size = 0
        for row in self._connection.cursor().stream(query):
            values = [v.encode() if isinstance(v, str) else v for v in row]
            rows.append(values)
            size += sum(len(v) for v in values if v is not None)
            if size >= BLOCK_BYTES:
                yield Block(len(rows), rows=rows)
                rows, size = [], 0
        if rows:
            yield Block(len(rows), rows=rows)


def aggregate_query(
    table: PublishedTable, leaf: Leaf, first: int, stop: int, server_version: int
) -> sql.Composed:
    """Return the query for (rows, NULLs, text) of pages [first, stop).

    `concat` writes values as the stream does, by their output functions; a cast to text does not always. That
    a composite of NULLs is no NULL, only DISTINCT knows.
    """
    columns = [sql.Identifier(column.name) for column in table.relation.columns]
    parts: list[sql.Composable] = []
    for column, is_nullable in zip(columns, table.nullable, strict=True):
        mark = sql.SQL("CASE WHEN {} IS NOT DISTINCT FROM NULL THEN {} END, ").format(
            column, sql.Literal(NULL_MARK)
        )
        value = sql.SQL("{}, {}").format(column, sql.Literal(VALUE_END))
        parts.append(mark + value if is_nullable else value)
    groups = [parts[i : i + _CONCATENATED] for i in range(0, len(parts), _CONCATENATED)]
    texts = [sql.SQL("pg_catalog.concat({})").format(sql.SQL(", ").join(group)) for group in groups]
    nullable = [c for c, is_nullable in zip(columns, table.nullable, strict=True) if is_nullable]
    counts = [
        sql.SQL("pg_catalog.num_nulls({})").format(sql.SQL(", ").join(nullable[i : i + 90]))
        for i in range(0, len(nullable), 90)
    ]
    return sql.SQL(
        "SELECT pg_catalog.count(*), coalesce(pg_catalog.sum({}), 0)::bigint,"
        " pg_catalog.string_agg({}, '') FROM {}"
    ).format(
        sql.SQL(" + ").join(counts) if counts else sql.SQL("0"),
        sql.SQL(" || ").join([*texts, sql.SQL("{}::text").format(sql.Literal(ROW_END))]),
        _from(table, leaf, first, stop, server_version),
    )


def rows_query(table: PublishedTable, leaf: Leaf, first: int, stop: int, server_version: int) -> sql.Composed:
    """Return the query for the rows of pages [first, stop), each value a text or NULL."""
    values = [
        sql.SQL("CASE WHEN {0} IS DISTINCT FROM NULL THEN pg_catalog.concat({0}) END").format(
            sql.Identifier(column.name)
        )
        for column in table.relation.columns
    ]
    return sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(values), _from(table, leaf, first, stop, server_version)
    )


def _from(table: PublishedTable, leaf: Leaf, first: int, stop: int, server_version: int) -> sql.Composed:
    source = sql.SQL("ONLY {} WHERE ").format(sql.Identifier(leaf.schema_name, leaf.table_name))
    if table.keys is not None:
        places = table.keys
    elif server_version >= 140000:
        places = sql.SQL("ctid >= {} AND ctid < {}").format(
            sql.Literal(f"({first},0)"), sql.Literal(f"({stop},0)")
        )
    else:
        # Without a scan of a range of places, all places that there can be.
        places = sql.SQL(
            "ctid = ANY (ARRAY(SELECT ('(' || p || ',' || i || ')')::pg_catalog.tid"
            " FROM pg_catalog.generate_series({}, {}) p, pg_catalog.generate_series(1, {}) i))"
        ).format(sql.Literal(first), sql.Literal(stop - 1), sql.Literal(_MOST_LINES))
    if table.row_filter is None:
        return source + places
    return source + places + sql.SQL(f" AND ({table.row_filter})")
