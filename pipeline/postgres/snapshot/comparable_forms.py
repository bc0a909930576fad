"""The form in which a value is compared with silver: the server's SQL for a text that Spark writes, too.

For most types it is PostgreSQL's own text, as in the stream. A decimal has the digits of silver's scale, a
float is its bits, and a value that silver's type cannot hold is NULL or, if that is the column's policy, the
nearest one. `silver.comparable_text` is the other side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from psycopg import sql


class Kind(Enum):
    """The kind of silver's type."""

    TEXT = "text"
    DECIMAL = "decimal"
    REAL = "real"
    DOUBLE = "double"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a column's values.

    `fits` is whether silver's decimal holds every value of the source. `is_misfit` is the form of a column of
    misfits: the text of a value that the column itself cannot hold, otherwise NULL.
    """

    kind: Kind
    precision: int = 0
    scale: int = 0
    fits: bool = True
    clamps: bool = False
    is_array: bool = False
    is_misfit: bool = False

    @property
    def counts_misfits(self) -> bool:
        """Whether there are values that this form cannot represent."""
        may_lose = self.is_array or self.kind not in (Kind.TEXT, Kind.REAL, Kind.DOUBLE)
        return may_lose and not self.is_misfit


TEXT = Form(Kind.TEXT)
_BOUNDS = {
    Kind.DATE: ("0001-01-01", "9999-12-31"),
    Kind.TIMESTAMP: ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
    Kind.TIMESTAMPTZ: ("0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"),
}


def canonical(form: Form, value: sql.Composable) -> sql.Composable:
    """Return SQL for the form of a value; concat() writes it as the stream does, a cast may not."""
    if form.is_misfit:
        held = canonical(replace(form, is_misfit=False), value)
        text = sql.SQL(
            "CASE WHEN {0} IS DISTINCT FROM NULL AND ({1}) IS NULL THEN pg_catalog.concat({0}) END"
        )
        return text.format(value, held)
    written = _array(form, value) if form.is_array else _scalar(form, value)
    # IS DISTINCT FROM, because a composite of NULLs IS NULL although it is not.
    return sql.SQL("CASE WHEN {} IS DISTINCT FROM NULL THEN {} END").format(value, written)


def _array(form: Form, value: sql.Composable) -> sql.Composable:
    """Return SQL for an array of one dimension with lower bound 1; other arrays are NULL."""
    one = sql.SQL("pg_catalog.concat({})").format(value)
    if form.kind is not Kind.TEXT:
        element = canonical(replace(form, is_array=False), sql.SQL("u.e"))
        one = sql.SQL(
            "(SELECT pg_catalog.concat('{{', pg_catalog.string_agg(coalesce({}, 'NULL'), ',' ORDER BY u.n),"
            " '}}') FROM pg_catalog.unnest({}) WITH ORDINALITY AS u (e, n))"
        ).format(element, value)
    return sql.SQL(
        "CASE WHEN coalesce(pg_catalog.array_ndims({0}), 1) = 1"
        " AND coalesce(pg_catalog.array_lower({0}, 1), 1) = 1 THEN {1} END"
    ).format(value, one)


def _scalar(form: Form, value: sql.Composable) -> sql.Composable:
    match form.kind:
        case Kind.TEXT:
            return sql.SQL("pg_catalog.concat({})").format(value)
        case Kind.DECIMAL:
            return _decimal(form, value)
        case Kind.REAL | Kind.DOUBLE:
            send = "float4send" if form.kind is Kind.REAL else "float8send"
            bits = "CASE WHEN {0} = 'NaN' THEN 'NaN' ELSE pg_catalog.encode(pg_catalog.{1}({0}), 'hex') END"
            return sql.SQL(bits).format(value, sql.SQL(send))
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _dated(form, value)


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
    return sql.SQL("CASE WHEN {0} <> 'NaN'{1} THEN pg_catalog.round({2}, {3})::text END").format(
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
    below, above = (sql.Literal(text) if form.clamps else sql.SQL("NULL") for text in (least, greatest))
    return sql.SQL(
        "CASE WHEN {0} < {1} THEN {3} WHEN {0} > {2} THEN {4} ELSE pg_catalog.concat({0}) END"
    ).format(value, *typed, below, above)
