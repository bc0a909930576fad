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
from enum import Enum
from typing import Any

import psycopg
from psycopg import sql

from pipeline.fingerprint import Fingerprint
from pipeline.partition_folders import ESCAPED, MAX_TEXT_BYTES, NULL_FOLDER
from pipeline.postgres.catalog import CatalogRelation, read_relation
from pipeline.postgres.connection import describe
from pipeline.postgres.publication import describe_published
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

    def hashed_rows(self, shape: HashedColumns, part: LeafPages | None = None) -> sql.Composed:
        """Return the query for each row of the table, or of some of its pages: `hashed_rows`."""
        where: sql.Composable = sql.SQL("true" if self.table.row_filter is None else self.table.row_filter)
        if part is not None:
            pages = page_condition(part.first, part.end, self._connection.info.server_version)
            where = sql.SQL("({}) AND {}").format(where, pages)
        leaves = self.table.leaves if part is None else [part.leaf]
        names = [(leaf.schema_name, leaf.table_name) for leaf in leaves]
        return hashed_rows(shape, names, where, is_utf8=self.is_utf8)

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
        found: list[tuple[Any, ...]] = []
        more = (sql.Literal(digits), _misfit_counts(self._shape))
        parts = self._paced() if self._budget and within is None and digits == 0 else iter([None])
        for part in parts:
            found += self._read(_SUMS if digits else _SUM, within, *more, part=part)
        if within is None:
            names = [column for column, form in self._shape.columns if form.counts_misfits]
            counts = zip(*(row[4] for row in found), strict=True)
            self.misfits = {name: int(sum(c)) for name, c in zip(names, counts, strict=False) if any(c)}
        sums: dict[str, Fingerprint] = {}
        for row in found:
            sums[row[0]] = sums.get(row[0], Fingerprint()) + Fingerprint.of(*row[1:4])
        return sums

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
        texts = [_text(names[i]) for i in self._shape.key]
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
        where = sql.SQL("true" if table.row_filter is None else table.row_filter)
        leaves = sql.SQL(" UNION ALL ").join(
            _leaf((leaf.schema_name, leaf.table_name), flags, where) for leaf in table.leaves
        )
        [row] = self._source.execute(sql.SQL("SELECT {} FROM ({}) r").format(counts, leaves))
        pairs = zip(row[::2], row[1::2], strict=True)
        return {name: ValueCount(*pair) for (name, _), pair in zip(columns, pairs, strict=True)}

    def _read(
        self,
        query: str,
        within: Sequence[str] | None,
        *more: sql.Composable,
        part: LeafPages | None = None,
    ) -> list[tuple[Any, ...]]:
        if not self._source.table.leaves:
            return []
        key = sql.SQL("h.k" if self._shape.key else "h.r")
        chosen = sql.SQL("true") if within is None else _within(key, within)
        rows = self._source.hashed_rows(self._shape, part)
        return self._source.execute(sql.SQL(query).format(rows, chosen, key, *more))


_SUMS = """
SELECT pg_catalog.left({2}, {3}), pg_catalog.count(*),
       pg_catalog.sum(h.b::pg_catalog.bit(60)::bigint),
       pg_catalog.sum((h.b << 64)::pg_catalog.bit(60)::bigint),
       ARRAY[{4}]::bigint[]
FROM (SELECT h.*, ('x' || h.r)::pg_catalog.bit(128) AS b FROM ({0}) h OFFSET 0) h WHERE {1} GROUP BY 1
"""
_SUM = _SUMS.replace("pg_catalog.left({2}, {3})", "''::text")  # a server need not compute the keys' hashes
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


def fingerprint_query(shape: HashedColumns, name: TableName) -> str:
    """Return SQL for the number of rows and the fingerprint of a table of a database in UTF-8."""
    rows = hashed_rows(shape, [name], sql.SQL("true"), is_utf8=True)
    digits = sql.SQL(", ").join(
        sql.SQL(
            "pg_catalog.lpad(pg_catalog.to_hex((pg_catalog.sum(('x' || pg_catalog.substr(h.r, {}, 15))"
            "::pg_catalog.bit(60)::bigint) % {})::bigint), 15, '0')"
        ).format(sql.Literal(at), sql.Literal(1 << 60))
        for at in (1, 17)
    )
    query = "SELECT pg_catalog.count(*) AS rows, pg_catalog.concat({}) AS fingerprint FROM ({}) h"
    return sql.SQL(query).format(digits, rows).as_string(None)


