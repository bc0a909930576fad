"""The forms in which values of the source are compared with silver's, as SQL of PostgreSQL.

A form belongs to a pair of types, the source's and silver's (`silver.comparable_text`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from psycopg import sql

from pipeline.partition_folders import ESCAPED, MAX_TEXT_BYTES, NULL_FOLDER


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
    condition, text = held(form, value)
    if form.kind in _LOSSLESS[1:] and not (form.is_array or form.is_misfit):
        return text
    return sql.SQL("CASE WHEN {} THEN {} END").format(condition, text)


def held(form: Form, value: sql.Composable) -> tuple[sql.Composable, sql.Composable]:
    """Return SQL for whether a value is not NULL and has its form, and for the form of a value that has."""
    if form.is_misfit:
        condition, _ = held(replace(form, is_misfit=False), value)
        lost = sql.SQL("{} IS DISTINCT FROM NULL AND NOT ({})").format(value, condition)
        return lost, _text(value)
    return _array(form, value) if form.is_array else _scalar(form, value)


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


def _array(form: Form, value: sql.Composable) -> tuple[sql.Composable, sql.Composable]:
    """Return SQL for an array of one dimension with lower bound 1; other arrays have no form."""
    text: sql.Composable = _text(value)
    if form.kind not in (HashedKind.TEXT, HashedKind.PLAIN):
        element = canonical(replace(form, is_array=False), sql.SQL("u.e"))
        text = sql.SQL(
            "(SELECT pg_catalog.concat('{{', pg_catalog.string_agg(coalesce(({})::text, 'NULL'), ','"
            " ORDER BY u.n), '}}') FROM pg_catalog.unnest({}) WITH ORDINALITY AS u (e, n))"
        ).format(element, value)
    condition = sql.SQL(
        "{0} IS DISTINCT FROM NULL AND coalesce(pg_catalog.array_ndims({0}), 1) = 1"
        " AND coalesce(pg_catalog.array_lower({0}, 1), 1) = 1"
    )
    return condition.format(value), text


def _scalar(form: Form, value: sql.Composable) -> tuple[sql.Composable, sql.Composable]:
    match form.kind:
        case HashedKind.TEXT:
            return _is_present(value), _text(value)
        case HashedKind.PLAIN:
            return _is_present(value), value
        case HashedKind.PARTITION_TEXT:
            return _partition_text(value)
        case HashedKind.DECIMAL:
            return _decimal(form, value)
        case HashedKind.REAL | HashedKind.DOUBLE:
            send = "float4send" if form.kind is HashedKind.REAL else "float8send"
            bits = "CASE WHEN {0} = 'NaN' THEN 'NaN' ELSE pg_catalog.encode(pg_catalog.{1}({0}), 'hex') END"
            return _is_present(value), sql.SQL(bits).format(value, sql.SQL(send))
        case HashedKind.DATE | HashedKind.TIMESTAMP | HashedKind.TIMESTAMPTZ:
            return _dated(form, value)


def _partition_text(value: sql.Composable) -> tuple[sql.Composable, sql.Composable]:
    """Return SQL for a text that a partition column holds: escaped, it is short enough for a folder."""
    text = _text(value)
    condition = sql.SQL(
        "{0} NOT IN ('', {1}) AND pg_catalog.octet_length(pg_catalog.convert_to({0}, 'UTF8'))"
        " + 2 * (pg_catalog.length({0}) - pg_catalog.length(pg_catalog.translate({0}, {2}, ''))) <= {3}"
    ).format(text, sql.Literal(NULL_FOLDER), sql.Literal(ESCAPED), sql.Literal(MAX_TEXT_BYTES))
    return condition, text


def _decimal(form: Form, value: sql.Composable) -> tuple[sql.Composable, sql.Composable]:
    number = sql.SQL("{}::pg_catalog.numeric").format(value)
    scale = sql.Literal(form.scale)
    greatest = sql.SQL("{}::pg_catalog.numeric").format(sql.Literal(_greatest(form.precision, form.scale)))
    nearest: sql.Composable = number
    condition: sql.Composable = sql.SQL("{} <> 'NaN'").format(number)
    if form.clamps and not form.fits:
        nearest = sql.SQL("greatest(least({0}, {1}), -({1}))").format(number, greatest)
    elif not form.fits:
        condition = sql.SQL("{0} AND pg_catalog.abs({1}) <= {2} AND pg_catalog.round({1}, {3}) = {1}").format(
            condition, number, greatest, scale
        )
    if form.is_exact:
        return condition, number
    return condition, sql.SQL("pg_catalog.round({}, {})").format(nearest, scale)


def _greatest(precision: int, scale: int) -> str:
    return "9" * (precision - scale) + "." + "9" * scale if scale else "9" * precision


def _dated(form: Form, value: sql.Composable) -> tuple[sql.Composable, sql.Composable]:
    least, greatest = _BOUNDS[form.kind]
    typed = [
        sql.SQL("{}::pg_catalog.{}").format(sql.Literal(text), sql.SQL(form.kind.value))
        for text in (least, greatest)
    ]
    if form.clamps:
        return _is_present(value), sql.SQL("greatest(least({0}, {2}), {1})").format(value, *typed)
    return sql.SQL("{0} >= {1} AND {0} <= {2}").format(value, *typed), value


def text_of(value: sql.Composable) -> sql.Composed:
    """Return SQL for the text of a value, as the stream has it."""
    return sql.SQL("CASE WHEN {} THEN {} END").format(_is_present(value), _text(value))


def _text(value: sql.Composable) -> sql.Composed:
    return sql.SQL("pg_catalog.concat({})").format(value)


def _is_present(value: sql.Composable) -> sql.Composed:
    # IS DISTINCT FROM, because a composite of NULLs IS NULL although it is not.
    return sql.SQL("{} IS DISTINCT FROM NULL").format(value)
