"""What DuckDB spells differently from Spark; `test_two_engines` runs the types in both."""

import ctypes
from collections.abc import Iterator
from random import Random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from pipeline.engine import DUCKDB, SPARK
from tests.support.silver.odd_texts import floating_texts
from tests.support.silver.two_engines import connect


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with connect() as found:
        yield found


def one(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    [(value,)] = connection.sql(f"SELECT {sql}").fetchall()
    return value


@pytest.mark.parametrize(
    "text", ["", "it's", "back\\slash\\", "$1 ${env:HOME}", "line\nbreak", "日本\U0001f600"]
)
def test_literal_is_the_text(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    assert one(connection, DUCKDB.literal(text)) == text


@pytest.mark.parametrize("name", ["a b", 'a"b', "a`b", "SELECT", "a.b", "é\n"])
def test_quoted_name_is_one_identifier(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    assert connection.sql(f"SELECT 1 AS {DUCKDB.quoted(name)}").columns == [name]


@pytest.mark.parametrize(
    ("ddl", "name"),
    [
        ("STRING", "VARCHAR"),
        ("INT", "INTEGER"),
        ("DECIMAL(38,10)", "DECIMAL(38,10)"),
        ("TIMESTAMP", "TIMESTAMPTZ"),
        ("ARRAY<TIMESTAMP_NTZ>", "TIMESTAMP[]"),
        ("ARRAY<ARRAY<BINARY>>", "BLOB[][]"),
    ],
)
def test_types_have_names_of_their_own_in_duckdb(ddl: str, name: str) -> None:
    assert DUCKDB.type_name(ddl) == name
    assert SPARK.type_name(ddl) == ddl


def test_texts_in_duckdb(connection: duckdb.DuckDBPyConnection) -> None:
    found = {
        DUCKDB.starts_with("'ab'", "a"): True,
        DUCKDB.ends_with("'ab'", "b"): True,
        DUCKDB.ends_with("'ab'", "a"): False,
        DUCKDB.contains_text("'a%b'", "%"): True,
        DUCKDB.inner("'[\U0001f600]'"): "\U0001f600",
        DUCKDB.inner("'['"): "",
        DUCKDB.inner("''"): "",
        DUCKDB.matches("'ab\n'", r"^ab\z"): False,
        DUCKDB.first_group("'a=b'", "^(.)="): "a",
        DUCKDB.first_group("'a'", "^(.)="): "",
        DUCKDB.all_matches("'a1b2'", "[0-9]"): ["1", "2"],
        DUCKDB.replace_all("'a1b2'", "([0-9])", r"<\1>"): "a<1>b<2>",
        DUCKDB.split("''", ","): [""],
        DUCKDB.split("'a,'", ","): ["a", ""],
        DUCKDB.unhex("'00fF'"): b"\x00\xff",
        DUCKDB.unhex("'0g'"): None,
        f"length({DUCKDB.nul})": 1,
    }
    assert {sql: one(connection, sql) for sql in found} == found


def test_arrays_and_structs_in_duckdb(connection: duckdb.DuckDBPyConnection) -> None:
    letters = DUCKDB.array("'a'", "NULL")
    found = {
        DUCKDB.get(letters, 0): "a",
        DUCKDB.get(letters, 2): None,
        DUCKDB.get(DUCKDB.null("ARRAY<STRING>"), 0): None,
        DUCKDB.contains(letters, "'a'"): True,
        DUCKDB.contains(DUCKDB.null("ARRAY<INT>"), "1"): None,
        DUCKDB.size(letters): 2,
        DUCKDB.size(DUCKDB.null("ARRAY<INT>")): None,
        DUCKDB.transform(letters, "concat(e, 'x')"): ["ax", "x"],
        DUCKDB.filter(letters, "e IS NULL"): [None],
        DUCKDB.numbers("3"): [1, 2, 3],
        DUCKDB.struct({"a b": "1", "step": "'I'"}): {"a b": 1, "step": "I"},
        DUCKDB.to_json(DUCKDB.struct({"q0": "NULL"})): '{"q0":null}',
    }
    assert {sql: one(connection, sql) for sql in found} == found


def test_latest_is_the_row_with_the_greatest_key(connection: duckdb.DuckDBPyConnection) -> None:
    rows = (
        "(VALUES ({'a': 1, 'b': 9}, 'first'), ({'a': 2, 'b': 1}, NULL), ({'a': 1, 'b': 10}, 'x')) AS t(k, v)"
    )
    assert connection.sql(f"SELECT {DUCKDB.latest({'v': 'v'}, 'k')} FROM {rows}").fetchall() == [
        ({"v": None},)
    ]


@pytest.mark.parametrize("ddl", ["FLOAT", "DOUBLE"])
def test_floats_are_the_nearest_to_their_text(connection: duckdb.DuckDBPyConnection, ddl: str) -> None:
    """Python's float is the nearest, and so is glibc's strtof."""
    texts = floating_texts(Random(20_262), 10_000)
    table = pa.table({"i": range(len(texts)), "x": texts})
    with connection.cursor() as cursor:
        cursor.register("texts", table)
        query = f"SELECT {DUCKDB.floating('x', ddl)} FROM texts ORDER BY i"
        found = cursor.sql(query).to_arrow_table().column(0).combine_chunks()
    assert found.null_count == 0
    if ddl == "DOUBLE":
        expected = np.array([float(text) for text in texts]).view(np.uint64)
    else:
        strtof = ctypes.CDLL(None).strtof
        strtof.restype, strtof.argtypes = ctypes.c_float, [ctypes.c_char_p, ctypes.c_void_p]
        expected = np.array([strtof(text.encode(), None) for text in texts], np.float32).view(np.uint32)
    values = found.to_numpy(zero_copy_only=False).view(expected.dtype)
    wrong = np.flatnonzero(values != expected)
    assert [texts[i] for i in wrong[:10]] == []