def _names(shape: HashedColumns) -> list[sql.Identifier]:
    return [sql.Identifier(f"c{i}") for i in range(len(shape.columns))]


def _part(form: Form, value: sql.Composable) -> sql.Composable:
    """Return SQL for a value as it is hashed; a text, which may have commas, is preceded by its length."""
    if form.is_plain:
        return value
    return sql.SQL("pg_catalog.length({0}) || ':' || {0}").format(value)


def _text(value: sql.Composable) -> sql.Composed:
    """Return SQL for the text of a value, as the stream has it."""
    # IS DISTINCT FROM, because a composite of NULLs IS NULL although it is not.
    return sql.SQL("CASE WHEN {0} IS DISTINCT FROM NULL THEN pg_catalog.concat({0}) END").format(value)


def _hash(parts: Sequence[sql.Composable], is_utf8: bool) -> sql.Composed:
    groups = [parts[i : i + _CONCATENATED] for i in range(0, len(parts), _CONCATENATED)]
    text = sql.SQL(" || ").join(
        sql.SQL("pg_catalog.concat({}, ',')").format(sql.SQL(", ',', ").join(group)) for group in groups
    )
    text = sql.SQL("pg_catalog.rtrim({}, ',')").format(text)
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


class HashedKind(Enum):
    """The kind of silver's type."""

    TEXT = "text"
    PLAIN = "text without commas"
    PARTITION_TEXT = "text of a partition column"
    DECIMAL = "decimal"
    REAL = "real"
    DOUBLE = "double"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a column's values.

    `fits` is whether silver's decimal holds every value of the source, `is_exact` also whether its digits are
    those of the source. `is_misfit` is the form of a column of
    misfits: the text of a value that the column itself cannot hold, otherwise NULL.
    """

    kind: HashedKind
    precision: int = 0
    scale: int = 0
    fits: bool = True
    is_exact: bool = False
    clamps: bool = False
    is_array: bool = False
    is_misfit: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether no value has a comma in this form."""
        is_text = self.kind in (HashedKind.TEXT, HashedKind.PARTITION_TEXT)
        return not (is_text or self.is_array or self.is_misfit)

    @property
    def counts_misfits(self) -> bool:
        """Whether there are values that this form cannot represent."""
        may_lose = self.is_array or self.kind not in _LOSSLESS
        return may_lose and not self.is_misfit


_LOSSLESS = (HashedKind.TEXT, HashedKind.PLAIN, HashedKind.REAL, HashedKind.DOUBLE)
TEXT = Form(HashedKind.TEXT)
PLAIN = Form(HashedKind.PLAIN)
PARTITION_TEXT = Form(HashedKind.PARTITION_TEXT)
_BOUNDS = {
    HashedKind.DATE: ("0001-01-01", "9999-12-31"),
    HashedKind.TIMESTAMP: ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
    HashedKind.TIMESTAMPTZ: ("0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"),
}


def canonical(form: Form, value: sql.Composable) -> sql.Composable:
    """Return SQL for the form of a value, of any type: concat() writes it as the stream does."""
    if form.is_misfit:
        held = canonical(replace(form, is_misfit=False), value)
        text = sql.SQL(
            "CASE WHEN {0} IS DISTINCT FROM NULL AND ({1}) IS NULL THEN pg_catalog.concat({0}) END"
        )
        return text.format(value, held)
    if form.is_array:
        return sql.SQL("CASE WHEN {} IS DISTINCT FROM NULL THEN {} END").format(value, _array(form, value))
    return _scalar(form, value)


def is_misfit(form: Form, value: sql.Composable) -> sql.Composable:
    """Return SQL for whether a value, or an element of it, is one that silver's type cannot hold."""
    if not form.counts_misfits:
        return sql.SQL("false")
    held = replace(form, clamps=False)
    lost: sql.Composable = sql.SQL("({}) IS NULL").format(canonical(held, value))
    if form.is_array and form.kind not in (HashedKind.TEXT, HashedKind.PLAIN):
        element = is_misfit(replace(held, is_array=False), sql.SQL("u.e"))
        lost = sql.SQL("({} OR EXISTS (SELECT FROM pg_catalog.unnest({}) AS u (e) WHERE {}))").format(
            lost, value, element
        )
    return sql.SQL("({} IS DISTINCT FROM NULL AND {})").format(value, lost)


