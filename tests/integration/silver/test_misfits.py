"""Silver's value for a text that its type cannot hold: NULL, the nearest value, or a text column."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pipeline.delta.sql import literal
from pipeline.silver.types.text_parsers import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    HSTORE,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP_NTZ,
    SilverType,
    array_of,
    decimal,
)
from pipeline.silver.types.types import overridden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# type, text, nearest value, and whether the text fits as it is
NEAREST: tuple[tuple[SilverType, str, Any, bool], ...] = (
    (INT, "7", 7, True),
    (INT, "2147483648", 2**31 - 1, False),
    (INT, "-" + "9" * 60, -(2**31), False),
    (INT, "1.5", 2, False),
    (INT, "-1.5", -2, False),
    (INT, "NaN", None, False),
    (INT, "abc", None, False),
    (SMALLINT, "-32769", -32768, False),
    (BIGINT, "Infinity", 2**63 - 1, False),
    (BIGINT, "-Infinity", -(2**63), False),
    (decimal(5, 2), "1.50", Decimal("1.50"), True),
    (decimal(5, 2), "1.255", Decimal("1.26"), False),
    (decimal(5, 2), "-1.255", Decimal("-1.26"), False),
    (decimal(5, 2), "999.999", Decimal("999.99"), False),
    (decimal(5, 2), "-" + "9" * 100 + "." + "9" * 900, Decimal("-999.99"), False),
    (decimal(5, 2), "Infinity", Decimal("999.99"), False),
    (decimal(5, 2), "NaN", None, False),
    (decimal(5, 2), "1e+20", Decimal("999.99"), False),
    (decimal(5, 2), "-1e-300", Decimal("0.00"), False),
    (decimal(5, 0), "-100000", Decimal(-99999), False),
    (decimal(38, 38), "1", Decimal("0." + "9" * 38), False),
    (overridden("DOUBLE"), "-1" + "0" * 400, -1.7976931348623157e308, False),
    (overridden("FLOAT"), "1e39", 3.4028234663852886e38, False),
    (DATE, "infinity", date(9999, 12, 31), False),
    (DATE, "-infinity", date(1, 1, 1), False),
    (DATE, "0044-03-15 BC", date(1, 1, 1), False),
    (DATE, "12024-03-15 BC", date(1, 1, 1), False),
    (DATE, "5874897-12-31", date(9999, 12, 31), False),
    (DATE, "now", None, False),
    (TIMESTAMP_NTZ, "10000-01-01 00:00:00", datetime(9999, 12, 31, 23, 59, 59, 999999), False),
    (TIMESTAMP_NTZ, "0001-12-31 00:00:00 BC", datetime(1, 1, 1), False),
    (BOOLEAN, "yes", None, False),
    (BINARY, "abc", None, False),
    (HSTORE, "a=>1", None, False),
    (STRING, "", "", True),
    (array_of(INT), "{1,2147483648,NULL}", [1, 2**31 - 1, None], False),
    (array_of(INT), "{1,2}", [1, 2], True),
    (array_of(DATE), "{infinity,NaN}", [date(9999, 12, 31), None], False),
    (array_of(INT), "{{1},{2}}", None, False),
)


def test_clamped_type_takes_the_nearest_value_and_reports_the_misfit(spark: SparkSession) -> None:
    columns = []
    for i, (kind, text, _, _) in enumerate(NEAREST):
        value = kind.clamped.value(literal(text))
        misfit = kind.clamped.misfit(literal(text), f"({value})") or "false"
        columns += [f"{value} AS v{i}", f"{misfit} AS m{i}"]
    row = spark.sql(f"SELECT {', '.join(columns)}").head()
    assert row is not None
    for i, (kind, text, nearest, fits) in enumerate(NEAREST):
        assert (row[f"v{i}"], not row[f"m{i}"]) == (nearest, fits), f"{kind.ddl} {text[:40]}"


def test_the_text_column_has_a_text_only_where_the_value_does_not_fit(spark: SparkSession) -> None:
    values = [kind.text_of_misfit.value(literal(text)) for kind, text, *_ in NEAREST]
    columns = [f"{value} AS v{i}" for i, value in enumerate(values)]
    row = spark.sql(f"SELECT {', '.join(columns)}").head()
    assert row is not None
    for i, (kind, text, _, fits) in enumerate(NEAREST):
        assert row[f"v{i}"] == (None if fits else text), f"{kind.ddl} {text[:40]}"
    null = [kind.text_of_misfit.value("CAST(NULL AS STRING)") for kind, *_ in NEAREST]
    assert set(spark.sql(f"SELECT {', '.join(null)}").head() or ()) == {None}
