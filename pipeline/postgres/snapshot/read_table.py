"""Read the rows of a table under a shared snapshot, in the text format in which the stream sends values.

A reader reads pages of a leaf (ranges of ctid). The server concatenates many rows to one text, with a control
character after every value, which takes less than a third of the time of single rows on both sides. If a
value contains one of these characters, which the counts show, or the text is too long, rows are read one by
one, and so are rows that are selected by key. How many pages one text may have is found for each leaf. Values
in a TOAST table may make the text of a page any size: their sizes are added up first, which reads no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import errors as sqlstate
from psycopg import sql

from pipeline.postgres.connection import (
    describe,
    limit_lock_time,
    limit_statement_time,
    use_raw_encoding,
)
from pipeline.postgres.publication import Leaf, PublishedTable
from pipeline.postgres.snapshot.export import (
    SnapshotLost,
    SourceSnapshot,
    begin_under,
    connect_for_copy,
    reading_error,
)
from pipeline.postgres.snapshot.moved_rows import refuse_moved
from pipeline.protocol.pg_types import PgType

VALUE_END, ROW_END, NULL_MARK = "\x1f", "\x1e", "\x1d"
BLOCK_BYTES = 4 << 20  # approximate size of one text
_MAX_PAGES = 8192
_MAX_GROWTH = 8  # of the pages from one text to the next
_MAX_VALUE_BYTES = 2 * BLOCK_BYTES  # of the values of one text, as far as the server knows without them
_CONCATENATED = 30  # values, three arguments each: PostgreSQL allows 100 arguments
_WITH_RAW_SIZE = (PgType.TEXT, PgType.VARCHAR, PgType.BYTEA)
_MAX_PAGE_ROWS = 291  # in a page of 8 KiB


@dataclass(frozen=True, slots=True)
class LeafPages:
    """Pages [first, end) of a leaf."""

    leaf: Leaf
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows: as `text`, with VALUE_END after each value and ROW_END after each row, or as `rows`."""

    row_count: int
    text: bytes = b""
    rows: Sequence[Sequence[bytes | None]] | None = None

    @property
    def byte_count(self) -> int:
        """The size of the values in bytes."""
        if self.rows is None:
            return len(self.text)
        return sum(len(value) for row in self.rows for value in row if value is not None)


class CopyReader:
    """One session that reads ranges of pages, for one thread."""

    def __init__(self, conninfo: str, *, statement_seconds: float | None = None) -> None:
        """Open the session; a statement that takes longer than `statement_seconds` fails."""
        self._connection = connect_for_copy(conninfo)
        use_raw_encoding(self._connection)
        if statement_seconds is not None:
            limit_statement_time(self._connection, statement_seconds)
        self._leaf_oid = 0  # of the leaf that was read last
        self._pages = 1  # of its next text

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def read(
        self, snapshot: SourceSnapshot | None, table: PublishedTable, pages: LeafPages
    ) -> Iterator[Block]:
        """Yield the rows of the range; raise SnapshotLost, RowsMoved or SourceError if that fails.

        Without a snapshot they are those of the moment, for a sample.
        """
        connection = self._connection
        try:
            if snapshot is None:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            else:
                begin_under(connection, snapshot)
            limit_lock_time(connection)
            yield from self._blocks(table, pages)
            connection.execute("ROLLBACK")
        except psycopg.Error as error:
            if connection.broken or connection.closed:
                raise SnapshotLost(
                    f"Lost a session that copies the table {table.name}: {describe(error)}."
                ) from None
            self._reset()
            raise reading_error(table.name, "copied", error, connection.info.user) from None
        except BaseException:
            self._reset()
            raise

    def _reset(self) -> None:
        if not self._connection.closed:
            with suppress(psycopg.Error):  # the next use of a lost session raises its error
                self._connection.execute("ROLLBACK")

    def _blocks(self, table: PublishedTable, pages: LeafPages) -> Iterator[Block]:
        leaf, first = pages.leaf, pages.first
        if leaf.oid != self._leaf_oid:
            self._leaf_oid, self._pages = leaf.oid, 1
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
                self._adapt(stop - first, block.byte_count)
            first = stop
        refuse_moved(self._connection, table, [leaf], "copied")

    def _adapt(self, pages: int, byte_count: int) -> None:
        """Let the next text have about BLOCK_BYTES, given the last one."""
        fitting = pages * BLOCK_BYTES // max(byte_count, 1)
        self._pages = max(1, min(fitting, max(_MAX_GROWTH * pages, self._pages), _MAX_PAGES))

    def _aggregate(self, table: PublishedTable, leaf: Leaf, first: int, stop: int) -> Block | None:
        """Return the rows of pages as one text; None if that is ambiguous or too long."""
        width = len(table.relation.columns)
        query = aggregate_query(table, leaf, first, stop, self._connection.info.server_version)
        connection = self._connection
        try:
            with connection.transaction():  # a savepoint: the transaction continues after an error
                result = connection.execute(query, binary=True).fetchone()
        except (sqlstate.ProgramLimitExceeded, sqlstate.OutOfMemory):
            return None
        assert result is not None
        row_count, null_count, text, byte_count = result
        if byte_count > _MAX_VALUE_BYTES:
            return None
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


