"""What a reader may lack: for each feature a table at the source, its rule, and what changes it later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Feature:
    """A row of the page, and its table.

    `columns` are those of the table but its key `id`, `values` are the rows without it, `later` are
    statements once these are in silver, and `by_spark` statements of Spark before them. `rule` are keys of
    the configuration. `expected` is what pgdelta does not read itself. Without `values` the table is that of
    an earlier feature.
    """

    title: str
    table: str
    columns: str
    values: Sequence[str]
    later: Sequence[str] = ()
    rule: str = ""
    by_spark: Sequence[str] = ()
    selects: Sequence[str] = ()  # of the table's columns; all if empty
    is_past: bool = False  # read as of the version before `later`
    is_feed: bool = False  # its change data feed is read
    expected: Sequence[Sequence[Any]] = ()


_CHANGES = ("UPDATE {table} SET v = 'z' WHERE id = 1", "DELETE FROM {table} WHERE id = 2")
_TEXTS = ("'a'", "'b'", "NULL")
_FIRST, _LAST = "0001-01-01", "9999-12-31"

FEATURES = (
    Feature("`BOOLEAN`", "booleans", "v bool", ("true", "false", "NULL")),
    Feature(
        "`SMALLINT`, `INT`, `BIGINT`",
        "integers",
        "s smallint, i int, b bigint",
        (
            "-32768, -2147483648, -9223372036854775808",
            "32767, 2147483647, 9223372036854775807",
            "NULL, NULL, NULL",
        ),
    ),
    Feature(
        "`FLOAT`, `DOUBLE`",
        "floats",
        "f real, d double precision",
        ("0.1, 0.1", "'NaN', 'NaN'", "'-Infinity', 'Infinity'", "'-0', '-0'", "1e-45, 5e-324", "NULL, NULL"),
    ),
    Feature(
        "`DECIMAL`",
        "decimals",
        "a numeric(12, 2), b numeric(38, 10), c numeric(38, 0)",
        (f"1.25, -9999999999999999999999999999.0000000001, {'9' * 38}", "0, 0, 0", "NULL, NULL, NULL"),
    ),
    Feature(
        "`STRING`", "texts", "v text, j jsonb", ("'naïve 日本 🦀', '{\"a\": 1}'", "'', '1'", "NULL, NULL")
    ),
    Feature("`BINARY`", "bytes", "v bytea", (r"'\x00ff'", "''", "NULL")),
    Feature("`DATE`", "dates", "v date", ("'1970-01-01'", "'2024-02-29'", "NULL")),
    Feature(
        "`TIMESTAMP`",
        "instants",
        "v timestamptz",
        ("'2024-02-29 12:00:00.123456+00'", "'1970-01-01 00:00+00'", "NULL"),
    ),
    Feature(
        "`TIMESTAMP_NTZ`",
        "times",
        "v timestamp",
        ("'2024-02-29 12:00:00.123456'", "'1970-01-01 00:00'", "NULL"),
    ),
    Feature("`DATE` of the years 1 to 9999", "far_dates", "v date", (f"'{_FIRST}'", f"'{_LAST}'")),
    Feature(
        "`TIMESTAMP` of the years 1 to 9999",
        "far_instants",
        "v timestamptz",
        (f"'{_FIRST} 00:00+00'", "'1883-11-18 12:03:57.5+00'", f"'{_LAST} 23:59:59.999999+00'"),
    ),
    Feature(
        "`TIMESTAMP_NTZ` of the years 1 to 9999",
        "far_times",
        "v timestamp",
        (f"'{_FIRST} 00:00'", f"'{_LAST} 23:59:59.999999'"),
    ),
    Feature(
        "`ARRAY`",
        "arrays",
        "i int[], t text[], n numeric(8, 3)[], d date[]",
        ("'{1,NULL,3}', '{\"a b\",\"\",NULL}', '{1.5,NULL}', '{2024-01-01}'", "'{}', '{}', NULL, NULL"),
    ),
    Feature(
        "`MAP`",
        "maps",
        "v text",  # of an hstore, an extension that the embedded server lacks
        ('\'"a"=>"1", "b"=>NULL\'', "''", "NULL"),
        rule='types: {v: "MAP<STRING,STRING>"}',
    ),
    Feature(
        "`VARIANT`, by option",
        "variants",
        "v jsonb",
        ('\'{"a": [1, "x"]}\'', "NULL"),
        rule="types: {v: VARIANT}",
        selects=("id", "v"),
        expected=((1, {"a": [1, "x"]}), (2, None)),
    ),
    Feature("rows changed and deleted", "changed", "v text", _TEXTS, _CHANGES),
    Feature(
        "partitions",
        "partitioned",
        "v text, p date",
        ("'a', '2024-01-01'", "'b', NULL", "'c', '2024-01-02'"),
        _CHANGES,
        rule="partition_by: [p]",
    ),
    Feature(
        "a column renamed, or dropped from silver: column mapping",
        "mapped",
        "o text, gone int",
        ("'a', 1", "'b', 2"),
        (
            "ALTER TABLE {table} RENAME o TO v",
            "ALTER TABLE {table} DROP gone",
            "UPDATE {table} SET v = 'z' WHERE id = 1",
        ),
        rule="dropped_columns: drop",
    ),
    Feature(
        "a name with a space: column mapping",
        "spaced",
        '"a value" text',
        _TEXTS[:2],
        ("UPDATE {table} SET \"a value\" = 'z' WHERE id = 1",),
    ),
    Feature(
        "a column widened: type widening",
        "widened",
        "v int, n numeric(8, 2), f real",
        ("1, 1.25, 0.1", "2, NULL, NULL"),
        (
            "ALTER TABLE {table} ALTER v TYPE bigint, ALTER n TYPE numeric(12, 3), ALTER f TYPE float8",
            "UPDATE {table} SET v = 5000000000 WHERE id = 2",
        ),
    ),
    Feature(
        "the same changes with `readers: widest`",
        "widest",
        "o text, gone int, n int",
        ("'a', 1, 1", "'b', 2, 2"),
        (
            "ALTER TABLE {table} RENAME o TO v",
            "ALTER TABLE {table} DROP gone, ALTER n TYPE bigint",
            "UPDATE {table} SET n = 5000000000 WHERE id = 1",
        ),
        rule="readers: widest, dropped_columns: drop",
    ),
    Feature("mode `soft_delete`", "marked", "v text", _TEXTS, _CHANGES, rule="mode: soft_delete"),
    Feature("mode `history`", "versions", "v text", _TEXTS, _CHANGES, rule="mode: history"),
    Feature("mode `append`", "appended", "v text", _TEXTS, _CHANGES, rule="mode: append"),
    Feature(
        "deletion vectors, if you turn them on",
        "vectors",
        "v text",
        ("'a'", "'b'", "'c'", "'d'"),
        _CHANGES,
        by_spark=("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",),
    ),
    Feature("a table with `change_feed`", "fed", "v text", _TEXTS[:2], _CHANGES, rule="change_feed: true"),
    Feature(
        "its change data feed",
        "fed",
        "",
        (),
        selects=("id", "v", "_change_type"),
        is_feed=True,
        expected=(
            (1, "a", "insert"),
            (2, "b", "insert"),
            (1, "a", "update_preimage"),
            (1, "z", "update_postimage"),
            (2, "b", "delete"),
        ),
    ),
    Feature("an earlier version of a table", "changed", "", (), is_past=True),
)
"""The rows of the page, in order."""
