"""Hash the rows of the source: sums of hashes for ranges of keys, and the single rows of some ranges.

The hash of a row is the MD5 of its compared values in their comparable forms, with commas between them. A
text is preceded by its length; NULL is nothing, and commas at the end are left out, so a column that is added
later changes no hash of a row that lacks it. The hash of its key is that of the key's values, or of the
complete row if the table has no key. Ranges are prefixes of the key's hash, because the order of a collation
is not known outside the server. Sums of hashes do not depend on the order of rows, and count equal rows. Each
query is one scan under a shared snapshot.

A value is hashed in a form that Spark writes too (`silver.comparable_text`): for most types PostgreSQL's own
text, as in the stream. A decimal has the digits of silver's scale, a float is its bits, and a value that
silver's type cannot hold is NULL or, if that is the column's policy, the nearest one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from pipeline.fingerprint import Fingerprint
from pipeline.postgres.catalog import CatalogRelation, read_relation
from pipeline.postgres.connection import describe
from pipeline.postgres.publication import describe_published
from pipeline.postgres.snapshot.comparable_forms import TEXT, Form, canonical, held, is_misfit, text_of
from pipeline.postgres.snapshot.export import (
    RowsMoved,
    SnapshotLost,
    SourceSnapshot,
    begin_under,
    connect_for_copy,
    reading_error,
)
from pipeline.postgres.snapshot.moved_rows import refuse_moved
from pipeline.postgres.snapshot.read_table import LeafPages, page_condition
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class RowHash:
    """One row: the hashes of its key, of the complete row and of each value, and the key's values as text."""

    key: str
    row: str
    columns: tuple[str, ...]
    texts: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class HashedColumns:
    """The compared columns of a table, each with its form; `key` has the indexes of the key columns."""

    columns: tuple[tuple[str, Form], ...]
    key: tuple[int, ...]


class HashedTable:
    """One published table under a snapshot, in a session of its own, which locks it until closed."""

    def __init__(self, conninfo: str, snapshot: SourceSnapshot, publication: str, name: TableName) -> None:
        self._name = name
        self._connection = connect_for_copy(conninfo)
        try:
            self._begin(snapshot)
            self.table = describe_published(self._connection, publication, name)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> HashedTable:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def read_catalog(self) -> CatalogRelation:
        """Return the table's columns in the catalog, under the snapshot."""
        found = read_relation(self._connection, self.table.relation)
        if found is None:
            raise RowsMoved(f"The table {self._name} was altered while it was compared.")
        return found

    @property
    def is_utf8(self) -> bool:
        """Whether the database has text in UTF-8, or in SQL_ASCII, which may be UTF-8."""
        return self._connection.pgconn.parameter_status(b"server_encoding") in (b"UTF8", b"SQL_ASCII")

    def _begin(self, snapshot: SourceSnapshot) -> None:
        try:
            begin_under(self._connection, snapshot)
        except psycopg.Error as error:
            raise SnapshotLost(f"Lost the snapshot of the table {self._name}: {describe(error)}.") from None

    def place(self, part: LeafPages | None = None) -> tuple[list[tuple[str, str]], sql.Composable]:
        """Return the leaves of the table by schema and name, and the condition of its published rows.

        Or the leaf that has some pages, and the condition of the rows in these.
        """
        where: sql.Composable = sql.SQL("true" if self.table.row_filter is None else self.table.row_filter)
        if part is not None:
            pages = page_condition(part.first, part.end, self._connection.info.server_version)
            where = sql.SQL("({}) AND {}").format(where, pages)
        leaves = self.table.leaves if part is None else [part.leaf]
        return [(leaf.schema_name, leaf.table_name) for leaf in leaves], where

    def use_workers(self) -> None:
        """Let the server read in parallel, as it is configured; copies read in several sessions instead."""
        self._connection.execute("RESET max_parallel_workers_per_gather")

    def execute(self, query: sql.Composed) -> list[tuple[Any, ...]]:
        """Run a query; raise RowsMoved or SnapshotLost if its rows may not be those of the snapshot."""
        try:
            rows = self._connection.execute(query).fetchall()
            refuse_moved(self._connection, self.table, self.table.leaves, "compared")
        except psycopg.Error as error:
            raise reading_error(self._name, "compared", error, self._connection.info.user) from None
        return rows


@dataclass(frozen=True, slots=True)
class ValueCount:
    """How many values a column has that are not NULL, and how many of them their form cannot represent."""

    values: int
    misfits: int


