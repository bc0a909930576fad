"""PostgreSQL's types to silver's, and every text that PostgreSQL prints to a value or to a misfit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pipeline.engine import DUCKDB, SPARK, Engine
from pipeline.silver.types.text_parsers import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VECTOR,
    SilverType,
    array_of,
    decimal,
)
from pipeline.silver.types.types import (
    are_printed_for,
    numeric,
    overridden,
    reader_of,
    silver_type,
    stored,
    widened_text,
)
from tests.support.silver.relations import INT4, NUMERIC, column
from tests.support.silver.texts import TEXTS
from tests.support.silver.two_engines import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def modifier(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


# Which type ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "scale", "ddl"),
    [
        (10, 2, "DECIMAL(10,2)"),
        (38, 38, "DECIMAL(38,38)"),
        (38, 0, "DECIMAL(38,0)"),
        (39, 0, "STRING"),
        (1000, 1000, "STRING"),
        (3, -2, "DECIMAL(5,0)"),
        (30, -8, "DECIMAL(38,0)"),
        (30, -9, "STRING"),
        (1, -1000, "STRING"),
        (3, 5, "DECIMAL(5,5)"),
        (2, 38, "DECIMAL(38,38)"),
        (2, 39, "STRING"),
    ],
)
def test_numeric_is_the_decimal_that_holds_it(precision: int, scale: int, ddl: str) -> None:
    assert numeric(modifier(precision, scale)).ddl == ddl


def test_numeric_without_precision_is_text() -> None:
    assert numeric(-1) is STRING


@pytest.mark.parametrize(
    ("type_oid", "ddl"),
    [
        (16, "BOOLEAN"), (21, "SMALLINT"), (23, "INT"), (20, "BIGINT"), (26, "BIGINT"), (700, "FLOAT"),
        (701, "DOUBLE"), (17, "BINARY"), (1082, "DATE"), (1114, "TIMESTAMP_NTZ"), (1184, "TIMESTAMP"),
        (25, "STRING"), (1042, "STRING"), (18, "STRING"), (2950, "STRING"), (3802, "STRING"),
        (1083, "STRING"), (790, "STRING"), (3220, "STRING"), (5069, "STRING"), (16_400, "STRING"),
        (1000, "ARRAY<BOOLEAN>"), (1007, "ARRAY<INT>"), (1028, "ARRAY<BIGINT>"), (1185, "ARRAY<TIMESTAMP>"),
        (1041, "ARRAY<STRING>"), (2951, "ARRAY<STRING>"), (1231, "ARRAY<STRING>"),
    ],
)  # fmt: skip
def test_built_in_types_need_no_catalog(type_oid: int, ddl: str) -> None:
    assert silver_type(column("c", None, type_oid)).ddl == ddl


def test_array_of_numeric_has_the_modifier_of_its_column() -> None:
    assert silver_type(column("c", 1, 1231, modifier=modifier(8, 3))).ddl == "ARRAY<DECIMAL(8,3)>"


def test_domain_is_its_base_type_and_array_of_a_domain_that_of_the_base() -> None:
    assert silver_type(column("c", 1, 16_400, base_oid=INT4)).ddl == "INT"
    assert silver_type(column("c", 1, 16_401, element=INT4)).ddl == "ARRAY<INT>"
    assert silver_type(column("c", 1, 16_402, element=16_399)).ddl == "ARRAY<STRING>"


def test_types_of_extensions_are_known_by_what_writes_their_text() -> None:
    assert silver_type(column("c", 1, 16_400, output="hstore_out")).ddl == "MAP<STRING,STRING>"
    assert silver_type(column("c", 1, 16_401, element=16_400, output="hstore_out")).ddl == (
        "ARRAY<MAP<STRING,STRING>>"
    )
    assert silver_type(column("c", 1, 16_402, output="vector_out")) is STRING
    assert silver_type(column("c", 1, 16_402, output="vector_out"), "ARRAY<FLOAT>") is VECTOR
    assert silver_type(column("c", 1, 1021, output="float4out"), "ARRAY<FLOAT>") is not VECTOR


def test_override_wins_whatever_its_spelling() -> None:
    assert silver_type(column("c", 1, NUMERIC), "decimal( 20, 4 )").ddl == "DECIMAL(20,4)"
    assert silver_type(column("c", 1, INT4), "string") is STRING
    assert silver_type(column("c", 1, 1007), "Array<BigInt>").ddl == "ARRAY<BIGINT>"
    assert silver_type(column("c", None, 16_400), "INT", "BIGINT").ddl == "INT"


def test_array_of_boxes_is_split_at_semicolons_under_an_override_too() -> None:
    own, overriding = (silver_type(column("c", 1, 1020), ddl) for ddl in (None, "ARRAY<STRING>"))
    assert own.parse("text") == overriding.parse("text") != overridden("ARRAY<STRING>").parse("text")


@pytest.mark.parametrize(
    "ddl",
    [
        "",
        "TEXT",
        "DECIMAL(39,0)",
        "DECIMAL(0,0)",
        "DECIMAL(3,4)",
        "DECIMAL",
        "ARRAY<TEXT>",
        "ARRAY<ARRAY<INT>>",
        "INT)",
    ],
)
def test_what_is_no_silver_type_is_refused(ddl: str) -> None:
    with pytest.raises(ValueError, match="is not a silver type"):
        overridden(ddl)


def test_column_of_a_type_that_is_not_ours_only_takes_null() -> None:
    assert stored("STRUCT<A:INT>").value("x") == "CAST(NULL AS STRUCT<A:INT>)"
    assert stored("ARRAY<DECIMAL(5,2)>").ddl == "ARRAY<DECIMAL(5,2)>"


# Which value -----------------------------------------------------------------------------------------

# An element that does not fit is NULL in its place, and the array is a misfit all the same.
PARTLY: Sequence[tuple[SilverType, str, list[Any]]] = (
    (array_of(DATE), '{2024-01-01,infinity,NULL,"0044-03-15 BC"}', [date(2024, 1, 1), None, None, None]),
    (array_of(decimal(4, 1)), "{1.25,NaN,1000,0.5}", [None, None, None, Decimal("0.5")]),
    (array_of(INT), '{1,"x","NULL"}', [1, None, None]),
)


def known(value: Any) -> str:
    """Return a text that distinguishes NaN, -0, types and digits.

    Releases of Spark before 4.2 return BINARY as bytearray.
    """
    if isinstance(value, dict):
        value = sorted(value.items())
    if isinstance(value, list):
        value = [bytes(each) if isinstance(each, bytearray) else each for each in value]
    return repr(bytes(value) if isinstance(value, bytearray) else value)


@dataclass(frozen=True)
class Read:
    values: list[Any]
    misfits: list[bool | None]
    canonical: list[str | None]


class Sql(NamedTuple):
    """An engine, and what returns the only row of a query."""

    engine: Engine
    row: Callable[[str], Sequence[Any]]

    def reads(self, kind: SilverType) -> bool:
        return kind.is_native or self.engine is SPARK

    def transform(self, texts: Sequence[str], expression: str) -> str:
        """Return SQL for the array of an expression's values for texts t."""
        listed = self.engine.array(*map(self.engine.literal, texts))
        if self.engine is SPARK:
            return f"transform({listed}, t -> {expression})"
        return f"list_transform({listed}, lambda t: {expression})"


