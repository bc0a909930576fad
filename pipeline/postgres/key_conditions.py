"""Conditions on keys: the SQL that selects the rows of key ranges at the source."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from pipeline.errors import SourceError
from pipeline.key_ranges import TEXTS, KeyRange
from pipeline.postgres.connection import Connection, describe
from pipeline.table_name import TableName

KeyCondition = sql.Composed


def key_condition(names: Sequence[str], types: Sequence[int], ranges: Sequence[KeyRange]) -> KeyCondition:
    """Return SQL that is true for the rows of the ranges; `names` and `types` are those of the key's columns.

    Single keys are compared in the columns' own collation, so that the table's indexes find them.
    """
    columns = [sql.Identifier(name) for name in names]
    ordered = [
        sql.SQL('{} COLLATE "C"').format(column) if kind in TEXTS else column
        for column, kind in zip(columns, types, strict=True)
    ]
    parts: list[sql.Composable] = []
    singles: dict[int, list[tuple[str, ...]]] = {}
    places = [dict(zip(names, each, strict=True)) for each in (ordered, columns)]
    for each in ranges:
        if each.columns:
            # in the column's own collation, an equality is one that a partition's constraint may exclude
            spans = [
                _compared([places[operator == "="][column.name]], operator, (text,))
                for column in each.columns
                for operator, text in column.bounds
            ]
            parts.append(sql.SQL(" AND ").join(spans) if spans else sql.SQL("true"))
            continue
        if each.is_single:
            singles.setdefault(each.width, []).append(each.first)
            continue
        bounds = [
            _compared(ordered, operator, values)
            for operator, values in ((">=", each.first), ("<=", each.last))
            if values
        ]
        parts.append(sql.SQL(" AND ").join(bounds))
    for width, keys in singles.items():
        parts.append(sql.SQL("{} IN ({})").format(_row(columns[:width]), sql.SQL(", ").join(map(_key, keys))))
    return sql.SQL("({})").format(sql.SQL(" OR ").join(sql.SQL("({})").format(part) for part in parts))


def accepts_keys(connection: Connection, name: TableName, condition: KeyCondition) -> bool:
    """Return whether the values in the condition are valid for the types of their columns.

    The statement is only parsed, which needs no privilege on the table. The caller's transaction continues in
    any case, without the lock that parsing acquires. Raises SourceError if a table or column does not exist.
    """
    query = sql.SQL("PREPARE pgdelta_keys AS SELECT FROM {} WHERE {}").format(
        sql.Identifier(*name), condition
    )
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(query)
            connection.execute("DEALLOCATE pgdelta_keys")
    except (psycopg.DataError, psycopg.NotSupportedError):  # the latter of a composite type's value
        return False
    except psycopg.Error as error:
        raise SourceError(f"The table {name} cannot be read by its key: {describe(error)}.") from None
    return True


def orders_by_bytes(connection: Connection) -> bool:
    """Return whether the database's encoding orders text, in the collation C, as UTF-8 does."""
    return connection.info.parameter_status("server_encoding") in ("UTF8", "LATIN1")


def _compared(columns: Sequence[sql.Composable], operator: str, values: Sequence[str]) -> sql.Composed:
    return sql.SQL("{} {} {}").format(_row(columns[: len(values)]), sql.SQL(operator), _key(values))


def _key(values: Sequence[str]) -> sql.Composed:
    return _row([sql.Literal(value) for value in values])


def _row(parts: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL("({})").format(sql.SQL(", ").join(parts))