class SourceRows:
    """The rows of a table, with hashes of the compared columns.

    With a budget, bytes of tables a second, the sum of all rows is read page by page, with pauses.
    """

    def __init__(self, source: HashedTable, shape: HashedColumns, budget: int | None = None) -> None:
        self._source = source
        self._shape = shape
        self._budget = budget
        self.misfits: dict[str, int] = {}  # by column: number of values that their form cannot represent

    def sums(self, digits: int, within: Sequence[str] | None = None) -> dict[str, Fingerprint]:
        """Return the sums of each range, named by `digits` hex digits; of all rows or within ranges."""
        if digits:
            found = self._read(_SUMS, within, sql.Literal(digits), _misfit_counts(self._shape))
        else:
            found = self._read_sum()
        if within is None:
            names = [column for column, form in self._shape.columns if form.counts_misfits]
            counts = zip(*(row[4] for row in found), strict=True)
            self.misfits = {name: int(sum(c)) for name, c in zip(names, counts, strict=False) if any(c)}
        sums: dict[str, Fingerprint] = {}
        for row in found:
            sums[row[0]] = sums.get(row[0], Fingerprint()) + Fingerprint.of(*row[1:4])
        return sums

    def _read_sum(self) -> list[tuple[Any, ...]]:
        """Return the sums of all rows, or of ranges of pages, with misfits."""
        source = self._source
        if not source.table.leaves:
            return []
        found: list[tuple[Any, ...]] = []
        if not self._budget:
            source.use_workers()
        for part in self._paced() if self._budget else iter([None]):
            leaves, where = source.place(part)
            for i in range(0, len(leaves), _LEAVES):
                some = leaves[i : i + _LEAVES]
                found += source.execute(hash_sums(self._shape, some, where, is_utf8=source.is_utf8))
        return [("", *row) for row in found if row[0]]

    def _paced(self) -> Iterator[LeafPages]:
        """Yield ranges of pages; a pause follows each, so that no more bytes a second are read."""
        assert self._budget
        pages = max(1, self._budget // _PAGE_BYTES)
        for leaf in self._source.table.leaves:
            for first in range(0, leaf.pages, pages):
                part = LeafPages(leaf, first, min(first + pages, leaf.pages))
                started = time.monotonic()
                yield part
                seconds = (part.end - part.first) * _PAGE_BYTES / self._budget
                time.sleep(max(0.0, seconds - (time.monotonic() - started)))

    def rows(self, within: Sequence[str]) -> list[RowHash]:
        """Return the rows of the ranges."""
        names, forms = _names(self._shape), [form for _, form in self._shape.columns]
        is_utf8 = self._source.is_utf8
        parts = map(_part, forms, names)
        short = [sql.SQL("pg_catalog.left({}, 8)").format(_hash([part], is_utf8)) for part in parts]
        texts = [text_of(names[i]) for i in self._shape.key]
        found = self._read(_ROWS, within, *(sql.SQL(", ").join(some) for some in (short, texts)))
        return [RowHash(key, row, tuple(columns), tuple(texts)) for key, row, columns, texts in found]

    def count_values(self) -> dict[str, ValueCount]:
        """Return the number of values and misfits of each column, by one scan; clamped values are misfits."""
        columns = [(name, form) for name, form in self._shape.columns if not form.is_misfit]
        table = self._source.table
        if not columns or not table.leaves:
            return {name: ValueCount(0, 0) for name, _ in columns}
        counts = sql.SQL(", ").join(
            sql.SQL(
                "pg_catalog.count(*) FILTER (WHERE v{0}), pg_catalog.count(*) FILTER (WHERE m{0})"
            ).format(sql.SQL(str(i)))
            for i in range(len(columns))
        )
        flags = sql.SQL(", ").join(
            sql.SQL("{0} IS DISTINCT FROM NULL AS v{1}, {2} AS m{1}").format(
                sql.Identifier(name), sql.SQL(str(i)), is_misfit(form, sql.Identifier(name))
            )
            for i, (name, form) in enumerate(columns)
        )
        names, where = self._source.place()
        leaves = sql.SQL(" UNION ALL ").join(_leaf(name, flags, where) for name in names)
        [row] = self._source.execute(sql.SQL("SELECT {} FROM ({}) r").format(counts, leaves))
        pairs = zip(row[::2], row[1::2], strict=True)
        return {name: ValueCount(*pair) for (name, _), pair in zip(columns, pairs, strict=True)}

    def _read(self, query: str, within: Sequence[str] | None, *more: sql.Composable) -> list[tuple[Any, ...]]:
        if not self._source.table.leaves:
            return []
        key = sql.SQL("h.k" if self._shape.key else "h.r")
        chosen = sql.SQL("true") if within is None else _within(key, within)
        rows = hashed_rows(self._shape, *self._source.place(), is_utf8=self._source.is_utf8)
        return self._source.execute(sql.SQL(query).format(rows, chosen, key, *more))


_SUMS = """
SELECT pg_catalog.left({2}, {3}), pg_catalog.count(*),
       pg_catalog.sum(h.b::pg_catalog.bit(60)::bigint),
       pg_catalog.sum((h.b << 64)::pg_catalog.bit(60)::bigint),
       ARRAY[{4}]::bigint[]
FROM (SELECT h.*, ('x' || h.r)::pg_catalog.bit(128) AS b FROM ({0}) h OFFSET 0) h WHERE {1} GROUP BY 1
"""
_ROWS = """
SELECT {2}, h.r, ARRAY[{3}]::text[], ARRAY[{4}]::text[] FROM ({0}) h WHERE {1}
"""


def hashed_rows(
    shape: HashedColumns, leaves: Sequence[tuple[str, str]], where: sql.Composable, *, is_utf8: bool
) -> sql.Composed:
    """Return the query for each row: its hash r, its key's hash k, and its values c0… in their forms.

    The rows are those of leaves, by schema and name, for which a condition is true. For a form that cannot
    represent every value, n0… are whether the value is not NULL. OFFSET prevents the server from computing
    the values twice.
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
    parts = (_leaf(leaf, sql.SQL(", ").join(values), where) for leaf in leaves)
    row = [_part(form, name) for (_, form), name in zip(shape.columns, names, strict=True)]
    hashes = [sql.SQL("{} AS r").format(_hash(row, is_utf8))]
    if shape.key:
        hashes.append(sql.SQL("{} AS k").format(_hash([row[i] for i in shape.key], is_utf8)))
    return sql.SQL("SELECT {}, v.* FROM ({}) v OFFSET 0").format(
        sql.SQL(", ").join(hashes), sql.SQL(" UNION ALL ").join(parts)
    )


def key_hash_condition(shape: HashedColumns, hashes: Sequence[str], *, is_utf8: bool) -> sql.Composed:
    """Return SQL that is true for rows with one of these hashes: of the key, or of the row if it has none."""
    chosen = [shape.columns[i] for i in shape.key] if shape.key else shape.columns
    parts = [_part(form, canonical(form, sql.Identifier(column))) for column, form in chosen]
    # a subquery is hashed by every server version, an array is not
    return sql.SQL("{} IN (SELECT pg_catalog.unnest({}::text[]))").format(
        _hash(parts, is_utf8), sql.Literal(list(hashes))
    )


def _leaf(leaf: tuple[str, str], values: sql.Composable, where: sql.Composable) -> sql.Composed:
    """Return the query for the rows of a leaf for which a condition is true."""
    return sql.SQL("(SELECT {} FROM ONLY {} WHERE ({}) OFFSET 0)").format(
        values, sql.Identifier(*leaf), where
    )


def hash_sums(
    shape: HashedColumns, leaves: Sequence[tuple[str, str]], where: sql.Composable, *, is_utf8: bool
) -> sql.Composed:
    """Return the query for one row: how many rows there are, both sums of their hashes, and the misfits.

    UNION ALL, also with a leaf that gives no row, keeps the server from computing a hash for each sum, as
    OFFSET does, but lets it use several processes.
    """
    columns = [(form, sql.Identifier(name)) for name, form in shape.columns]
    misfits = [held(replace(form, is_misfit=True), c)[0] for form, c in columns if form.counts_misfits]
    flags = [sql.SQL("{} AS m{}").format(each, sql.SQL(str(i))) for i, each in enumerate(misfits)]
    bits = sql.SQL("('x' || {})::pg_catalog.bit(128) AS b").format(_row_hash(columns, is_utf8))
    selected = sql.SQL(", ").join([bits, *flags])
    arms = [(leaf, where) for leaf in leaves] + [(leaves[0], sql.SQL("false"))]
    return sql.SQL(_SUM).format(
        sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT {} FROM ONLY {} WHERE ({})").format(selected, sql.Identifier(*leaf), condition)
            for leaf, condition in arms
        ),
        sql.SQL(", ").join(
            sql.SQL("pg_catalog.count(*) FILTER (WHERE h.m{})").format(sql.SQL(str(i)))
            for i in range(len(misfits))
        ),
    )


_SUM = """
SELECT pg_catalog.count(*), pg_catalog.sum(h.b::pg_catalog.bit(60)::bigint),
       pg_catalog.sum((h.b << 64)::pg_catalog.bit(60)::bigint), ARRAY[{1}]::bigint[]
FROM ({0}) h
"""


def fingerprint_query(shape: HashedColumns, name: TableName) -> str:
    """Return SQL for the number of rows and the fingerprint of a table of a database in UTF-8."""
    digits = sql.SQL(", ").join(
        sql.SQL("pg_catalog.lpad(pg_catalog.to_hex((coalesce({}, 0) % {})::bigint), 15, '0')").format(
            sql.Identifier(each), sql.Literal(1 << 60)
        )
        for each in ("first", "second")
    )
    query = "SELECT rows, pg_catalog.concat({}) AS fingerprint FROM ({}) AS s (rows, first, second, misfits)"
    sums = hash_sums(shape, [name], sql.SQL("true"), is_utf8=True)
    return " ".join(sql.SQL(query).format(digits, sums).as_string(None).split("\n"))


def _names(shape: HashedColumns) -> list[sql.Identifier]:
    return [sql.Identifier(f"c{i}") for i in range(len(shape.columns))]


def _part(form: Form, value: sql.Composable) -> sql.Composable:
    """Return SQL for a value as it is hashed; a text, which may have commas, is preceded by its length."""
    if form.is_plain:
        return value
    return sql.SQL("pg_catalog.length({0}) || ':' || {0}").format(value)


def _sized_text(column: sql.Composable) -> sql.Composed:
    """Return SQL for the text of a column as it is hashed, computed once less than `_part` does."""
    return sql.SQL(
        "CASE WHEN {0} IS DISTINCT FROM NULL"
        " THEN pg_catalog.concat(pg_catalog.length(pg_catalog.concat({0})), ':', {0}) END"
    ).format(column)


def _row_hash(columns: Sequence[tuple[Form, sql.Identifier]], is_utf8: bool) -> sql.Composed:
    """Return SQL for the hash of a row.

    Trimming commas costs the server as much as writing the row, and concat() twice as much as concat_ws(),
    which leaves NULLs out. So only a row whose last value is NULL, or may end with a comma, is trimmed, and
    one that has all values is written by concat_ws(). A column of misfits follows its column, so it is NULL.
    """
    parts = [_sized_text(c) if form == TEXT else _part(form, canonical(form, c)) for form, c in columns]
    while columns[-1][0].is_misfit:
        columns = columns[:-1]
    conditions, texts = [], []
    for form, column in columns:
        condition, text = held(form, column)
        conditions += [] if form.is_misfit else [condition]
        texts.append(sql.SQL("''") if form.is_misfit else _part(form, text))
    last, column = columns[-1]
    if not (last.is_plain or last.is_array):
        no_comma = "({0}) AND pg_catalog.concat({1}) COLLATE pg_catalog.\"C\" NOT LIKE '%,'"
        conditions[-1] = sql.SQL(no_comma).format(conditions[-1], column)
    complete = sql.SQL(" || ',' || ").join(
        sql.SQL("pg_catalog.concat_ws(',', {})").format(sql.SQL(", ").join(group)) for group in _groups(texts)
    )
    return sql.SQL("CASE WHEN {} THEN {} WHEN {} THEN {} ELSE {} END").format(
        sql.SQL(" AND ").join(conditions),
        _md5(complete, is_utf8),
        conditions[-1],
        _md5(_concat(parts[: len(columns)]), is_utf8),
        _hash(parts, is_utf8),
    )


def _hash(parts: Sequence[sql.Composable], is_utf8: bool) -> sql.Composed:
    """Return SQL for the hash of values.

    Bytes are trimmed: of a text, rtrim() allocates eight bytes for each character, 1 GB at most. Only btrim()
    trims bytes in every server version, so a dot precedes them for a moment.
    """
    return sql.SQL(
        "pg_catalog.md5(pg_catalog.substr(pg_catalog.btrim('.'::bytea || {}, ','::bytea), 2))"
    ).format(_bytes(_concat(parts), is_utf8))


def _md5(text: sql.Composable, is_utf8: bool) -> sql.Composed:
    return sql.SQL("pg_catalog.md5({})").format(text if is_utf8 else _bytes(text, is_utf8))


def _bytes(text: sql.Composable, is_utf8: bool) -> sql.Composed:
    """Return SQL for the bytes of a text in UTF-8; those of SQL_ASCII are the server's own."""
    encoding = "SQL_ASCII" if is_utf8 else "UTF8"
    return sql.SQL("pg_catalog.convert_to({}, {})").format(text, sql.Literal(encoding))


def _concat(parts: Sequence[sql.Composable]) -> sql.Composed:
    """Return SQL for values with commas between them."""
    return sql.SQL(" || ',' || ").join(
        sql.SQL("pg_catalog.concat({})").format(sql.SQL(", ',', ").join(group)) for group in _groups(parts)
    )


def _groups(parts: Sequence[sql.Composable]) -> list[Sequence[sql.Composable]]:
    return [parts[i : i + _CONCATENATED] for i in range(0, len(parts), _CONCATENATED)]


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


_PAGE_BYTES = 8192
_LEAVES = 100  # of one query, whose expressions the server keeps for each
_CONCATENATED = 50  # values: PostgreSQL allows 100 arguments