@pytest.fixture(params=[pytest.param("spark", marks=pytest.mark.spark), "duckdb"])
def sql(request: pytest.FixtureRequest) -> Iterator[Sql]:
    if request.param == "spark":
        spark: SparkSession = request.getfixturevalue("spark")
        yield Sql(SPARK, lambda query: spark.sql(query).collect()[0])
    else:
        with connect() as connection:
            yield Sql(DUCKDB, lambda query: connection.sql(query).fetchall()[0])


def read(sql: Sql, cases: Sequence[tuple[SilverType, Sequence[str]]]) -> list[Read]:
    """Parse all texts of all types in one query; an instant comes back as microseconds."""
    columns = []
    micros = "unix_micros" if sql.engine is SPARK else "epoch_us"
    for kind, texts in cases:
        value = kind.value("t", sql.engine)
        readable = {"TIMESTAMP": f"{micros}({value})", "VARIANT": f"to_json({value})"}
        columns += [
            sql.transform(texts, readable.get(kind.ddl, value)),
            sql.transform(texts, kind.misfit("t", f"({value})", sql.engine) or "false"),
            sql.transform(texts, kind.canonical("t", sql.engine)),
        ]
    row = sql.row(f"SELECT {', '.join(columns)}")
    return [Read(*row[i : i + 3]) for i in range(0, len(row), 3)]