def _array(form: Form, value: sql.Composable) -> sql.Composable:
    """Return SQL for an array of one dimension with lower bound 1; other arrays are NULL."""
    one = sql.SQL("pg_catalog.concat({})").format(value)
    if form.kind not in (HashedKind.TEXT, HashedKind.PLAIN):
        element = canonical(replace(form, is_array=False), sql.SQL("u.e"))
        one = sql.SQL(
            "(SELECT pg_catalog.concat('{{', pg_catalog.string_agg(coalesce(({})::text, 'NULL'), ','"
            " ORDER BY u.n), '}}') FROM pg_catalog.unnest({}) WITH ORDINALITY AS u (e, n))"
        ).format(element, value)
    return sql.SQL(
        "CASE WHEN coalesce(pg_catalog.array_ndims({0}), 1) = 1"
        " AND coalesce(pg_catalog.array_lower({0}, 1), 1) = 1 THEN {1} END"
    ).format(value, one)


def _scalar(form: Form, value: sql.Composable) -> sql.Composable:
    match form.kind:
        case HashedKind.TEXT:
            return _text(value)
        case HashedKind.PLAIN:
            return value
        case HashedKind.PARTITION_TEXT:
            return _partition_text(value)
        case HashedKind.DECIMAL:
            return _decimal(form, value)
        case HashedKind.REAL | HashedKind.DOUBLE:
            send = "float4send" if form.kind is HashedKind.REAL else "float8send"
            bits = "CASE WHEN {0} = 'NaN' THEN 'NaN' ELSE pg_catalog.encode(pg_catalog.{1}({0}), 'hex') END"
            return sql.SQL(bits).format(value, sql.SQL(send))
        case HashedKind.DATE | HashedKind.TIMESTAMP | HashedKind.TIMESTAMPTZ:
            return _dated(form, value)


def _partition_text(value: sql.Composable) -> sql.Composable:
    """Return SQL for a text that a partition column holds: escaped, it is short enough for a folder."""
    text = sql.SQL("pg_catalog.concat({})").format(value)
    return sql.SQL(
        "CASE WHEN {0} NOT IN ('', {1}) AND pg_catalog.octet_length(pg_catalog.convert_to({0}, 'UTF8'))"
        " + 2 * (pg_catalog.length({0}) - pg_catalog.length(pg_catalog.translate({0}, {2}, ''))) <= {3}"
        " THEN {0} END"
    ).format(text, sql.Literal(NULL_FOLDER), sql.Literal(ESCAPED), sql.Literal(MAX_TEXT_BYTES))


def _decimal(form: Form, value: sql.Composable) -> sql.Composable:
    number = sql.SQL("{}::pg_catalog.numeric").format(value)
    scale = sql.Literal(form.scale)
    greatest = sql.SQL("{}::pg_catalog.numeric").format(sql.Literal(_greatest(form.precision, form.scale)))
    held: sql.Composable = number
    condition: sql.Composable = sql.SQL("")
    if form.clamps and not form.fits:
        held = sql.SQL("greatest(least({0}, {1}), -({1}))").format(number, greatest)
    elif not form.fits:
        condition = sql.SQL(" AND pg_catalog.abs({0}) <= {1} AND pg_catalog.round({0}, {2}) = {0}").format(
            number, greatest, scale
        )
    if form.is_exact:
        return sql.SQL("CASE WHEN {0} <> 'NaN' THEN {0} END").format(number)
    return sql.SQL("CASE WHEN {0} <> 'NaN'{1} THEN pg_catalog.round({2}, {3}) END").format(
        number, condition, held, scale
    )


def _greatest(precision: int, scale: int) -> str:
    return "9" * (precision - scale) + "." + "9" * scale if scale else "9" * precision


def _dated(form: Form, value: sql.Composable) -> sql.Composable:
    least, greatest = _BOUNDS[form.kind]
    typed = [
        sql.SQL("{}::pg_catalog.{}").format(sql.Literal(text), sql.SQL(form.kind.value))
        for text in (least, greatest)
    ]
    if form.clamps:
        nearest = "CASE WHEN {0} IS NOT NULL THEN greatest(least({0}, {2}), {1}) END"
        return sql.SQL(nearest).format(value, *typed)
    return sql.SQL("CASE WHEN {0} >= {1} AND {0} <= {2} THEN {0} END").format(value, *typed)


_PAGE_BYTES = 8192
_CONCATENATED = 50  # values: PostgreSQL allows 100 arguments