def aggregate_query(table: PublishedTable, leaf: Leaf, first: int, stop: int, server_version: int) -> bytes:
    """Return the query for (rows, NULLs, text, bytes of values) of pages [first, stop), in UTF-8.

    There is no text if the values have more than `_MAX_VALUE_BYTES`. `concat` uses the output functions, as
    the stream does; a cast to text does not always. IS DISTINCT FROM, because a composite of NULLs IS NULL
    although it is not.
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
    rows = _from(table, leaf, first, stop, server_version)
    sizes: sql.Composable = sql.SQL("SELECT 0::bigint AS bytes")
    limit: sql.Composable = sql.SQL("")
    if leaf.has_toast:
        sizes = sql.SQL("SELECT ({})::bigint AS bytes FROM ").format(_value_bytes(table)) + rows
        limit = sql.SQL(" AND (SELECT bytes FROM sizes) <= {}").format(sql.Literal(_MAX_VALUE_BYTES))
    query = sql.SQL(
        "WITH sizes AS ({}) SELECT pg_catalog.count(*), coalesce(pg_catalog.sum({}), 0)::bigint,"
        " pg_catalog.string_agg({}, ''), (SELECT bytes FROM sizes) FROM {}"
    ).format(
        sizes,
        sql.SQL(" + ").join(counts) if counts else sql.SQL("0"),
        sql.SQL(" || ").join([*texts, sql.SQL("{}::text").format(sql.Literal(ROW_END))]),
        rows + limit,
    )
    return query.as_bytes()  # without the session, whose encoding may be ASCII


def _value_bytes(table: PublishedTable) -> sql.Composed:
    """Return SQL for the bytes of all values, of texts without compression; it reads nothing from TOAST."""
    sums: list[sql.Composable] = []
    for column in table.relation.columns:
        name = "octet_length" if column.type_oid in _WITH_RAW_SIZE else "pg_column_size"
        size = sql.SQL("pg_catalog.{}({})").format(sql.SQL(name), sql.Identifier(column.name))
        sums.append(sql.SQL("coalesce(pg_catalog.sum({}), 0)").format(size))
    return sql.SQL(" + ").join(sums or [sql.SQL("0")])


def rows_query(table: PublishedTable, leaf: Leaf, first: int, stop: int, server_version: int) -> bytes:
    """Return the query for the rows of pages [first, stop), each value as text or NULL, in UTF-8."""
    values = [
        sql.SQL("CASE WHEN {0} IS DISTINCT FROM NULL THEN pg_catalog.concat({0}) END").format(
            sql.Identifier(column.name)
        )
        for column in table.relation.columns
    ]
    query = sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(values), _from(table, leaf, first, stop, server_version)
    )
    return query.as_bytes()


def _from(table: PublishedTable, leaf: Leaf, first: int, stop: int, server_version: int) -> sql.Composed:
    source = sql.SQL("ONLY {} WHERE ").format(sql.Identifier(leaf.schema_name, leaf.table_name))
    condition: sql.Composable = page_condition(first, stop, server_version)
    if table.keys is not None:
        condition = table.keys
    if table.row_filter is None:
        return source + condition
    return source + condition + sql.SQL(f" AND ({table.row_filter})")


def page_condition(first: int, stop: int, server_version: int) -> sql.Composed:
    """Return SQL that is true for the rows of pages [first, stop) of a leaf, and reads no other page."""
    if server_version >= 140000:
        return sql.SQL("ctid >= {} AND ctid < {}").format(
            sql.Literal(f"({first},0)"), sql.Literal(f"({stop},0)")
        )
    # Older servers cannot scan a range of ctid: list every possible ctid of the pages.
    return sql.SQL(
        "ctid = ANY (ARRAY(SELECT ('(' || p || ',' || i || ')')::pg_catalog.tid"
        " FROM pg_catalog.generate_series({}, {}) p, pg_catalog.generate_series(1, {}) i))"
    ).format(sql.Literal(first), sql.Literal(stop - 1), sql.Literal(_MAX_PAGE_ROWS))