def test_every_text_becomes_its_value_or_a_misfit(sql: Sql) -> None:
    cases = [case for case in TEXTS if sql.reads(case.kind)]
    found = read(sql, [(kind, [*values, *misfits]) for kind, values, misfits in cases])
    for (kind, values, misfits), result in zip(cases, found, strict=True):
        expected = [(text, value, False) for text, value in values.items()]
        expected += [(text, None, True) for text in misfits]
        for (text, value, is_misfit), *shown in zip(expected, result.values, result.misfits, strict=True):
            case = f"{kind.ddl} {text[:60]!r}"
            assert [known(shown[0]), shown[1]] == [known(value), is_misfit], case


# Texts that PostgreSQL prints, also those that silver's type does not hold.
DATES = ("0001-01-01", "9999-12-31", "10000-01-01", "5874897-12-31", "infinity", "-infinity", "0044-03-15 BC")
TIMES = (
    "0001-01-01 00:00:00",
    "2024-03-10 02:30:00.1",
    "9999-12-31 23:59:59.999999",
    "294276-12-31 00:00:00",
)
REALS = ("0", "-0", "1.5", "1e+20", "1e-07", "NaN", "Infinity", "-Infinity")
PRINTED: Sequence[tuple[SilverType, Sequence[str]]] = (
    (BOOLEAN, ("t", "f")),
    (SMALLINT, ("-32768", "0", "32767")),
    (INT, ("-2147483648", "2147483647")),
    (BIGINT, ("-9223372036854775808", "9223372036854775807")),
    (FLOAT, (*REALS, "3.4028235e+38", "1e-45")),
    (DOUBLE, (*REALS, "1.7976931348623157e+308", "5e-324", "0.1", "2147483647")),
    (decimal(5, 2), ("1.50", "-999.99", "0.00", "7", "NaN")),
    (decimal(38, 38), ("0." + "9" * 38,)),
    (BINARY, (r"\x", r"\x00ff5c")),
    (DATE, DATES),
    (TIMESTAMP_NTZ, (*DATES, *TIMES, "0044-03-15 00:00:00.1 BC")),
    (TIMESTAMP, (*(f"{time}+00" for time in TIMES), "2024-01-01 00:00:00+05", "0044-01-01 00:00:00+00 BC")),
    (array_of(INT), ("{}", "{1,NULL,-2}", "{{1},{2}}", "[0:1]={1,2}")),
    (array_of(decimal(5, 2)), ("{1.50,NaN}",)),
    (array_of(TIMESTAMP), ('{"2024-01-01 00:00:00+00",infinity,NULL}',)),
)  # fmt: skip


def test_printed_texts_have_the_same_values_with_fewer_checks(sql: Sql) -> None:
    checked, printed = read(sql, PRINTED), read(sql, [(kind.of_printed, texts) for kind, texts in PRINTED])
    for (kind, texts), one, other in zip(PRINTED, checked, printed, strict=True):
        assert kind.of_printed is not kind
        for text, *shown in zip(texts, one.values, other.values, one.misfits, other.misfits, strict=True):
            assert known(shown[0]) == known(shown[1]), f"{kind.ddl} {text}"
            assert shown[2] == shown[3], f"{kind.ddl} {text}"


@pytest.mark.parametrize(
    ("oid", "type_modifier", "ddl", "override", "are_printed"),
    [
        (23, -1, "INT", None, True),
        (23, -1, "BIGINT", None, True),
        (23, -1, "DECIMAL(12,2)", None, True),
        (23, -1, "DOUBLE", None, True),
        (23, -1, "INT", "INT", False),
        (20, -1, "INT", None, False),
        (25, -1, "INT", None, False),
        (1700, modifier(9, 2), "DECIMAL(22,2)", None, True),
        (1700, modifier(9, 2), "DECIMAL(9,1)", None, False),
        (1700, modifier(9, 2), "DOUBLE", None, False),
        (700, -1, "FLOAT", None, True),
        (700, -1, "DOUBLE", None, False),
        (1082, -1, "TIMESTAMP_NTZ", None, True),
        (1007, -1, "ARRAY<BIGINT>", None, True),
        (1009, -1, "ARRAY<INT>", None, False),
    ],
)
def test_texts_are_printed_for_a_type_that_holds_the_source_s(
    oid: int, type_modifier: int, ddl: str, override: str | None, are_printed: bool
) -> None:
    source = column("v", 1, oid, modifier=type_modifier)
    assert are_printed_for(source, stored(ddl), override) is are_printed


def test_element_that_does_not_fit_is_null_in_its_place_and_makes_a_misfit(sql: Sql) -> None:
    found = read(sql, [(kind, [text]) for kind, text, _ in PARTLY])
    for (kind, text, expected), result in zip(PARTLY, found, strict=True):
        assert (result.values, result.misfits) == ([expected], [True]), f"{kind.ddl} {text}"


SAME_OR_NOT: Sequence[tuple[SilverType, str, str, bool]] = (
    (DOUBLE, "-0", "0", False),
    (DOUBLE, "NaN", "NaN", True),
    (DOUBLE, "1e+15", "1000000000000000", True),
    (decimal(5, 2), "1.5", "1.50", True),
    (BINARY, "\\xab", "\\xac", False),
    (BINARY, "\\x", "\\x00", False),
    (STRING, "a", "a ", False),
    (TIMESTAMP, "2024-01-01 00:00:00.000001+00", "2024-01-01 00:00:00.000002+00", False),
    (array_of(TIMESTAMP), '{"2024-01-01 00:00:00.000001+00"}', '{"2024-01-01 00:00:00.000002+00"}', False),
    (array_of(TIMESTAMP_NTZ), '{"2024-01-01 00:00:00.000001"}', '{"2024-01-01 00:00:00.000002"}', False),
    (array_of(STRING), "{NULL}", '{"NULL"}', False),
    (array_of(STRING), '{"a,b"}', "{a,b}", False),
    (array_of(STRING), "{}", "{NULL}", False),
    (array_of(BINARY), r'{"\\xff"}', r'{"\\xfe"}', False),
    (array_of(DOUBLE), "{-0}", "{0}", False),
    (array_of(DOUBLE), "{1.0}", "{1}", True),
)


def test_canonical_text_distinguishes_values_and_is_the_stored_value_s(sql: Sql) -> None:
    found = read(sql, [(kind, [one, other]) for kind, one, other, _ in SAME_OR_NOT])
    for (kind, one, other, is_same), result in zip(SAME_OR_NOT, found, strict=True):
        assert (result.canonical[0] == result.canonical[1]) is is_same, f"{kind.ddl} {one} {other}"
    columns = [
        f"{kind.value(sql.engine.literal(one), sql.engine)} AS v{i}"
        for i, (kind, one, _, _) in enumerate(SAME_OR_NOT)
    ]
    shown = [kind.canonical_value(f"v{i}", sql.engine) for i, (kind, *_) in enumerate(SAME_OR_NOT)]
    row = sql.row(f"SELECT {', '.join(shown)} FROM (SELECT {', '.join(columns)}) AS q")
    assert list(row) == [result.canonical[0] for result in found]


def test_null_is_null_of_every_type_and_no_misfit() -> None:
    for kind, *_ in TEXTS:
        if misfit := kind.misfit("x", "c"):
            assert "x IS NOT NULL AND c IS NULL" in misfit


def test_null_text_is_null(sql: Sql) -> None:
    kinds = [kind for kind in {kind.ddl: kind for kind, *_ in TEXTS}.values() if sql.reads(kind)]
    values = [kind.value("x", sql.engine) for kind in kinds]
    misfits = [k.misfit("x", f"({v})", sql.engine) or "false" for k, v in zip(kinds, values, strict=True)]
    shown = [f"{value} IS NULL" for value in values] + [f"NOT coalesce({m}, false)" for m in misfits]
    null = f"(SELECT {sql.engine.null('STRING')} AS x) AS q"
    assert all(sql.row(f"SELECT {', '.join(shown)} FROM {null}"))


def test_types_that_only_spark_reads_are_few() -> None:
    assert {kind.ddl for kind, *_ in TEXTS if not kind.is_native} == {
        "VARIANT", "MAP<STRING,STRING>", "ARRAY<MAP<STRING,STRING>>"
    }  # fmt: skip
    assert not stored("STRUCT<A:INT>").is_native
    assert not stored("ARRAY<VARIANT>").is_native


def test_a_real_in_a_double_has_the_value_of_its_cast(sql: Sql) -> None:
    reader = reader_of(column("v", 1, 700), DOUBLE)
    cast = {
        "0.1": 0.10000000149011612,
        "1e-45": 1.401298464324817e-45,
        "3.4028235e+38": 3.4028234663852886e38,
        "-0": -0.0,
        "Infinity": float("inf"),
        "16777217": 16777216.0,
    }
    row = sql.row(f"SELECT {', '.join(reader.value(sql.engine.literal(text), sql.engine) for text in cast)}")
    assert [repr(value) for value in row] == [repr(value) for value in cast.values()]
    assert [repr(float(widened_text(text))) for text in cast] == [repr(value) for value in cast.values()]
    assert reader_of(column("v", 1, 701), DOUBLE) is DOUBLE
